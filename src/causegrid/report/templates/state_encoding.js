// State encoding: what was trained over all tasks; then, for one task at a time, how it learned, how it behaves by
// length, where the state shows, what removing it does (state_erasure.js), parts and patching (state_parts.js).
// One mark per seed everywhere: filled where that seed learned the task, hollow where it did not.
const FAMILY = { transformer: "#0072b2", mamba: "#d55e00", mamba2: "#c48a00", lstm: "#009e73", gru: "#8e63b5" };
const OTHERS = ["#b3367a", "#4a7a8c", "#7a5c3e", "#5b7f1f", "#9c2f2f"]; // variants and pretrained models
const ACCURACY = { token: "every token", strict: "whole sequence", last: "last token" };
const BASELINE = {
  majority: "majority", position: "position", token: "token", token_pair: "token pair",
  untrained: "untrained model", shuffled: "shuffled labels", control: "control task",
};
const NO_MODEL = ["majority", "position", "token", "token_pair"];
const PARTS = { learning, behaviour, probes, erasure: erasures, "longer-lengths": beyond, parts: components, patching };
const DASH = { learned: null, partly: "6,3", "not-learned": "1.5,3" };

function stateEncoding(s, root, run, missing) {
  const cells = s.cells.map((c, i) => ({ ...c, i }));
  if (!cells.length) return;
  const named = unique([...cells, ...missing].map((c) => c.model)); // the whole grid's, so a model keeps its place and colour as cells finish
  const ordered = unique([...Object.keys(FAMILY).flatMap((f) => named.filter((m) => m.split(":")[0] === f).sort()), ...named]);
  const d = { cells, s, missing, ordered, models: ordered.filter((m) => cells.some((c) => c.model === m)), tasks: unique(cells.map((c) => c.task)) };
  const others = ordered.filter((m) => !FAMILY[m]);
  d.hue = (model) => FAMILY[model] || OTHERS[others.indexOf(model) % OTHERS.length];
  const id = (name) => `${name}-${run}`;
  const tasks = choose([{ label: "Task", options: d.tasks.map((t) => [t, t]) }], ([task]) => {
    const one = ofTask(d, task);
    return el("div", {}, el("h3", { class: "task" }, task), dim(` ${plural(one.cells.length, "cell")}`),
      Object.entries(PARTS).map(([name, part]) => el("section", { id: id(name) }, drawn(() => part(one)))));
  }, "tasks");
  const links = el("span", { class: "links" }, [...Object.keys(PARTS).filter((n) => tasks.querySelector(`#${id(n)} svg`)), "claims"].map((n) => el("a", { href: `#${id(n)}` }, n)));
  if (d.tasks.length > 1) tasks.firstChild.append(links);
  root.append(drawn(() => trained(d)), tasks);
}

// One task's part of the data: its cells, its models, and `rows(name)` of a table, each row knowing its cell.
function ofTask(d, task) {
  const cells = d.cells.filter((c) => c.task === task), mine = new Set(cells.map((c) => c.i));
  const rows = (name) => records(d.s[name], (c, i) => mine.has(c.cell[i])).map((r) => {
    const { model, seed, learned } = d.cells[r.cell];
    return { ...r, model, seed, learned };
  });
  return { ...d, task, cells, rows, models: d.models.filter((m) => cells.some((c) => c.model === m)) };
}

const shownAt = "A cell that learned to a shorter length than the trained one is shown at that length.";
// Learned positions keep their initial values beyond the trained length, so what a model does there says nothing of it.
const untrainedAt = (c, length) => c.positions === "learned" && length > c.trained;
const untrained = (cells) => `learned positions: untrained beyond ${unique(cells.map((c) => c.trained)).join(" or ")}`;
// Rows less those at untrained positions, and a line that names the models left out.
function trainedOnly(d, rows) {
  const cell = (r) => d.cells.find((c) => c.i === r.cell), out = rows.filter((r) => untrainedAt(cell(r), r.length));
  return [rows.filter((r) => !out.includes(r)), out.length ? said(`Left out: ${unique(out.map((r) => r.model)).join(", ")} (${untrained(unique(out.map(cell)))}).`) : null];
}
const learnedKind = (c) => (c.learned === "learned" ? "learned" : c.learned === "not learned" ? "not-learned" : "partly");
const fillOf = (c, hue) => (c.learned === "learned" ? hue : "#fff");
const blocks = (l) => (l < 0 ? "E" : String(l));
const place = (l) => (l < 0 ? "embedding output" : `block ${l}`);
const whole = (n) => n?.toLocaleString("en");
const seedsOf = (rows) => unique(rows.map((r) => r.seed)).sort((a, b) => a - b);
const bySeed = (rows, draw) => { const seeds = seedsOf(rows); return seeds.map((seed, i) => draw(rows.filter((r) => r.seed === seed), i, seeds.length)); };
const who = (d, r) => `${r.model} on ${d.task}, seed ${r.seed}${r.learned && r.learned !== "learned" ? ` (${r.learned})` : ""}`;
const DASHED = { draw: (c, s) => { const w = Math.sqrt(s); c.moveTo(-w, 0); c.lineTo(w, 0); } }; // a short horizontal line
const hollow = ["hollow: that seed did not learn the task at the trained length", INK, "ring"];
const spread = (values, digits) => {
  const some = values.filter(known);
  if (!some.length) return "–";
  const [low, high] = d3.extent(some).map((v) => num(v, digits)), middle = num(d3.median(some), digits);
  return low === high ? middle : el("span", {}, middle, " ", dim(`(${low} to ${high})`));
};

// `mamba`, with what was learned where that is not all of it.
function family(d, model) {
  const mine = d.cells.filter((c) => c.model === model);
  return [el("b", { style: `color:${d.hue(model)}` }, model), mine.every((c) => c.learned === "learned") ? null : [" ", result(mine)]];
}

// One badge for the seeds of a family on a task.
function result(mine) {
  const said = unique(mine.map((c) => c.learned)), n = plural(mine.length, "seed"), k = mine.filter((c) => c.learned === "learned").length;
  const partly = mine.filter((c) => learnedKind(c) === "partly"), lengths = unique(d3.extent(partly, (c) => c.learned_length)).join("–");
  if (mine.length === 1) return badge(said[0] || "unknown", learnedKind(mine[0]));
  if (k) return badge(`${k} of ${n} learned`, k === mine.length ? "learned" : "partly");
  if (partly.length) return badge(partly.length === mine.length ? `learned to ${lengths}, ${n}` : `${partly.length} of ${n} learned to ${lengths}`, "partly");
  return badge(said.length === 1 ? `${said[0] || "unknown"}, ${n}` : `0 of ${n} learned`, "not-learned");
}

// A panel per family.  draw(rows, model) -> a figure or several.
function byFamily(d, rows, draw, note = () => null, kind = "") {
  return panels(d.models.filter((m) => rows.some((r) => r.model === m)).map((model) => {
    const mine = rows.filter((r) => r.model === model);
    return panel([family(d, model), el("div", { class: "dim" }, note(mine, model))], ...[draw(mine, model)].flat());
  }), kind);
}
const panelWidth = (places, seeds, perSeed, room = 48) => fit(Math.max(258, room + places * Math.max(30, seeds * perSeed + 6)));

function trained(d) {
  const accuracy = new Map(records(d.s.behaviour).filter((b) => b.metric === "token").map((b) => [`${b.cell} ${b.length}`, b]));
  const at = (c, length) => accuracy.get(`${c.i} ${length}`), far = d3.max([...accuracy.values()], (b) => b.length);
  const lengths = unique(d.cells.map((c) => c.trained)), trainedAt = lengths.length > 1 ? "trained length" : lengths[0];
  const note = `Each model was trained on sequences of at most ${lengths.join(" or ")} tokens and tested on new ones. “Learned” means that at least 99 % of the first ${lengths.join(" or ")} tokens are right, “learned to 33” that 33 is the longest stretch of first tokens of which so many are (under 8: not learned); both are found on sequences of their own, so an accuracy here can differ a little. A model that did not learn within the steps given is a result and stays on the page; its state measures say little.`;
  const each = () => table([
    { name: "Task", value: (c) => c.task },
    { name: "Model", class: "whole", value: (c) => c.model },
    { name: "Seed", num: true, value: (c) => c.seed },
    { name: "Result", value: (c) => badge(c.learned || "unknown", learnedKind(c)) },
    { name: "Parameters", num: true, value: (c) => whole(c.n_params) },
    { name: "Steps", num: true, value: (c) => `${whole(c.steps) ?? "–"} of ${whole(c.asked) ?? "–"}` },
    { name: "Lengths", value: (c) => c.schedule },
    { name: "Positions", value: (c) => c.positions },
    { name: `Token accuracy at ${trainedAt}`, num: true, value: (c) => { const b = at(c, c.trained); return b && estimate(b.accuracy, b.low, b.high); } },
    far > d3.max(lengths) ? { name: `at ${far}`, num: true, value: (c) => { const b = at(c, far); return b && (untrainedAt(c, far) ? dim("untrained positions") : estimate(b.accuracy, b.low, b.high)); } } : null,
    { name: "Minutes", num: true, title: "of computing, all stages", value: (c) => num(c.seconds / 60, 1) },
  ].filter(Boolean), d.cells);
  if (d.cells.length < 4) return el("div", {}, heading("What was trained", note), each());
  return el("div", {}, heading("What was trained", `${note} Beside the mark: token accuracy at ${trainedAt}, the median over seeds with the lowest and the highest.`),
    table([
      { name: "Model", class: "whole", value: (m) => el("b", { style: `color:${d.hue(m)}` }, m) },
      ...unique([...d.tasks, ...d.missing.map((c) => c.task)]).map((task) => ({ name: task, value: (m) => {
        const mine = d.cells.filter((c) => c.task === task && c.model === m);
        const gone = d3.rollups(d.missing.filter((c) => c.task === task && c.model === m), (some) => some.length, (c) => (c.status === "failed" ? "failed" : "not finished"));
        return mine.length || gone.length ? el("div", { class: "stack" }, mine.length ? [result(mine), el("span", {}, spread(mine.map((c) => at(c, c.trained)?.accuracy), 3))] : null, gone.map(([what, n]) => badge(`${n} ${what}`, slug(what)))) : dim("not in the grid");
      } })),
    ], d.ordered),
    folded(`Every cell (${d.cells.length})`, each));
}

function learning(d) {
  const rows = d.rows("training");
  if (!rows.length) return null;
  const cell = (r) => d.cells.find((c) => c.i === r.cell);
  const last = d3.max(rows, (r) => r.step), longest = d3.max(d.cells, (c) => c.trained);
  const drawn = (mine, model, y, options) => plot({
    width: fit(258), marginLeft: 40, marginRight: 12, x: { domain: [0, last], label: null, ticks: 4, tickFormat: "~s" }, ...options,
    marks: [bySeed(mine, (seed) => {
      const c = cell(seed[0]), end = seed.at(-1), hue = d.hue(model);
      return [
        Plot.line(seed, { x: "step", y, stroke: hue, strokeWidth: 1.3, strokeOpacity: 0.85, strokeDasharray: DASH[learnedKind(c)] }),
        Plot.dot([end], { x: "step", y, stroke: hue, strokeWidth: 1.3, fill: fillOf(c, hue), r: 3, title: (r) => `${who(d, c)}: ${c.learned}\nafter ${whole(c.steps)} of ${whole(c.asked)} steps\ntraining batches at the end: accuracy ${num(r.token_accuracy, 3)}, loss ${num(r.loss, 3)}, length ${r.length}` }),
      ];
    })],
  });
  return el("div", {},
    heading("How it learned", "One thin line per seed: training batches, each point the mean of a stretch of steps, no interval; the seeds are the spread. Below it the length of the batches, since a short sequence is easy. A line that ends early met the criterion and stopped.", "h4"),
    legend([["learned", INK, "line"], ["learned to a shorter length", INK, "dash"], ["not learned", INK, "dots"], hollow]),
    choose([{ label: "Curve", options: [["token_accuracy", "token accuracy"], ["loss", "loss (nats)"]] }], ([y]) => byFamily(d, rows, (mine, model) => [
      drawn(mine, model, y, { height: 130, marginBottom: 18, y: { domain: y === "loss" ? [0, d3.quantile(rows, 0.99, (r) => r.loss) || 1] : [0, 1], clamp: true, label: y === "loss" ? "loss" : "token accuracy", grid: true, ticks: 5 } }),
      drawn(mine, model, "length", { height: 84, marginTop: 18, x: { domain: [0, last], label: "step", ticks: 4, tickFormat: "~s" }, y: { domain: [0, longest], label: "batch length", ticks: 3, grid: true } }),
    ], (mine, model) => {
      const cells = d.cells.filter((c) => c.model === model);
      const facts = unique(cells.map((c) => [known(c.n_params) ? `${whole(c.n_params)} parameters` : "", c.schedule, c.positions ? `${c.positions} positions` : ""].filter(Boolean).join(" · ")));
      return facts.join(" / ");
    })));
}

function behaviour(d) {
  const rows = d.rows("behaviour");
  if (!rows.length) return null;
  const means = records(d.s.over_seeds, (c, i) => c.task[i] === d.task), trainedAt = unique(d.cells.map((c) => c.trained));
  const metrics = Object.keys(ACCURACY).filter((m) => rows.some((b) => b.metric === m));
  const lengths = unique(rows.map((b) => b.length)).sort((a, b) => a - b), n = d.models.length, several = means.some((m) => m.n > 1);
  const bars = (b) => (b.n_seeds > 1 ? "t interval over seeds" : "interval over sequences");
  const pale = (b) => d.cells.some((c) => c.model === b.model && untrainedAt(c, b.length)), paleHint = (b) => (pale(b) ? `\n${untrained(d.cells.filter((c) => c.model === b.model))}` : "");
  const line = means.map((m) => {
    const only = m.n > 1 ? null : rows.find((b) => b.model === m.model && b.length === m.length && b.metric === m.metric && known(b.accuracy));
    return { ...m, n_seeds: m.n, low: only ? only.low : m.low, high: only ? only.high : m.high };
  });
  return el("div", {},
    heading("Behaviour by length", `Share of answers right on new sequences, by three measures that must not be confused: every token, the whole sequence without a fault (strict), the last token. Line: ${several ? "mean over all seeds, learned or not; bar: its t interval over seeds, cut at 0 and 1; small marks: each seed" : "the one seed; bar: interval over sequences"}. Models at one length are set side by side. Lengths right of the dashed line were never trained on.${rows.some(pale) ? " Where a model’s positions are learned they keep their initial values there: such lengths are drawn pale and say nothing of the model." : ""}`, "h4"),
    legend([...d.models.map((m) => [rows.some((b) => b.model === m && pale(b)) ? `${m} (${untrained(d.cells.filter((c) => c.model === m))})` : m, d.hue(m), "line"]), ["trained length", GREY, "dash"], hollow]),
    panels(metrics.map((metric) => panel([el("b", {}, ACCURACY[metric]), dim(` (${metric})`)], plot({
      width: fit(Math.max(346, 60 + lengths.length * (n * 6 + 12))), height: 250, marginLeft: 38, marginRight: 8,
      x: { type: "point", domain: lengths, label: "sequence length", padding: 0.6 }, y: { domain: [0, 1], label: `accuracy, ${ACCURACY[metric]}`, grid: true },
      marks: [
        Plot.ruleX(trainedAt.filter((l) => lengths.includes(l)), { stroke: GREY, strokeDasharray: "3,3", dx: beside(n, n, 6) + 1 }),
        d.models.map((m, i) => {
          const mine = line.filter((b) => b.model === m && b.metric === metric), dx = beside(i, n, 6), hue = d.hue(m);
          const seeds = rows.filter((b) => b.model === m && b.metric === metric);
          return [
            Plot.line(mine.filter((b) => !pale(b)), { x: "length", y: "mean", dx, stroke: hue, strokeWidth: 1.5 }),
            Plot.line(mine.filter((b, j) => pale(b) || (mine[j + 1] && pale(mine[j + 1]))), { x: "length", y: "mean", dx, stroke: hue, strokeWidth: 1, strokeOpacity: 0.35 }),
            Plot.ruleX(mine, { x: "length", y1: "low", y2: "high", dx, stroke: hue, strokeWidth: 2.5, strokeOpacity: (b) => (pale(b) ? 0.15 : 0.55) }),
            Plot.dot(seeds, { x: "length", y: "accuracy", dx, stroke: hue, strokeWidth: 1, opacity: (b) => (pale(b) ? 0.3 : 1), fill: (b) => fillOf(b, hue), r: 2.2, title: (b) => `${who(d, b)}, length ${b.length}\n${ACCURACY[metric]} right: ${num(b.accuracy, 3)} ${range(b.low, b.high, num, 3)}\n${b.n} sequences${paleHint(b)}` }),
            Plot.dot(mine, { x: "length", y: "mean", dx, symbol: DASHED, stroke: hue, strokeWidth: 2, r: 4, strokeOpacity: (b) => (pale(b) ? 0.3 : 1), title: (b) => `${m} on ${d.task}, length ${b.length}\n${ACCURACY[metric]} right: ${num(b.mean, 3)} ${range(b.low, b.high, num, 3)}\n${b.n_seeds > 1 ? `mean of ${b.n_seeds} seeds, ` : "one seed, "}${bars(b)}${paleHint(b)}` }),
          ];
        }),
      ],
    })))),
    folded("Behaviour as a table", () => table([
      { name: "Model", class: "whole", value: (b) => b.model }, { name: "Right on", value: (b) => ACCURACY[b.metric] || b.metric }, { name: "Length", num: true, value: (b) => b.length },
      { name: "Accuracy", num: true, value: (b) => estimate(b.mean, b.low, b.high) }, { name: "Interval", value: (b) => `${bars(b)}${pale(b) ? "; untrained positions" : ""}` },
      { name: "Each seed", value: (b) => rows.filter((r) => r.model === b.model && r.length === b.length && r.metric === b.metric).map((r) => num(r.accuracy, 3)).join(", ") },
    ], line)));
}

function probes(d) {
  const rows = d.rows("probes").map((r) => ({ ...r, base: d3.max(NO_MODEL, (b) => r[`baseline_${b}`]) ?? null })), profiles = records(d.s.profiles, (c, i) => c.task[i] === d.task);
  if (!rows.length) return null;
  const labels = unique(rows.map((r) => r.label));
  const others = (r) => Object.keys(BASELINE).map((b) => `${BASELINE[b]} ${num(r[`baseline_${b}`], 3)}${b === "control" ? ` ${range(r.control_low, r.control_high, num, 3)}` : b === "shuffled" ? ` ${range(r.shuffled_low, r.shuffled_high, num, 3)}` : ""}`);
  return el("div", {},
    heading("Where the state shows: a linear probe at every layer", "A linear classifier is trained on frozen activations to say the state, at the embedding output (E) and after every block, and tested on other sequences. A probe above the best baseline without a model and above the untrained model’s says that the state is readable there, and no more than that; where the control task (random labels by token and position) is learned as well, memorising would do. Depth centre: the mean depth at which the probe gains over its best baseline without a model, 0 = embedding output, 1 = last block; last-block share: the part of that gain made by the last block. Both are means over the seeds shown at one length, with their t interval cut at 0 and 1; a single seed has none, and where the probe hardly gains there is no value. " + shownAt, "h4"),
    legend([["probe, with interval over sequences", INK, "dot"], hollow, ["best baseline without a model (majority, position, token, token pair)", GREY, "line"], ["the same probe on the untrained model", INK, "dash"], ["control task: random labels", GREY, "dots"]]),
    choose([{ label: "Label", options: labels.map((l) => [l, l]) }], ([label]) => byFamily(d, rows.filter((r) => r.label === label), (mine, model) => {
      const hue = d.hue(model), layers = unique(mine.map((r) => r.layer)), n = seedsOf(mine).length;
      return plot({
        width: panelWidth(layers.length, n, 8, 64), height: 210, marginLeft: 38, marginRight: 8,
        x: { type: "point", padding: 0.5, label: "block", tickFormat: blocks, domain: layers.sort((a, b) => a - b) }, y: { domain: [0, 1], label: `probe accuracy, ${label}`, grid: true },
        marks: bySeed(mine, (seed, i) => {
          const dx = beside(i, n, 6);
          return [
            Plot.line(seed, { x: "layer", y: "base", dx, stroke: GREY, strokeWidth: 1.2 }),
            Plot.line(seed, { x: "layer", y: "baseline_control", dx, stroke: GREY, strokeWidth: 1.2, strokeDasharray: "1.5,3" }),
            Plot.line(seed, { x: "layer", y: "baseline_untrained", dx, stroke: hue, strokeDasharray: "4,3" }),
            Plot.ruleX(seed, { x: "layer", y1: "low", y2: "high", dx, stroke: hue, strokeWidth: 1.5 }),
            Plot.line(seed, { x: "layer", y: "accuracy", dx, stroke: hue, strokeWidth: n > 1 ? 1 : 2 }),
            Plot.dot(seed, { x: "layer", y: "accuracy", dx, stroke: hue, fill: (r) => fillOf(r, hue), r: n > 1 ? 2.5 : 3.5, title: (r) => `${who(d, r)}, ${place(r.layer)}\nprobe for ${label}: ${num(r.accuracy, 3)} ${range(r.low, r.high, num, 3)}\n${others(r).join("\n")}` }),
          ];
        }),
      });
    }, (_, model) => {
      const of = (p, name) => `${num(p[name])} ${range(p[`${name}_low`], p[`${name}_high`])}`.trim();
      return profiles.filter((p) => p.model === model && p.label === label).map((p) => el("div", { class: "unbroken" },
        [`${p.learned ? "" : "not learned, "}at ${p.length}, ${plural(p.n, "seed")}:`, `depth centre ${of(p, "depth_centre")},`, `last-block share ${of(p, "last_block_share")}`].map((part) => [el("span", {}, part), " "])));
    })),
    folded(`Every probe and all its baselines as a table (${rows.length})`, () => table([
      { name: "Model", class: "whole", value: (r) => r.model }, { name: "Seed", num: true, value: (r) => r.seed }, { name: "Label", value: (r) => r.label }, { name: "Block", num: true, value: (r) => blocks(r.layer) },
      { name: "Probe", num: true, value: (r) => estimate(r.accuracy, r.low, r.high) },
      ...Object.entries(BASELINE).map(([b, name]) => ({ name, num: true, value: (r) => num(r[`baseline_${b}`], 3) })),
    ], rows)));
}
