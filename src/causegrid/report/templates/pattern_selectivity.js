// Pattern selectivity: per cell the verdicts, the matched-random nulls, every head alone, the participation ratios.
const VERDICT = {
  primary: ["cause", "a significant cause: the largest harm of the groups listed"],
  "co-primary": ["cause", "significant, and not distinguishable from the largest"],
  secondary: ["some", "a significant cause, smaller than the primary"],
  interferer: ["harm", "removing it helps the task, and its heads alone confirm it"],
  "interferer (joint)": ["harm", "removing it helps the task, but not head by head"],
  correlate: ["show", "attends as its screen says, and removing it does about nothing"],
  null: ["none", "removing it does about nothing, and no pattern is known"],
  inconclusive: ["none", "not significant, and the interval is too wide to call the effect nothing"],
  descriptive: ["none", "shown, not ranked: it is no rival of the other groups"],
  saturated: ["none", "the group and its random draws both remove all there is to remove"],
  "no headroom": ["none", "the untouched model is so good that help could not show"],
  "unreliable null": ["none", "it would be significant, but random draws alone wreck the task"],
  "not testable": ["none", "the untouched model does not do the task"],
  "not testable (draws)": ["none", "too few distinct random draws for the corrected p to reach the level asked"],
};
const MARK = {
  "margin-not-argmax": "the margin falls, the most likely token hardly changes", "argmax-not-margin": "the most likely token changes, the margin hardly does",
  "constant writer": "an effect under zero ablation, none under mean ablation: the heads add a constant",
  redundant: "the group does much more than its heads one by one", "breaks ordinary text": "ordinary text suffers too: no task circuit",
  contaminated: "draws may hold heads of competing groups", "pattern unknown": "no pattern score to tell correlate from null",
};
const OPEN = 3; // so many cells are drawn at once; the others when they are opened
const ruling = (v) => badge(v, (VERDICT[v] || ["none"])[0]);
const short = (text) => (text.length > 17 ? `${text.slice(0, 16)}…` : text);
const hueOf = (c) => (group) => (c.rivals.includes(group) ? HUES[c.rivals.indexOf(group) % HUES.length] : GREY);

function patternSelectivity(s, root, run) {
  const cells = s.cells.map(unpacked);
  if (cells.length > 1) root.append(drawn(() => overview(cells, run)));
  cells.forEach((c, i) => {
    const box = el("details", { class: "cell", id: `cell-${run}-${i}` }, el("summary", {}, el("h3", {}, `${c.task} on ${c.model}`, dim(` seed ${c.seed}`))));
    const fill = () => box.childNodes.length < 2 && box.append(...[intro, verdicts, nulls, alone, modes, spectrum, more].map((part) => drawn(() => part(c))));
    box.addEventListener("toggle", () => box.open && fill());
    addEventListener("beforeprint", () => (box.open = true) && fill());
    root.append(box);
    if (i < OPEN) { box.open = true; fill(); }
  });
}

// The cell with its tables as rows, the metric that decides and the groups that compete.
function unpacked(c) {
  const t = Object.fromEntries(["verdicts", "effects", "singles", "notes", "groups", "screens", "spectrum", "text", "examples"].map((k) => [k, records(c[k])]));
  const has = (m) => t.verdicts.some((v) => v.metric === m && known(v.effect));
  const order = c.rules === "paper" ? ["top1", "logit_diff"] : ["logit_diff", "top1"];
  const decides = order.find(has) || order[0];
  const metrics = order.filter(has);
  const rivals = unique(t.verdicts.filter((v) => v.kind === "competing").map((v) => v.group));
  return { ...c, ...t, decides, metrics, rivals, main: t.verdicts.filter((v) => v.metric === decides) };
}

function overview(cells, run) {
  const link = (c) => {
    const id = `cell-${run}-${cells.indexOf(c)}`, a = el("a", { href: `#${id}` }, c.model);
    a.onclick = () => { document.getElementById(id).open = true; };
    return a;
  };
  return el("div", {}, heading("All cells", "The verdict on each competing group, with its effect and its interval. Every cell follows below; the model’s name leads there."), table([
    { name: "Task", value: (c) => c.task }, { name: "Model", class: "whole", value: (c) => link(c) }, { name: "Seed", num: true, value: (c) => c.seed },
    { name: "Untouched model", num: true, value: (c) => measuredMean(c) },
    { name: "Verdicts", value: (c) => el("div", { class: "verdicts" }, c.main.filter((v) => v.kind === "competing").map((v) => el("span", {}, v.group, " ", ruling(v.combined), " ", dim(effect(v))))) },
  ], cells));
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
    el("p", { class: "note" }, `The untouched model on ${f.n_measured_on ?? "?"} prompts: ${said.join("; ") || "not recorded"} (± standard error). Heads were chosen by their attention on ${f.n_chosen_on ?? "?"} other prompts. Ablation: ${c.modes[0]}. Rules: ${chosen}. BOS token: ${f.bos ?? "?"}.`));
}

function verdicts(c) {
  if (!c.main.length) return el("p", { class: "dim" }, "There are no verdicts in this cell.");
  const m = METRIC[c.decides], other = c.metrics.find((x) => x !== c.decides);
  const onOther = (v) => c.verdicts.find((w) => w.group === v.group && w.metric === other);
  const seen = Object.keys(VERDICT).filter((k) => c.verdicts.some((v) => v.combined === k || v.verdict === k));
  const marks = Object.keys(MARK).filter((k) => c.verdicts.some((v) => (v.marks || []).includes(k)));
  const marksOf = (v) => [...(v.marks || []).map((k) => [k, k]), ...((other && onOther(v)?.marks) || []).filter((k) => !(v.marks || []).includes(k)).map((k) => [k, `${k} (${METRIC[other].name})`])];
  const reason = (v) => el("div", { class: "why" }, el("span", { class: "heads" }, (v.heads || []).join(" ")), " ", v.reason, marksOf(v).map(([k, text]) => [" ", el("span", { class: "mark", title: MARK[k] }, text)]));
  return el("div", {}, heading("Verdicts", `A group of heads is a cause when ablating it does what ablating equally many other heads of the same layers does not. p is two-sided against those random draws; Holm’s correction is over the ${plural(c.rivals.length, "competing group")}, which share no head. Specificity: the group’s effect over that of its random draws; 3 × is asked. Other groups are described, not ranked.`, "h4"),
    table([
      { name: "Group", value: (v) => el("b", {}, v.group) },
      { name: "Verdict", value: (v) => ruling(v.combined) },
      { name: m.head, num: true, value: (v) => effect(v, "") },
      { name: "Random draws", num: true, title: "the matched-random null: mean ± standard deviation (number of draws)", value: (v) => (v.n_null ? `${signed(v.null_mean * m.scale, m.digits)} ± ${num(v.null_sd * m.scale, m.digits)} (${v.n_null})` : "none") },
      { name: "p", num: true, value: (v) => (v.n_null ? pvalue(v.p) : "–") },
      { name: "p Holm", num: true, value: (v) => (v.n_null ? pvalue(v.p_holm) : "–") },
      { name: "Least p", num: true, title: "the smallest p this many draws can give", value: (v) => (v.n_null ? pvalue(v.p_min) : "–") },
      { name: "Specificity", num: true, value: (v) => (known(v.specificity) && v.n_null ? `${num(v.specificity, 1)} ×` : "–") },
      other ? { name: METRIC[other].head, num: true, value: (v) => { const w = onOther(v); return w ? effect(w, "") : "–"; } } : null,
      other ? { name: `By ${METRIC[other].name}`, title: `the verdict if ${METRIC[other].name} decided`, value: (v) => { const w = onOther(v); return w ? (w.verdict === v.combined ? dim(w.verdict) : ruling(w.verdict)) : "–"; } } : null,
    ].filter(Boolean), c.main, reason),
    el("details", {}, el("summary", {}, "What the words mean"), el("dl", { class: "meanings" }, seen.map((k) => [el("dt", {}, ruling(k)), el("dd", {}, VERDICT[k][1])]), marks.map((k) => [el("dt", {}, el("span", { class: "mark" }, k)), el("dd", {}, MARK[k])]))));
}

function nulls(c) {
  const groups = unique([...c.rivals, ...Object.keys(c.nulls[c.decides] || {})]);
  if (!groups.length) return el("div");
  const strip = (metric) => {
    const m = METRIC[metric], rows = c.verdicts.filter((v) => v.metric === metric && groups.includes(v.group) && known(v.effect));
    const ticks = groups.flatMap((g) => (c.nulls[metric]?.[g] || []).filter(known).map((v) => ({ group: g, v: v * m.scale })));
    const dots = rows.map((v) => ({ ...v, x: v.effect * m.scale, lo: v.low * m.scale, hi: v.high * m.scale, same: known(v.excess) && known(v.null_mean) ? (v.excess + v.null_mean) * m.scale : null }));
    const subset = dots.filter((v) => known(v.same) && v.null_prompts && v.null_prompts < v.n);
    return plot({
      width: fit(505), height: 46 + 42 * groups.length, marginTop: 4, marginLeft: 112, marginRight: 16, y: { label: null, domain: groups, tickFormat: short, tickSize: 0 }, x: { label: m.axis, grid: true, nice: true, inset: 8 },
      marks: [
        Plot.ruleX([0], { stroke: GREY }),
        Plot.tickX(ticks, { y: "group", x: "v", stroke: INK, strokeOpacity: 0.28, inset: 8 }),
        Plot.ruleY(dots, { y: "group", x1: "lo", x2: "hi", stroke: ACCENT, strokeWidth: 2.5 }),
        Plot.dot(subset, { y: "group", x: "same", stroke: ACCENT, fill: "white", r: 4, strokeWidth: 1.5 }),
        Plot.dot(dots, { y: "group", x: "x", fill: ACCENT, r: 5, title: ((v) => `${v.group}: ${v.verdict}\n${m.name} ${effect(v)} on ${v.n} prompts${v.null_prompts && v.null_prompts < v.n && known(v.same) ? `\n${signed(v.same, m.digits)} on the ${v.null_prompts} prompts of the draws` : ""}\n${v.n_null ? `${v.n_null} draws: ${signed(v.null_mean * m.scale, m.digits)} ± ${num(v.null_sd * m.scale, m.digits)}, p ${pvalue(v.p)}, Holm ${pvalue(v.p_holm)}` : "no draws"}`) }),
      ],
    });
  };
  const said = c.notes.map((n) => `${n.group} ${n.n_null} of ${n.wanted}${n.exhaustive ? " (all there are)" : ""}${n.contaminated ? " (contaminated)" : ""}${n.stopped ? " (stopped early: plainly within chance)" : n.why ? ` (${n.why})` : ""}`);
  const subset = d3.max(c.main, (v) => v.null_prompts), all = d3.max(c.main, (v) => v.n);
  return el("div", {}, heading("Each group beside its matched-random null", `A thin line is one random draw: as many other heads of the same layers, ablated the same way${subset && subset < all ? `, on ${subset} of the prompts. The open dot is the group on those same prompts` : ""}. The dot with its interval is the group${subset && subset < all ? ` on all ${all}` : ""}. Left of 0 is harm.${said.length ? ` Draws: ${said.join("; ")}.` : ""}`, "h4"),
    legend([["group, interval over prompts", ACCENT, "dot"], subset && subset < all ? ["group on the draws’ prompts", ACCENT, "ring"] : null, ["one random draw", GREY, "tick2"]].filter(Boolean)),
    el("div", { class: "panels" }, c.metrics.map((m) => panel(el("b", {}, METRIC[m].name), strip(m)))));
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

function modes(c) {
  const rows = c.effects.filter((e) => e.metric === c.decides && known(e.effect)), groups = unique(rows.map((e) => e.group)), kinds = unique(rows.map((e) => e.mode)), m = METRIC[c.decides];
  if (kinds.length < 2) return el("div");
  const hue = (mode) => HUES[kinds.indexOf(mode)];
  return el("div", {}, heading("The same groups under each ablation", "zero: the heads’ output is set to 0. mean: to its mean over other prompts of the task. resample: to that of another prompt. Where zero and mean differ, the heads add a constant, and the effect under zero is that constant’s. Bars: intervals over prompts.", "h4"),
    legend(kinds.map((k) => [k, hue(k)])),
    plot({
      width: fit(620), height: 46 + 36 * groups.length, marginTop: 4, marginLeft: 112, marginRight: 16, y: { label: null, domain: groups, tickFormat: short, tickSize: 0 }, x: { label: m.axis, grid: true, nice: true, inset: 8 },
      marks: [
        Plot.ruleX([0], { stroke: GREY }),
        kinds.map((k, i) => {
          const mine = rows.filter((e) => e.mode === k), dy = beside(i, kinds.length, 9);
          return [
            Plot.ruleY(mine, { y: "group", x1: (e) => e.low * m.scale, x2: (e) => e.high * m.scale, dy, stroke: hue(k), strokeWidth: 2 }),
            Plot.dot(mine, { y: "group", x: (e) => e.effect * m.scale, dy, fill: hue(k), r: 4, title: ((e) => `${e.group}, ${e.mode} ablation\n${m.name} ${effect(e)}`) }),
          ];
        }),
      ],
    }));
}

function spectrum(c) {
  if (!c.spectrum.length) return el("div");
  const layers = d3.max(c.spectrum, (r) => r.layer) + 1, n = d3.max(c.spectrum, (r) => r.head) + 1;
  const group = new Map(c.main.filter((v) => v.kind === "competing").flatMap((v) => v.heads.map((h) => [h, v.group])));
  const rows = c.spectrum.filter((r) => known(r.pr)).map((r) => ({ ...r, x: r.layer + beside(r.head, n, 0.8 / n), name: `L${r.layer}H${r.head}`, group: group.get(`L${r.layer}H${r.head}`) }));
  const hue = hueOf(c), marked = rows.filter((r) => r.group), rest = rows.filter((r) => !r.group);
  return el("div", {}, heading("Participation ratio of every head", "How many dimensions a head’s output spans over the prompts, at their last position (the entropy effective rank). Within a layer the heads stand side by side, 0 first. It says which heads vary with the prompt, not which matter for the task. Bars: intervals over subsamples of the prompts.", "h4"),
    legend([...c.rivals.filter((g) => marked.some((r) => r.group === g)).map((g) => [g, hue(g)]), ["every other head", GREY]]),
    plot({
      width: Math.max(fit(1060), 60 + layers * Math.max(14, 2 * n)), height: 220, marginLeft: 40, marginRight: 10, r: { type: "identity" }, x: { label: "layer", ticks: d3.range(layers), tickFormat: "d", tickSize: 0, domain: [-0.5, layers - 0.5] }, y: { label: "participation ratio", domain: [1, Math.max(2, d3.max(rows, (r) => r.high ?? r.pr))], nice: true, grid: true },
      marks: [
        Plot.ruleX(d3.range(0.5, layers - 1), { stroke: "#eef0f4" }),
        [rest, marked].map((some) => [
          Plot.ruleX(some, { x: "x", y1: "low", y2: "high", stroke: (r) => hue(r.group), strokeOpacity: (r) => (r.group ? 1 : 0.55) }),
          Plot.dot(some, { x: "x", y: "pr", fill: (r) => hue(r.group), r: (r) => (r.group ? 3 : 1.6), title: (r) => `${r.name}${r.group ? `, ${r.group}` : ""}\nparticipation ratio ${num(r.pr)} ${range(r.low, r.high)}\n${r.n} prompts` }),
        ]),
      ],
    }));
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
    { name: "Untouched", num: true, value: (t) => num(t.clean, 3) }, { name: "Ablated", num: true, value: (t) => num(t.ablated, 3) }, { name: "Increase", num: true, value: (t) => signed(t.increase, 3) },
  ], c.text) : null;
  const words = c.dropped.length ? el("p", {}, `${plural(c.dropped.length, "word")} could not be used with this tokenizer: `, c.dropped.slice(0, 200).join(", "), c.dropped.length > 200 ? ` and ${c.dropped.length - 200} more` : "", ".") : el("p", {}, "Every word of the task could be used with this tokenizer.");
  return el("details", {}, el("summary", {}, "Groups and their patterns, ordinary text, dropped words"),
    picked, text ? [el("h4", {}, "Loss on ordinary text (nats per token): a group that wrecks ordinary text is no task circuit"), text] : null, el("h4", {}, "Dropped words"), words);
}
