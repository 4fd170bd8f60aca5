// Pattern selectivity, beside the verdicts: what describes a group (unions, upper bounds, keep-only), its BOS heads,
// its effect by template variant and under each ablation.
const ROLE = {
  union: "removed together", "upper bound": "all heads of its layers removed", "keep only": "every other head removed", "picked again": "without BOS-class heads",
};

function described(c) {
  if (!c.about.length) return el("div");
  const metric = c.metrics[0] ?? c.decides, other = c.metrics[1], rows = c.about.filter((v) => v.metric === metric);
  const on = (v, m) => c.about.find((w) => w.group === v.group && w.metric === m);
  return el("div", {}, heading("What describes the groups", "Shown, not ranked: these contain groups or each other, have no random draws and are in no correction. The upper bound says what the layers’ heads do together; what is left with a group alone says whether it suffices.", "h4"), table([
    { name: "Ablated", class: "whole", value: (v) => v.group }, { name: "What", class: "whole", value: (v) => ROLE[v.role] || v.role }, { name: "Heads", num: true, value: (v) => (v.heads || []).length },
    { name: METRIC[metric].head, num: true, value: (v) => effect(v, "") },
    other ? { name: METRIC[other].head, num: true, value: (v) => { const w = on(v, other); return w ? effect(w, "") : "–"; } } : null,
    { name: "In words", class: "why", value: (v) => v.reason },
  ].filter(Boolean), rows));
}

function bosDiagnostic(c) {
  const rows = c.bos_groups.filter((g) => g.metric === c.decides), m = METRIC[c.decides], shown = (v) => (known(v) ? signed(v * m.scale, m.digits) : "–");
  if (!rows.length) return el("div");
  const heads = (g) => c.bos.filter((h) => h.group === g.group && h.metric === c.decides), any = rows.some((g) => g.n_bos);
  const list = (g) => el("div", { class: "why" }, heads(g).map((h) => [el("span", { class: h.bos ? "heads bos" : "heads", title: `${h.best_class}; ${num(h.bos_mass)} of its attention on the first token` }, h.head), ` ${effect({ ...h, metric: c.decides }, "")} `]), g.note ? dim(` Picked again: ${g.note}.`) : null);
  return el("div", {}, heading("Heads on the first token", `${any ? "Heads of the BOS class attend to the first token (30 × the background or more, on synthetic text) and write about a constant; removing them moves the model without touching the task." : "No head of these groups is of the BOS class (attention to the first token of 30 × the background or more, on synthetic text)."} Effects of single heads need not add up to the group’s. Below each group its heads, each with what removing it alone does${any ? "; BOS heads are underlined" : ""}.`, "h4"), table([
    { name: "Group", value: (g) => el("b", {}, g.group) }, { name: "BOS heads", num: true, value: (g) => `${g.n_bos} of ${g.n_heads}` },
    { name: m.head, num: true, value: (g) => effect({ ...g, metric: c.decides }, "") }, { name: "Sum of its heads alone", num: true, value: (g) => shown(g.singles_sum) },
    { name: "… of its BOS heads", num: true, value: (g) => (g.n_bos ? shown(g.bos_sum) : "–") },
    { name: "Picked again without BOS heads", num: true, value: (g) => (known(g.again_effect) ? `${effect({ metric: c.decides, effect: g.again_effect, low: g.again_low, high: g.again_high }, "")}` : "–") },
    { name: "Its heads", class: "heads", value: (g) => (g.again || []).join(" ") || "–" },
  ], rows, list));
}

function variants(c) {
  const rows = c.variants.filter((v) => v.metric === c.decides && v.mode === c.modes[0] && known(v.effect) && c.rivals.includes(v.group)), kinds = unique(rows.map((v) => v.variant)), groups = unique(rows.map((v) => v.group)), m = METRIC[c.decides];
  if (kinds.length < 2) return el("div");
  const hue = (k) => HUES[kinds.indexOf(k) % HUES.length], step = Math.min(9, 30 / kinds.length);
  return el("div", {}, heading("By kind of prompt", `The same effects on each kind of prompt of the task, ${c.modes[0]} ablation. A group that acts on one kind alone is not the task’s. Bars: intervals over the prompts of that kind.`, "h4"),
    legend(kinds.map((k) => [k, hue(k)])),
    plot({
      width: fit(620), height: 46 + 42 * groups.length, marginTop: 4, marginLeft: 112, marginRight: 16, y: { label: null, domain: groups, tickFormat: (g) => short(g), tickSize: 0 }, x: { label: m.axis, grid: true, nice: true, inset: 8 },
      marks: [
        Plot.ruleX([0], { stroke: GREY }),
        kinds.map((k, i) => {
          const mine = rows.filter((v) => v.variant === k), dy = beside(i, kinds.length, step);
          return [
            Plot.ruleY(mine, { y: "group", x1: (v) => v.low * m.scale, x2: (v) => v.high * m.scale, dy, stroke: hue(k), strokeWidth: 2 }),
            Plot.dot(mine, { y: "group", x: (v) => v.effect * m.scale, dy, fill: hue(k), r: 4, title: (v) => `${v.group}, ${v.variant}\n${m.name} ${effect(v)}\n${v.n} prompts, untouched ${num(v.baseline * m.scale, m.digits)}${m.unit}` }),
          ];
        }),
      ],
    }));
}

function modes(c) {
  const rows = c.effects.filter((e) => e.metric === c.decides && known(e.effect) && (!e.role || e.role === "group" || e.role === "union")), groups = unique(rows.map((e) => e.group)), kinds = unique(rows.map((e) => e.mode)), m = METRIC[c.decides];
  if (kinds.length < 2) return el("div");
  const hue = (mode) => HUES[kinds.indexOf(mode)];
  return el("div", {}, heading("The same groups under each ablation", "zero: the heads’ output is set to 0. mean: to its mean over other prompts of the task. resample: to that of another prompt. Where zero and mean differ, the heads add a constant, and the effect under zero is that constant’s. Bars: intervals over prompts.", "h4"),
    legend(kinds.map((k) => [k, hue(k)])),
    plot({
      width: fit(620), height: 46 + 36 * groups.length, marginTop: 4, marginLeft: 168, marginRight: 16, y: { label: null, domain: groups, tickFormat: (g) => short(g, 26), tickSize: 0 }, x: { label: m.axis, grid: true, nice: true, inset: 8 },
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
