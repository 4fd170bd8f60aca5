// Pattern selectivity, a mixture of experts: how much each expert is used, what each does alone, and where tokens go
// when a group of heads is ablated.
const WHERE = { all: "all positions", query: "the query position" };
const wheres = (rows) => ({ label: "At", options: Object.entries(WHERE).filter(([w]) => rows.some((r) => r.where === w)) });
// The layers of a figure `width` pixels wide; a tick stands for each that has room for its number.
const layerAxis = (layers, width) => ({ label: "layer", ticks: layers.filter((_, i) => i % Math.ceil((20 * layers.length) / (width - 60)) === 0), tickFormat: "d", tickSize: 0, domain: [d3.min(layers) - 0.5, d3.max(layers) + 0.5] });
const layersOf = (rows) => d3.sort(unique(rows.map((r) => r.layer)));
const percent = (v, digits = 1) => num(known(v) ? 100 * v : null, digits);

// Rows of each layer side by side, the most used first: x is the layer's number and a step to either side of it.
function byUse(rows) {
  const n = d3.max(d3.rollup(rows, (some) => some.length, (r) => r.layer).values()), place = new Map();
  return d3.sort(rows, (r) => -(r.share ?? 0)).map((r) => {
    const at = place.get(r.layer) ?? 0;
    place.set(r.layer, at + 1);
    return { ...r, x: r.layer + beside(at, n, 0.84 / n) };
  });
}
// Pixels for a figure of so many layers with their experts side by side, `step` pixels each at least.
const expertWidth = (layers, rows, step) => Math.max(fit(1060), 60 + Math.max(16 * layers.length, step * rows.length));
const between = (layers) => Plot.ruleX(d3.range(d3.min(layers) + 0.5, d3.max(layers)), { stroke: "#eef0f4" });

function routing(c) {
  const every = c.routing.filter((r) => known(r.share));
  if (!every.length) return el("div");
  const tried = new Set(c.experts.map((e) => e.group)), name = (r) => `L${r.layer}E${r.expert}`, n = c.facts.n_measured_on, both = [...d3.rollup(every, ([r]) => r, name, (r) => r.where)];
  const kinds = { share: ["share of tokens", "low", "high", "share of tokens that chose it"], weight: ["combine weight", "weight_low", "weight_high", "mean combine weight"] };
  return el("div", {},
    heading("Where the tokens go: every expert", `How much each expert is used on the task’s prompts. Within a layer the experts stand side by side, the most used first; the black line is where each would be if tokens were spread evenly. A layer that falls steeply sends most tokens to few experts. Use says nothing of effect: that is the next figure. The combine weight counts as 0 where an expert was not chosen. Bars: intervals over ${known(n) ? n : "the"} prompts, of which each counts once.`, "h4"),
    legend([tried.size ? ["experts that were ablated alone", ACCENT] : null, [tried.size ? "every other expert" : "expert", GREY], ["spread evenly", INK, "line"]].filter(Boolean)),
    choose([wheres(every), { label: "Shown", options: Object.entries(kinds).map(([k, v]) => [k, v[0]]) }], ([where, kind]) => {
      const [, low, high, label] = kinds[kind], rows = byUse(every.filter((r) => r.where === where)), layers = layersOf(rows);
      const even = layers.map((layer) => ({ layer, y: d3.mean(rows.filter((r) => r.layer === layer), (r) => r[kind]) })).filter((r) => known(r.y)), hue = (r) => (tried.has(name(r)) ? ACCENT : GREY);
      const width = expertWidth(layers, rows, 0.95);
      return plot({
        width, height: 220, marginLeft: 44, marginRight: 10, r: { type: "identity" }, x: layerAxis(layers, width), y: { label, domain: [0, d3.max(rows, (r) => r[high] ?? r[kind]) || 1], nice: true, grid: true },
        marks: [
          between(layers),
          Plot.ruleX(rows, { x: "x", y1: low, y2: high, stroke: hue, strokeOpacity: 0.75 }),
          Plot.dot(rows, { x: "x", y: kind, fill: hue, r: Math.max(1.3, Math.min(2.4, (0.42 * (width - 60)) / rows.length)), title: (r) => `${name(r)}, ${WHERE[where]}\nshare of tokens ${num(r.share, 3)} ${range(r.low, r.high, num, 3)}\ncombine weight ${num(r.weight, 3)} ${range(r.weight_low, r.weight_high, num, 3)}` }),
          Plot.ruleY(even, { y: "y", x1: (r) => r.layer - 0.44, x2: (r) => r.layer + 0.44, stroke: INK, strokeWidth: 1.2 }),
        ],
      });
    }),
    folded(`Every expert’s use as a table (${both.length})`, () => table([
      { name: "Expert", class: "heads", value: ([of]) => of },
      ...Object.entries(kinds).flatMap(([kind, [what, low, high]]) => wheres(every).options.map(([where, at]) => ({ name: `${what[0].toUpperCase()}${what.slice(1)}, ${at}`, num: true, value: ([, rows]) => { const r = rows.get(where); return r ? [num(r[kind], 3), " ", dim(range(r[low], r[high], num, 3))] : "–"; } }))),
    ], both)));
}

function expertsAlone(c) {
  const every = c.experts.filter((e) => known(e.effect));
  if (!every.length) return el("div");
  const metrics = unique([c.decides, "logit_diff", "top1"]).filter((m) => every.some((e) => e.metric === m)), of = unique(every.map((e) => e.group)).length;
  // One expert of many does little: a digit more than a group's effect has.
  const fine = (e) => { const m = METRIC[e.metric], shown = (v) => signed(known(v) ? v * m.scale : null, m.digits + 1); return `${shown(e.effect)}${m.unit} ${range(e.low, e.high, shown)}`; };
  const nullOf = (e) => { const m = METRIC[e.metric]; return known(e.null_mean) ? `${signed(e.null_mean * m.scale, m.digits + 1)} ± ${num(known(e.null_sd) ? e.null_sd * m.scale : null, m.digits + 1)} (${e.n_null})` : `too few (${e.n_null ?? 0})`; };
  const tokens = (e) => plural(e.tokens ?? 0, "token");
  return el("div", {},
    heading("Each expert alone", `What the task loses when one expert’s output is left out of the sum, the others as they are. An expert that more tokens use does more, whatever it does, so each stands beside the others of its layer that are used about as much (share of tokens within a factor of 2); where fewer than 3 are, the dot is open and there is no p. Shown, not ranked: p is not corrected, and of ${of} experts up to one in twenty is below 0.05 by chance.`, "h4"),
    legend([["expert, interval over prompts", ACCENT, "dot"], every.some((e) => !known(e.null_mean)) ? ["too few of like use to compare", ACCENT, "ring"] : null, ["experts of like use, mean ± standard deviation", PALE, "bar"]].filter(Boolean)),
    choose([{ label: "Metric", options: metrics.map((k) => [k, METRIC[k].name]) }, { label: "Across", options: [["layer", "layer, most used first"], ["share", "use"]] }], ([metric, across]) => {
      const m = METRIC[metric], up = (v) => (known(v) ? v * m.scale : null), layered = across === "layer";
      const rows = byUse(every.filter((e) => e.metric === metric)).map((e) => ({ ...e, x: layered ? e.x : e.share, y: up(e.effect), lo: up(e.low), hi: up(e.high), near: known(e.null_mean), from: up(e.null_mean - e.null_sd), to: up(e.null_mean + e.null_sd) })), layers = layersOf(rows), width = layered ? expertWidth(layers, rows, 3) : fit(720);
      const pixels = (width - 64) / (layered ? layers.length : d3.max(rows, (e) => e.x) || 1), labelled = [];
      for (const e of d3.sort(rows.filter((e) => e.y), (e) => -Math.abs(e.y)).slice(0, 6)) if (labelled.every((l) => Math.abs(l.x - e.x) * pixels > 42 || l.y > 0 !== e.y > 0)) labelled.push(e);
      return plot({
        width, height: 270, marginLeft: 54, marginTop: 30, marginRight: layered ? 10 : 30, r: { type: "identity" }, x: layered ? layerAxis(layers, width) : { label: "share of tokens that choose it", nice: true, grid: true, inset: 8, zero: true }, y: { label: `${m.axis}, expert alone`, nice: true, grid: true, inset: 14 },
        marks: [
          layered ? between(layers) : null,
          Plot.ruleX(rows.filter((e) => e.near), { x: "x", y1: "from", y2: "to", stroke: PALE, strokeWidth: 6 }),
          Plot.ruleY([0], { stroke: GREY }),
          Plot.ruleX(rows, { x: "x", y1: "lo", y2: "hi", stroke: ACCENT, strokeWidth: 1.3 }),
          Plot.dot(rows, { x: "x", y: "y", stroke: ACCENT, fill: (e) => (e.near ? ACCENT : "white"), r: 3, title: (e) => `${e.group}: ${tokens(e)}, share ${num(e.share, 3)}\n${m.name} ${fine(e)} on ${e.n} prompts\nexperts of like use ${nullOf(e)}${known(e.p) ? `\np ${pvalue(e.p)}, least attainable ${pvalue(e.p_min)}` : ""}` }),
          [1, -1].map((side) => Plot.text(labelled.filter((e) => (e.y < 0 ? -1 : 1) === side), { x: "x", y: (e) => (side > 0 ? e.hi : e.lo) ?? e.y, text: "group", dy: -9 * side, fontSize: 10.5, fill: INK, stroke: "white", strokeWidth: 3 })),
        ],
      });
    }),
    folded(`Every expert alone as a table (${every.length})`, () => table([
      { name: "Expert", class: "heads", value: (e) => e.group }, { name: "Share of tokens", num: true, value: (e) => num(e.share, 3) }, { name: "Tokens", num: true, title: "how many of these prompts’ tokens chose it", value: (e) => e.tokens }, { name: "Metric", value: (e) => METRIC[e.metric].name },
      { name: "Effect", num: true, value: fine }, { name: "Experts of like use", num: true, title: "mean ± standard deviation (how many)", value: nullOf },
      { name: "p", num: true, value: (e) => pvalue(e.p) }, { name: "Least p", num: true, title: "the smallest p so many experts can give", value: (e) => pvalue(e.p_min) }, { name: "Prompts", num: true, value: (e) => e.n },
    ], d3.sort(every, (e) => metrics.indexOf(e.metric), (e) => e.p ?? 2, (e) => -Math.abs(e.effect)))));
}

function rerouted(c) {
  const every = c.rerouted;
  if (!every.length) return el("div");
  const kinds = unique(every.map((r) => r.mode)), m = METRIC.logit_diff, hue = hueOf(c);
  const share = (r) => `${percent(r.share)} % ${range(r.low, r.high, percent, 1)}`, draws = (r) => (r.n_null && known(r.null_mean) ? `${percent(r.null_mean)} % [${percent(r.null_low)} to ${percent(r.null_high)}] (${r.n_null})` : "none");
  return el("div", {},
    heading("What ablating a group does to the routing", "The share of (token, layer) decisions that choose another set of experts when the group is ablated, over the layers it can change. An ablation that changes the routing swaps the weights of what follows, so a group far above its own random draws has an effect that is partly other experts’. A description beside the effect: it enters no verdict.", "h4"),
    choose([{ label: "Ablation", options: kinds.map((k) => [k, k]) }, wheres(every)], ([mode, where]) => {
      const rows = every.filter((r) => r.mode === mode && r.where === where), byLayer = rows.filter((r) => r.layer >= 0 && known(r.share)), layers = layersOf(byLayer);
      const top = d3.max(byLayer, (r) => 100 * Math.max(r.high ?? r.share, r.null_high ?? 0)) || 1;
      return el("div", {},
        table([
          { name: "Group", class: "whole", value: (r) => el("b", {}, r.group) },
          { name: "Decisions that change", num: true, value: (r) => (known(r.share) ? share(r) : "no layer can change") },
          { name: "Random draws", num: true, title: "mean [lowest to highest] (how many) of the group’s matched-random draws", value: draws },
          { name: "Margin effect, logits", num: true, title: "the group’s, under the same ablation, on the same prompts", value: (r) => (known(r.effect) ? effect({ metric: "logit_diff", effect: r.effect, low: r.effect_low, high: r.effect_high }, "") : "–") },
          { name: "Prompts", num: true, value: (r) => r.n },
        ], rows.filter((r) => r.layer < 0)),
        byLayer.length ? [
          heading("By layer", null, "h5"),
          legend([["group, interval over prompts", INK, "dot"], ...(byLayer.some((r) => known(r.null_mean)) ? [["its random draws, lowest to highest", PALE, "bar"], ["their mean", INK, "tick"]] : [])]),
          panels(unique(byLayer.map((r) => r.group)).map((g) => {
            const mine = byLayer.filter((r) => r.group === g), fill = hue(g);
            const width = Math.max(fit(340), 60 + layers.length * 15), aside = Math.min(4, (0.22 * (width - 48)) / layers.length);
            return panel(el("b", {}, g), plot({
              width, height: 180, marginLeft: 40, marginRight: 8, x: layerAxis(layers, width), y: { label: "% of decisions that change", domain: [0, top], nice: true, grid: true, ticks: 5 },
              marks: [
                Plot.ruleX(mine.filter((r) => known(r.null_low)), { x: "layer", y1: (r) => 100 * r.null_low, y2: (r) => 100 * r.null_high, dx: -aside, stroke: PALE, strokeWidth: 1.5 * aside }),
                Plot.dot(mine.filter((r) => known(r.null_mean)), { x: "layer", y: (r) => 100 * r.null_mean, dx: -aside, symbol: DASHED, stroke: INK, strokeWidth: 1.3, r: 0.5 * aside + 0.6 }),
                Plot.ruleX(mine, { x: "layer", y1: (r) => (known(r.low) ? 100 * r.low : null), y2: (r) => (known(r.high) ? 100 * r.high : null), dx: aside, stroke: fill, strokeWidth: 1.6 }),
                Plot.dot(mine, { x: "layer", y: (r) => 100 * r.share, dx: aside, fill, r: 3, title: (r) => `${g}, layer ${r.layer}, ${mode} ablation\n${share(r)} of decisions at ${WHERE[where]} change\nrandom draws ${draws(r)}` }),
              ],
            }));
          })),
        ] : null);
    }),
    folded(`Every change of routing as a table (${every.length})`, () => table([
      { name: "Group", class: "whole", value: (r) => r.group }, { name: "Ablation", value: (r) => r.mode }, { name: "At", value: (r) => WHERE[r.where] || r.where }, { name: "Layer", num: true, value: (r) => (r.layer < 0 ? "all" : r.layer) },
      { name: "Decisions that change", num: true, value: (r) => (known(r.share) ? share(r) : "–") }, { name: "Random draws", num: true, value: draws }, { name: "Prompts", num: true, value: (r) => r.n },
    ], every)));
}
