// Pattern selectivity, the cells: what was run, every head alone, the participation ratios; verdicts and nulls are in
// pattern_verdicts.js, what describes the groups beside them in pattern_beside.js, a mixture's experts in
// pattern_experts.js, training checkpoints in pattern_checkpoints.js.
const OPEN = 3; // so many cells are drawn at once; the others when they are opened
const short = (text, n = 17) => (text.length > n ? `${text.slice(0, n - 1)}…` : text);
const hueOf = (c) => (group) => (c.rivals.includes(group) ? HUES[c.rivals.indexOf(group) % HUES.length] : GREY);

function patternSelectivity(s, root, run) {
  const cells = s.cells.map(unpacked);
  if (cells.length > 1) root.append(drawn(() => overview(cells, run)));
  cells.forEach((c, i) => {
    const box = el("details", { class: "cell", id: `cell-${run}-${i}` }, el("summary", {}, el("h3", {}, `${c.task} on ${c.model}`, dim(` seed ${c.seed}`))));
    const fill = () => box.childNodes.length < 2 && box.append(...[intro, verdicts, nulls, described, alone, bosDiagnostic, variants, modes, routing, expertsAlone, rerouted, spectrum, overTraining, more].map((part) => drawn(() => part(c))));
    box.addEventListener("toggle", () => box.open && fill());
    addEventListener("beforeprint", () => (box.open = true) && fill());
    root.append(box);
    if (i < OPEN) { box.open = true; fill(); }
  });
}

// The cell with its tables as rows, the metric that decides and the groups that compete.
function unpacked(c) {
  const t = Object.fromEntries(["verdicts", "beside", "effects", "singles", "notes", "groups", "screens", "spectrum", "text", "examples", "bos", "bos_groups", "variants", "routing", "experts", "rerouted", "checkpoints", "rest", "integrals"].map((k) => [k, records(c[k])]));
  const has = (m) => t.verdicts.some((v) => v.metric === m && known(v.effect));
  const order = c.rules === "paper" ? ["top1", "logit_diff"] : ["logit_diff", "top1"];
  const decides = order.find(has) || order[0];
  const metrics = order.filter(has);
  const rivals = unique(t.verdicts.filter((v) => v.kind === "competing").map((v) => v.group));
  const own = (v) => !v.role || v.role === "group", beside = c.rules === "paper" ? "strict" : "paper";
  return { ...c, ...t, decides, metrics, rivals, otherRules: t.beside.length ? beside : null, main: t.verdicts.filter((v) => v.metric === decides && own(v)), about: t.verdicts.filter((v) => !own(v)) };
}

function overview(cells, run) {
  const link = (c) => {
    const id = `cell-${run}-${cells.indexOf(c)}`, a = el("a", { href: `#${id}` }, c.model);
    a.onclick = () => { document.getElementById(id).open = true; };
    return a;
  };
  const split = (v) => known(v.other) && v.other !== v.combined;
  const said = (c, v) => el("span", {}, v.group, " ", ruling(v.combined), " ", dim(effect(v)), split(v) ? [" ", dim(`(${c.otherRules} rules: ${v.other})`)] : null);
  const rivals = (c) => c.main.filter((v) => v.kind === "competing");
  return el("div", {}, heading("All cells", "The verdict on each competing group, with its effect and its interval; where the other rule set says otherwise, its word is beside. Every cell follows below; the model’s name leads there."), table([
    { name: "Task", class: "whole", value: (c) => c.task }, { name: "Model", class: "whole", value: (c) => link(c) }, { name: "Seed", num: true, value: (c) => c.seed },
    { name: "Untouched model", num: true, value: (c) => measuredMean(c) },
    { name: "Verdicts", value: (c) => el("div", { class: "verdicts" }, rivals(c).map((v) => said(c, v))) },
  ], cells), folded("Every p over all cells", () => overCells(cells, rivals)));
}

// Raw p of every competing group, Holm's within its cell, Benjamini and Hochberg's over all cells, by metric.
function overCells(cells, rivals) {
  const rows = cells.flatMap((c) => c.verdicts.filter((v) => v.kind === "competing").map((v) => ({ ...v, cell: c })));
  const note = "Raw p against the random draws; Holm’s correction within the cell, by which the strict verdicts go; Benjamini and Hochberg’s over all cells of this report, per metric: of the groups called at 0.05 by it, one in twenty is expected to be false. The table is across_cells.csv.";
  return el("div", {}, el("p", { class: "note" }, note), choose([{ label: "Metric", options: unique(rows.map((v) => v.metric)).map((m) => [m, METRIC[m].name]) }], ([metric]) => table([
    { name: "Task", class: "whole", value: (v) => v.cell.task }, { name: "Model", class: "whole", value: (v) => v.cell.model }, { name: "Seed", num: true, value: (v) => v.cell.seed },
    { name: "Group", class: "whole", value: (v) => v.group }, { name: METRIC[metric].head, num: true, value: (v) => effect(v, "") },
    { name: "p", num: true, value: (v) => pvalue(v.p) }, { name: "p Holm", num: true, value: (v) => pvalue(v.p_holm) }, { name: "p BH", num: true, value: (v) => pvalue(v.p_bh) },
    { name: "Least p", num: true, value: (v) => pvalue(v.p_min) }, { name: `Verdict by ${METRIC[metric].name}`, value: (v) => ruling(v.verdict) },
  ], d3.sort(rows.filter((v) => v.metric === metric), (v) => v.p ?? 2))));
}

function effect(v, unit = METRIC[v.metric].unit) {
  const m = METRIC[v.metric], shown = (x) => signed(known(x) ? x * m.scale : null, m.digits);
  return known(v.effect) ? `${shown(v.effect)}${unit} ${range(v.low, v.high, shown)}` : "–";
}
function measuredMean(c) {
  const b = c.baseline[c.decides] || {}, m = METRIC[c.decides];
  return known(b.mean) ? `${m.name} ${num(b.mean * m.scale, m.digits)} ± ${num(b.se * m.scale, m.digits)}${m.unit}` : "–";
}

function intro(c) {
  const f = c.facts, b = c.baseline, said = [];
  const of = (metric, scale, digits, unit) => `${num(b[metric].mean * scale, digits)}${b[metric].se ? ` ± ${num(b[metric].se * scale, digits)}` : ""}${unit}`;
  if (known(b.top1?.mean)) said.push(`its most likely token is right on ${of("top1", 100, 0, " %")}`);
  if (known(b.logit_diff?.mean)) said.push(`the answer leads the foil by ${of("logit_diff", 1, 2, " logits")} (the margin)`);
  if (known(b.restricted?.mean)) said.push(`the answer is above the foil on ${of("restricted", 100, 0, " %")}`);
  const lines = c.examples.map((e) => el("p", { class: "example" }, el("q", {}, e.text), " → ", el("q", {}, e.answer.trim()), (e.foil || "").trim() ? [", not ", el("q", {}, e.foil.trim())] : null));
  const chosen = c.rules === "paper" ? "paper (top-1 decides, as published)" : `strict (${c.decides === "logit_diff" ? "the margin decides, top-1 is shown beside it" : "there is no foil, so top-1 decides"})`;
  return el("div", {}, lines,
    el("p", { class: "note" }, `The untouched model on ${f.n_measured_on ?? "?"} prompts: ${said.join("; ") || "not recorded"} (± standard error). ${f.floor ? `It fails the task’s floor: ${f.floor}. ` : ""}Heads were chosen by their attention on ${f.chosen_on_measured ? "the same prompts, as published" : `${f.n_chosen_on ?? "?"} other prompts`}. Ablation: ${c.modes[0]}. Rules: ${chosen}. BOS token: ${f.bos ?? "?"}.`));
}

function alone(c) {
  const rows = c.singles.filter((e) => e.metric === c.decides && known(e.effect)), m = METRIC[c.decides];
  const mass = new Map(c.screens.map((r) => [`${r.screen} L${r.layer}H${r.head}`, r.target_mass]));
  const screens = c.rivals.filter((g) => c.screens.some((r) => r.screen === g));
  if (!rows.length || !screens.length) return el("div");
  const heads = (g) => c.main.find((v) => v.group === g)?.heads || [], p99 = (g) => c.groups.find((r) => r.group === g)?.pattern_p99;
  return el("div", {}, heading("Selective is not causal: each head alone", "Across: how much of its attention a head gives to what the screen looks for. Up and down: what ablating that head alone does, with its interval over prompts. If selectivity were causality, the heads to the right would be the ones that leave the zero line. The dashed line is what attention to random targets reaches in 1 of 100 tries, for the group as a whole.", "h4"),
    choose([{ label: "Screen", options: screens.map((g) => [g, g]) }], ([screen]) => {
      const dots = rows.map((e) => ({ ...e, x: mass.get(`${screen} ${e.group}`), y: e.effect * m.scale, lo: e.low * m.scale, hi: e.high * m.scale, in: heads(screen).includes(e.group) })).filter((e) => known(e.x));
      const labels = apart(unique([...d3.sort(dots, (e) => -Math.abs(e.y)).slice(0, 4), ...d3.sort(dots.filter((e) => e.in), (e) => -e.x).slice(0, 5)]), 640 / (d3.max(dots, (e) => e.x) || 1), 270 / (d3.max(dots, (e) => e.hi) - d3.min(dots, (e) => e.lo) || 1));
      const hue = (e) => (e.in ? hueOf(c)(screen) : GREY), line = p99(screen);
      return el("div", {}, legend([[`heads the ${screen} screen picked`, hueOf(c)(screen)], ["other heads that were ablated alone", GREY], known(line) ? ["99th percentile of random targets", INK, "dash"] : null].filter(Boolean)), plot({
        width: fit(720), height: 330, marginLeft: 54, marginTop: 22, marginRight: 30, r: { type: "identity" }, x: { label: "attention to the screen’s target", nice: true, grid: true, inset: 8, zero: true }, y: { label: `${m.axis}, head alone`, nice: true, grid: true, inset: 6 },
        marks: [
          Plot.ruleY([0], { stroke: GREY }),
          known(line) ? Plot.ruleX([line], { stroke: INK, strokeDasharray: "3,3", strokeOpacity: 0.6 }) : null,
          Plot.ruleX(dots, { x: "x", y1: "lo", y2: "hi", stroke: hue, strokeOpacity: (e) => (e.in ? 0.8 : 0.35), strokeWidth: 1.2 }),
          Plot.dot(d3.sort(dots, (e) => e.in), { x: "x", y: "y", fill: hue, fillOpacity: (e) => (e.in ? 1 : 0.75), r: (e) => (e.in ? 4 : 3), title: (e) => `${e.group}${c.rivals.filter((g) => heads(g).includes(e.group)).map((g) => `, ${g}`).join("")}\nattention to the target ${num(e.x)}\n${m.name} ${effect(e)}` }),
          labels.map((side, i) => Plot.text(side, { x: "x", y: "y", text: "group", dx: i ? -7 : 7, dy: -7, textAnchor: i ? "end" : "start", fontSize: 10.5, fill: INK, stroke: "white", strokeWidth: 3 })),
        ],
      }));
    }));
}

// Points whose label fits to the right, and to the left; the rest go without.  x, y: pixels per unit.
function apart(points, x, y) {
  const taken = [], sides = [[], []];
  for (const p of points) {
    const side = [0, 46].findIndex((shift) => p.x * x >= shift && taken.every(([a, b]) => Math.abs(p.x * x - shift - a) > 46 || Math.abs(p.y * y - b) > 13));
    if (side < 0) continue;
    taken.push([p.x * x - (side ? 46 : 0), p.y * y]);
    sides[side].push(p);
  }
  return sides;
}

function spectrum(c) {
  const said = (r) => `participation ratio ${num(r.pr)} ${range(r.low, r.high)}\n${r.n} prompts`;
  if (!c.spectrum.length) return el("div");
  return el("div", {}, heading("Participation ratio of every head", "How many dimensions a head’s output spans over the prompts, at their last position (the entropy effective rank). Within a layer the heads stand side by side, 0 first. It says which heads vary with the prompt, not which matter for the task. Bars: intervals over subsamples of the prompts.", "h4"),
    headsByLayer(c, c.spectrum, { value: "pr", label: "participation ratio", least: 1, said }));
}

const headName = (r) => `L${r.layer}H${r.head}`;
const groupsOfHeads = (c) => new Map(c.main.filter((v) => v.kind === "competing").flatMap((v) => v.heads.map((h) => [h, v.group])));

// One number of every head with its interval, the heads of a layer side by side, those of groups in colour.
function headsByLayer(c, every, { value, label, least, said }) {
  const layers = d3.max(every, (r) => r.layer) + 1, n = d3.max(every, (r) => r.head) + 1, group = groupsOfHeads(c);
  const rows = every.filter((r) => known(r[value])).map((r) => ({ ...r, x: r.layer + beside(r.head, n, 0.8 / n), name: headName(r), group: group.get(headName(r)) }));
  const hue = hueOf(c), marked = rows.filter((r) => r.group), rest = rows.filter((r) => !r.group);
  return [
    legend([...c.rivals.filter((g) => marked.some((r) => r.group === g)).map((g) => [g, hue(g)]), ["every other head", GREY]]),
    plot({
      width: Math.max(fit(1060), 60 + layers * Math.max(14, 2 * n)), height: 220, marginLeft: 40, marginRight: 10, r: { type: "identity" }, x: { label: "layer", ticks: d3.range(layers), tickFormat: "d", tickSize: 0, domain: [-0.5, layers - 0.5] }, y: { label, domain: [least, Math.max(least + 1, d3.max(rows, (r) => r.high ?? r[value]))], nice: true, grid: true },
      marks: [
        Plot.ruleX(d3.range(0.5, layers - 1), { stroke: "#eef0f4" }),
        [rest, marked].map((some) => [
          Plot.ruleX(some, { x: "x", y1: "low", y2: "high", stroke: (r) => hue(r.group), strokeOpacity: (r) => (r.group ? 1 : 0.55) }),
          Plot.dot(some, { x: "x", y: value, fill: (r) => hue(r.group), r: (r) => (r.group ? 3 : 1.6), title: (r) => `${r.name}${r.group ? `, ${r.group}` : ""}\n${said(r)}` }),
        ]),
      ],
    }),
  ];
}

function more(c) {
  const picked = c.groups.length ? table([
    { name: "Group", class: "whole", value: (g) => g.group },
    { name: "Attention to its target", num: true, value: (g) => num(g.pattern_score, 3) },
    { name: "99 % of random targets below", num: true, value: (g) => num(g.pattern_p99, 3) },
    { name: "Pattern", value: (g) => (known(g.pattern) && known(g.pattern_score) ? (g.pattern ? "present" : "absent") : "–") },
    { name: "Heads", class: "heads", value: (g) => (g.heads || []).join(" ") || "none" },
    { name: "Note", class: "why", value: (g) => g.note || "" },
  ], c.groups) : null;
  const text = c.text.length ? table([
    { name: "Group", value: (t) => t.group }, { name: "Ablation", value: (t) => t.mode },
    { name: "Untouched", num: true, value: (t) => num(t.clean, 3) }, { name: "Ablated", num: true, value: (t) => num(t.ablated, 3) }, { name: "Increase", num: true, value: (t) => `${signed(t.increase, 3)} ${range(t.low, t.high, (v) => signed(v, 3), 1)}` },
  ], c.text) : null;
  const words = c.dropped.length ? el("p", {}, `${plural(c.dropped.length, "word")} could not be used with this tokenizer: `, c.dropped.slice(0, 200).join(", "), c.dropped.length > 200 ? ` and ${c.dropped.length - 200} more` : "", ".") : el("p", {}, "Every word of the task could be used with this tokenizer.");
  return el("details", {}, el("summary", {}, "Groups and their patterns, ordinary text, dropped words"),
    picked, text ? [el("h4", {}, "Loss on ordinary text (nats per token): a group that wrecks ordinary text is no task circuit"), c.facts.text_control ? el("p", { class: "dim" }, `Not to be read here: ${c.facts.text_control}.`) : null, text] : null, el("h4", {}, "Dropped words"), words);
}
