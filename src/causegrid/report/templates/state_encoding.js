// State encoding: what was trained, behaviour by length, where the state shows, what removing it does.
const FAMILY = { transformer: "#0072b2", mamba: "#d55e00", mamba2: "#c48a00", lstm: "#009e73", gru: "#8e63b5" };
const ACCURACY = { token: "every token", strict: "whole sequence", last: "last token" };
const READING = {
  "candidate necessary": ["#0072b2", "the fresh probe is at its baseline and the task falls below every random subspace"],
  "readable, not used": ["#b3367a", "the fresh probe is at its baseline and the task holds: the direction was readable, the model does without it"],
  "test void": ["#c48a00", "the fresh probe still reads the state: it was not removed, so the task’s accuracy says nothing"],
  inconclusive: ["#5d6675", "an interval is too wide to say"],
  "not readable": ["#a9b2bf", "the first probe was at its baseline already: nothing to erase"],
};

function stateEncoding(s, root) {
  const cells = s.cells.map((c, i) => ({ ...c, i }));
  if (!cells.length) return;
  const of = (columns) => records(columns).map((r) => ({ ...r, ...cells[r.cell] , length: r.length, low: r.low, high: r.high }));
  const data = { cells, behaviour: of(s.behaviour), probes: of(s.probes), erasure: of(s.erasure) };
  data.tasks = unique(cells.map((c) => c.task));
  data.models = [...Object.keys(FAMILY), ...unique(cells.map((c) => c.model))].filter((m, i, all) => all.indexOf(m) === i && cells.some((c) => c.model === m));
  data.seeds = unique(cells.map((c) => c.seed)).sort((a, b) => a - b);
  data.hue = (model) => FAMILY[model] || HUES[data.models.indexOf(model) % HUES.length];
  root.append(drawn(() => trained(data)), drawn(() => behaviour(data)), drawn(() => probes(data)), drawn(() => erasures(data)));
}

const shownAt = "A cell that learned to a shorter length than the trained one is shown at that length.";
const learnedKind = (c) => (c.learned === "learned" ? "learned" : c.learned === "not learned" ? "not-learned" : "partly");
const at = (d, c, length, metric = "token") => d.behaviour.find((b) => b.cell === c.i && b.length === length && b.metric === metric);
const blocks = (l) => (l < 0 ? "E" : String(l));
const place = (l) => (l < 0 ? "embedding output" : `block ${l}`);
const seedOf = (d, r) => (d.seeds.length > 1 ? `, seed ${r.seed}` : "");

// `mamba`, with what was learned where that is not all of it.
function family(d, task, model) {
  const mine = d.cells.filter((c) => c.task === task && c.model === model), learned = mine.filter((c) => c.learned === "learned").length;
  return [el("b", { style: `color:${d.hue(model)}` }, model), learned < mine.length ? [" ", result(mine, "learned")] : null];
}

// One badge for the seeds of a family on a task.
function result(mine, word = "") {
  const said = unique(mine.map((c) => c.learned)), k = mine.filter((c) => c.learned === "learned").length;
  if (said.length === 1 && (k === 0 || mine.length === 1)) return badge(said[0], learnedKind(mine[0]));
  return badge(`${k} of ${plural(mine.length, "seed")} ${word}`.trim(), k === mine.length ? "learned" : k || mine.some((c) => learnedKind(c) === "partly") ? "partly" : "not-learned");
}

function trained(d) {
  const lengths = unique(d.cells.map((c) => c.trained)), far = d3.max(d.behaviour, (b) => b.length);
  const note = `Each model was trained from scratch on sequences of at most ${lengths.join(" or ")} tokens and tested on new ones. “Learned” means a token accuracy of at least 0.99 at every length up to the trained one. A family that did not learn within the steps given is a result and stays on the page; its state measures say little.`;
  const depth = "Depth centre: the mean depth at which the probe gains over its baseline, 0 = embedding output, 1 = last block. Last-block share: the part of that gain made by the last block. Both are left empty where the probe hardly gains.";
  const each = table([
    { name: "Task", value: (c) => c.task },
    { name: "Model", value: (c) => c.model },
    d.seeds.length > 1 ? { name: "Seed", num: true, value: (c) => c.seed } : null,
    { name: "Result", value: (c) => badge(c.learned, learnedKind(c)) },
    { name: "Parameters", num: true, value: (c) => c.n_params?.toLocaleString("en") },
    { name: "Steps", num: true, value: (c) => c.steps },
    { name: `Token accuracy at ${lengths.length > 1 ? "trained length" : lengths[0]}`, num: true, value: (c) => { const b = at(d, c, c.trained); return b && estimate(b.accuracy, b.low, b.high); } },
    far > d3.max(lengths) ? { name: `at ${far}`, num: true, value: (c) => { const b = at(d, c, far); return b && estimate(b.accuracy, b.low, b.high); } } : null,
    { name: "Depth centre", num: true, value: (c) => num(c.depth_centre) },
    { name: "Last-block share", num: true, value: (c) => num(c.last_block_share) },
  ].filter(Boolean), d.cells);
  if (d.seeds.length < 2) return el("div", {}, heading("What was trained", `${note} ${depth}`), each);
  const span = (values, digits) => {
    const some = values.filter(known);
    return some.length ? el("span", {}, num(d3.median(some), digits), " ", dim(`(${num(d3.min(some), digits)} to ${num(d3.max(some), digits)})`)) : "–";
  };
  const groups = d.tasks.flatMap((task) => d.models.map((model) => d.cells.filter((c) => c.task === task && c.model === model))).filter((g) => g.length);
  return el("div", {}, heading("What was trained", `${note} ${depth} Numbers are the median over seeds, with the lowest and the highest seed.`), table([
    { name: "Task", value: (g) => g[0].task },
    { name: "Model", value: (g) => g[0].model },
    { name: "Learned", value: (g) => result(g) },
    { name: "Parameters", num: true, value: (g) => g[0].n_params?.toLocaleString("en") },
    { name: "Steps", num: true, value: (g) => span(g.map((c) => c.steps), 0) },
    { name: `Token accuracy at ${lengths.length > 1 ? "trained length" : lengths[0]}`, num: true, value: (g) => span(g.map((c) => at(d, c, c.trained)?.accuracy), 3) },
    far > d3.max(lengths) ? { name: `at ${far}`, num: true, value: (g) => span(g.map((c) => at(d, c, far)?.accuracy), 3) } : null,
    { name: "Depth centre", num: true, value: (g) => span(g.map((c) => c.depth_centre), 2) },
    { name: "Last-block share", num: true, value: (g) => span(g.map((c) => c.last_block_share), 2) },
  ].filter(Boolean), groups), el("details", {}, el("summary", {}, `Every cell (${d.cells.length})`), each));
}

function behaviour(d) {
  if (!d.behaviour.length) return el("div");
  const metrics = Object.keys(ACCURACY).filter((m) => d.behaviour.some((b) => b.metric === m));
  const wide = d.tasks.length < 3 ? 500 : 334;
  return el("div", {},
    heading("Behaviour by length", `Share of answers that are right on new sequences, at the trained length (dashed line) and beyond. Bars: intervals over sequences${d.seeds.length > 1 ? "; one thin line per seed" : ""}. Points at one length are set side by side.`),
    legend([...d.models.map((m) => [m, d.hue(m), "line"]), ["trained length", GREY, "dash"]]),
    choose([{ label: "Right on", options: metrics.map((m) => [m, ACCURACY[m]]) }], ([metric]) => panels(d.tasks.map((task) => {
      const rows = d.behaviour.filter((b) => b.task === task && b.metric === metric);
      const lengths = unique(rows.map((b) => b.length)).sort((a, b) => a - b), n = d.models.length, thin = d.seeds.length > 1;
      return panel(el("b", {}, task), plot({
        width: fit(wide), height: 250, marginLeft: 40, marginRight: 16,
        x: { label: "sequence length", ticks: lengths, tickFormat: "d", inset: 12 }, y: { domain: [0, 1], label: "accuracy", grid: true },
        marks: [
          Plot.ruleX(unique(rows.map((b) => b.trained)), { stroke: GREY, strokeDasharray: "3,3" }),
          d.models.map((m, i) => {
            const mine = rows.filter((b) => b.model === m), dx = beside(i, n, 4), hue = d.hue(m);
            return [
              Plot.ruleX(mine, { x: "length", y1: "low", y2: "high", dx, stroke: hue, strokeOpacity: thin ? 0.45 : 0.8, strokeWidth: thin ? 1 : 1.5 }),
              Plot.line(mine, { x: "length", y: "accuracy", z: "seed", dx, stroke: hue, strokeWidth: thin ? 1 : 2, strokeOpacity: thin ? 0.75 : 1 }),
              Plot.dot(mine, { x: "length", y: "accuracy", dx, fill: hue, r: thin ? 2 : 3, title: ((b) => `${b.model} on ${b.task}${seedOf(d, b)}, length ${b.length}\n${ACCURACY[metric]} right: ${num(b.accuracy, 3)} ${range(b.low, b.high, num, 3)}\n${b.n} sequences`) }),
            ];
          }),
        ],
      }));
    }))));
}

// The rows of a task at the length each cell is shown at, a panel per family.
function byFamily(d, rows, task, draw) {
  const mine = rows.filter((r) => r.task === task && r.length === d.cells[r.cell].length);
  return panels(d.models.filter((m) => mine.some((r) => r.model === m)).map((model) => {
    return panel(family(d, task, model), draw(mine.filter((r) => r.model === model), model));
  }));
}
const panelWidth = (d, rows, perSeed) => fit(48 + unique(rows.map((r) => r.layer)).length * Math.max(32, d.seeds.length * perSeed));

function probes(d) {
  if (!d.probes.length) return el("div");
  const labels = unique(d.probes.map((p) => `${p.task}\u0000${p.label}`)), several = (task) => labels.filter((l) => l.startsWith(`${task}\u0000`)).length > 1;
  return el("div", {},
    heading("Where the state shows: a linear probe at every layer", "A linear classifier is trained on frozen activations to say the state, at the embedding output (E) and after every block, and tested on other sequences. A probe above both its lines says that the state is readable there, and no more than that. " + shownAt),
    legend([["probe, with interval", INK, "dot"], ["best baseline without a model (majority, position, token, token pair)", GREY, "line"], ["the same probe on the untrained model", INK, "dash"]]),
    choose([{ label: "State", options: labels.map((l) => { const [task, label] = l.split("\u0000"); return [l, several(task) ? `${task}: ${label}` : task]; }) }], ([which]) => {
      const [task, label] = which.split("\u0000");
      return byFamily(d, d.probes.filter((p) => p.label === label), task, (rows, model) => {
        const hue = d.hue(model), n = d.seeds.length, thin = n > 1;
        return plot({
          width: panelWidth(d, rows, 8), height: 220, marginLeft: 34, marginRight: 10,
          x: { label: "block", tickFormat: blocks, ticks: unique(rows.map((r) => r.layer)), inset: 12 + 2 * n }, y: { domain: [0, 1], label: "probe accuracy", grid: true },
          marks: d.seeds.map((seed, i) => {
            const mine = rows.filter((r) => r.seed === seed), dx = beside(i, n, 4);
            return [
              Plot.line(mine, { x: "layer", y: "base", dx, stroke: GREY, strokeWidth: 1.5 }),
              Plot.line(mine, { x: "layer", y: "baseline_untrained", dx, stroke: hue, strokeDasharray: "2,3" }),
              Plot.ruleX(mine, { x: "layer", y1: "low", y2: "high", dx, stroke: hue, strokeWidth: 1.5 }),
              Plot.line(mine, { x: "layer", y: "accuracy", dx, stroke: hue, strokeWidth: thin ? 1 : 2 }),
              Plot.dot(mine, { x: "layer", y: "accuracy", dx, fill: hue, r: thin ? 2.5 : 3.5, title: ((r) => `${model} on ${task}${seedOf(d, r)}, ${place(r.layer)}\nprobe for ${label}: ${num(r.accuracy, 3)} ${range(r.low, r.high, num, 3)}\nbest baseline without a model ${num(r.base, 3)}\nuntrained model ${num(r.baseline_untrained, 3)}\nrandom labels (control task) ${num(r.baseline_control, 3)}`) }),
            ];
          }),
        });
      });
    }));
}

function erasures(d) {
  if (!d.erasure.length) return el("div");
  const hue = (r) => (READING[r.reading] || [GREY])[0];
  const present = Object.keys(READING).filter((k) => d.erasure.some((e) => e.reading === k));
  const box = el("div", {},
    heading("What removing it does: erasure, with the probe refitted", "At one block’s output the directions the probe reads are erased, around the mean of the training activations. Two questions follow. Does the task fall (dot), below what erasing random subspaces of the same size does (grey bar)? And is the state gone: is a fresh probe, trained on the erased activations (diamond), down at the baseline without a model (short line)? While it is not, the test is void whatever the task did. Each reading needs both answers:"),
    el("dl", { class: "meanings" }, present.map((k) => [el("dt", {}, badge(k)), el("dd", {}, READING[k][1])])),
    legend([["task accuracy with the erasure, interval", INK, "dot"], ["fresh probe, interval", INK, "diamond"], [`task accuracy under ${unique(d.erasure.map((e) => e.n_control)).join(" or ")} random subspaces, lowest to highest`, PALE, "bar"], ["baseline of the probe", INK, "tick"]]));
  for (const task of d.tasks.filter((t) => d.erasure.some((e) => e.task === t))) {
    const mine = d.erasure.filter((e) => e.task === task), full = d3.max(mine.filter((e) => e.full), (e) => e.rank);
    const size = (k) => (k === full ? (k === 1 ? "the one direction it reads" : `all ${k} directions it reads`) : plural(k, "leading direction"));
    const ranks = unique(mine.map((e) => e.rank)).sort((a, b) => a - b);
    box.append(el("h4", {}, `${task}${ranks.length === 1 ? `: ${size(ranks[0])} erased` : ""}`), choose([{ label: "Erased", options: ranks.map((k) => [k, size(k)]) }], ([rank]) => byFamily(d, mine.filter((e) => e.rank === rank), task, (rows, model) => {
      const n = d.seeds.length, step = 16;
      return plot({
        width: panelWidth(d, rows, 20), height: 225, marginLeft: 34, marginRight: 8,
        x: { label: "block", tickFormat: blocks, ticks: unique(rows.map((r) => r.layer)), inset: 12 + (n * step) / 2 }, y: { domain: [0, 1], label: "accuracy", grid: true },
        marks: d.seeds.map((seed, i) => {
          const shown = rows.filter((r) => r.seed === seed), dx = beside(i, n, step), left = dx - 3.5, right = dx + 3.5;
          return [
            Plot.ruleX(shown, { x: "layer", y1: (r) => Math.min(r.control_low, r.control_high - 0.012), y2: "control_high", dx: left, stroke: PALE, strokeWidth: 7 }),
            Plot.dot(shown, { x: "layer", y: "baseline", dx, symbol: { draw: (c, s) => { const w = Math.sqrt(s); c.moveTo(-w, 0); c.lineTo(w, 0); } }, stroke: INK, strokeWidth: 1.3, r: 6 }),
            Plot.ruleX(shown, { x: "layer", y1: "low", y2: "high", dx: left, stroke: hue, strokeWidth: 1.5 }),
            Plot.ruleX(shown, { x: "layer", y1: "refit_low", y2: "refit_high", dx: right, stroke: hue, strokeWidth: 1.2 }),
            Plot.dot(shown, { x: "layer", y: "refit", dx: right, symbol: "diamond", stroke: hue, fill: "white", r: 4, strokeWidth: 1.5 }),
            Plot.dot(shown, { x: "layer", y: "accuracy", dx: left, fill: hue, r: 3.5, title: ((r) => `${model} on ${task}${seedOf(d, r)}, ${place(r.layer)}: ${r.reading}\ntask ${num(r.accuracy, 3)} ${range(r.low, r.high, num, 3)}, untouched ${num(r.clean, 3)}\n${r.n_control} random subspaces ${num(r.control_low, 3)} to ${num(r.control_high, 3)}\nfirst probe ${num(r.probe, 3)}, fresh probe ${num(r.refit, 3)} ${range(r.refit_low, r.refit_high, num, 3)}\nbaseline ${num(r.baseline, 3)}, fresh probe after a random subspace ${num(r.refit_control, 3)}`) }),
          ];
        }),
      });
    })));
  }
  box.append(el("details", {}, el("summary", {}, `Every erasure as a table (${d.erasure.length})`), table([
    { name: "Task", value: (r) => r.task }, { name: "Model", value: (r) => r.model }, d.seeds.length > 1 ? { name: "Seed", num: true, value: (r) => r.seed } : null,
    { name: "Length", num: true, value: (r) => r.length }, { name: "Block", num: true, value: (r) => blocks(r.layer) }, { name: "Rank", num: true, value: (r) => r.rank },
    { name: "Task untouched", num: true, value: (r) => num(r.clean, 3) }, { name: "Task erased", num: true, value: (r) => estimate(r.accuracy, r.low, r.high) },
    { name: "Random subspaces", num: true, value: (r) => `${num(r.control_low)} to ${num(r.control_high)}` },
    { name: "Fresh probe", num: true, value: (r) => estimate(r.refit, r.refit_low, r.refit_high) },
    { name: "Baseline", num: true, value: (r) => num(r.baseline) }, { name: "Reading", value: (r) => badge(r.reading) },
  ].filter(Boolean), d.erasure)));
  return box;
}
