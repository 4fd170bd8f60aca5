// Parts of the trained model: removed one by one (components), and carried from a clean run into a corrupted one.
const GIVEN = "by construction";
const KIND = {
  conv: "Mamba’s short convolution over the last few tokens, in front of its state space",
  mixer: "all that Mamba’s mixer (convolution, state space and gate) adds to the residual stream",
  attention: "what attention adds to the residual stream", mlp: "what the MLP adds to the residual stream",
  gate: "what Mamba multiplies the output of its state space by", mlp_gate: "what an MLP multiplies its hidden units by",
  input_gate: "how much of the new candidate an LSTM writes into its cell", forget_gate: "how much of its cell an LSTM keeps",
  output_gate: "how much of its cell an LSTM puts out", reset_gate: "how much of the old state a GRU uses for its new candidate",
  update_gate: "how much of the old state a GRU keeps", state: "what is carried from one position to the next",
};
const MODE = {
  identity: "it hands on the current token, unmixed with those before", zero: "0 stands in its place", open: "it is held at 1", shut: "it is held at 0",
  mean: "its mean over other sequences stands in its place, position by position (of the convolution one for all positions)",
  self: "every position sees itself alone", reset: "it is put back to its start before every position, so nothing is carried",
};
const SITE = {
  resid_pre: "a block’s input", resid_post: "a block’s output", mlp_out: "what a block’s MLP adds to the residual stream",
  attn_out: "what a block’s attention adds to the residual stream; in Mamba all that its mixer adds (convolution, state space and gate)",
  state: "what a recurrent block carries on to the next position (in LSTM and GRU it holds the block’s output, in Mamba it stays inside)",
};
// What the words on the buttons mean, those of them that `words` has.
const meanings = (names, words) => el("dl", { class: "meanings" }, unique(names).filter((n) => words[n]).map((n) => [el("dt", {}, el("b", {}, n)), el("dd", {}, words[n])]));
const layerName = (l) => (known(l) && l !== "" ? String(l) : "all");

function components(d) {
  const [rows, left] = trainedOnly(d, d.rows("components").map((r) => ({ ...r, layer: layerName(r.layer) })));
  if (!rows.length) return null;
  const lengths = unique(rows.map((r) => r.length)).sort((a, b) => a - b), shown = new Map(d.cells.map((c) => [c.i, c.length]));
  const far = d3.max(lengths), atOf = (r) => (r.length === shown.get(r.cell) ? "here" : "far");
  const modes = unique(rows.map((r) => r.mode)), metrics = Object.keys(ACCURACY).filter((m) => rows.some((r) => r.metric === m));
  const where = [["here", unique([...shown.values()]).length > 1 ? "the length each learned" : String(unique([...shown.values()])[0])], ["far", String(far)]].filter(([w]) => rows.some((r) => atOf(r) === w));
  return el("div", {},
    heading("Parts removed", "One kind of part is taken out of one block, or of all blocks, of the trained model. Each mark: change of accuracy against the untouched model, in percentage points, with its interval over sequences. An interval that holds 0 shows no effect here, and does not show that there is none. A kind without a mark has no such removal.", "h4"),
    legend([["effect, with interval over sequences", INK, "dot"], hollow, ["no change", GREY, "line"]]),
    choose([
      { label: "How", options: modes.map((m) => [m, m]) }, { label: "Length", options: where }, { label: "Right on", options: metrics.map((m) => [m, ACCURACY[m]]) },
    ], ([mode, at, metric]) => {
      const some = rows.filter((r) => r.mode === mode && atOf(r) === at && r.metric === metric && known(r.effect));
      if (!some.length) return el("p", { class: "dim" }, "No part was removed so at this length.");
      const low = Math.min(-5, 100 * d3.min(some, (r) => r.low ?? r.effect)), high = Math.max(5, 100 * d3.max(some, (r) => r.high ?? r.effect));
      return [meanings([mode, ...some.map((r) => r.kind)], { ...KIND, ...MODE }), at === "far" ? left : null, byFamily(d, some, (mine, model) => {
        const kinds = unique(mine.map((r) => r.kind)), layers = unique(mine.map((r) => r.layer)).sort((a, b) => (a === "all") - (b === "all") || a - b), n = seedsOf(mine).length, hue = d.hue(model);
        return kinds.map((kind, k) => plot({
          width: panelWidth(layers.length, n, 8, 64), height: 84 + (k === kinds.length - 1 ? 22 : 0), marginLeft: 42, marginRight: 8, marginTop: 18, marginBottom: k === kinds.length - 1 ? 30 : 8,
          x: { type: "point", domain: layers, padding: 0.5, label: k === kinds.length - 1 ? "block" : null, ...(k === kinds.length - 1 ? {} : { axis: null }) },
          y: { domain: [low, high], label: `${kind} (${mode}), pp`, grid: true, ticks: 3, labelArrow: "none" },
          marks: [Plot.ruleY([0], { stroke: GREY }), bySeed(mine.filter((r) => r.kind === kind), (seed, i) => {
            const dx = beside(i, n, 7), pp = (v) => (known(v) ? 100 * v : null);
            return [
              Plot.ruleX(seed, { x: "layer", y1: (r) => pp(r.low), y2: (r) => pp(r.high), dx, stroke: hue, strokeWidth: 1.5 }),
              Plot.dot(seed, { x: "layer", y: (r) => pp(r.effect), dx, stroke: hue, fill: (r) => fillOf(r, hue), r: 2.6, title: (r) => `${who(d, r)}: ${kind} of ${r.layer === "all" ? "all blocks" : `block ${r.layer}`}, ${mode}\nlength ${r.length}, ${ACCURACY[metric]} right: ${pointsOf(r)}\nfrom ${num(r.accuracy - r.effect, 3)} to ${num(r.accuracy, 3)}, ${r.n} sequences, noise floor ${num(known(r.noise) ? 100 * r.noise : null, 2)} pp${r.flag ? `\n${r.flag}` : ""}` }),
            ];
          })],
        }));
      }, () => null, "tops")];
    }),
    folded(`Every removal shown as a table (${rows.length})`, () => table([
      { name: "Model", class: "whole", value: (r) => r.model }, { name: "Seed", num: true, value: (r) => r.seed }, { name: "Part", value: (r) => r.kind }, { name: "How", value: (r) => r.mode }, { name: "Block", num: true, value: (r) => r.layer },
      { name: "Length", num: true, value: (r) => r.length }, { name: "Right on", value: (r) => ACCURACY[r.metric] || r.metric }, { name: "Accuracy", num: true, value: (r) => num(r.accuracy, 3) },
      { name: "Effect, pp", num: true, value: pointsOf }, { name: "Sequences", num: true, value: (r) => r.n }, { name: "", value: (r) => r.flag },
    ], rows)));
}
const points = (v) => signed(known(v) ? 100 * v : null, 1);
const pointsOf = (r) => `${points(r.effect)} ${range(r.low, r.high, points)}`;

function patching(d) {
  const rows = d.rows("patching").filter((r) => known(r.position)).flatMap(readBy(d));
  if (!rows.length) return null;
  const kinds = unique(rows.map((r) => r.kind)), mapped = kinds.filter((k) => rows.some((r) => r.kind === k && r.position !== r.changed));
  const choiceOf = (some) => ({ label: "Patched", options: some.map((k) => [k, k]) });
  const read = { label: "Read at", options: Object.entries(READ).filter(([k]) => rows.some((r) => r.read === k)) };
  const here = rows.filter((r) => r.position === r.changed || !known(r.changed));
  const draw = (some, figure, ...more) => (some.length ? byFamily(d, some, figure, (mine) => (mine.every((r) => !known(r.recovery)) ? unique(mine.map((r) => r.mark)).join(", ") : null), ...more) : el("p", { class: "dim" }, "Nothing was patched so."));
  return el("div", {},
    heading("Patching: where the difference is carried", `Clean and corrupted sequences come in pairs that differ at one token in the middle${d.task.split(":")[0] === "dyck" ? ", and behind it only in the types of closing brackets, which have to match" : ", and nowhere else"}; the state at the readout is another one. One activation of the clean run is put into the corrupted run; recovery is the share of the clean run’s logit difference that comes back, 0 = none, 1 = all, not clipped. By construction: the answer is known without running the model, so it supports nothing. Such are the last block’s output (and its parts, read elsewhere), a place before the change or behind the readout, the residual stream or an LSTM’s or GRU’s state at the changed token read right there, and the first block’s input where that token is the only difference.`, "h4"),
    heading("At the changed token", "Grey bar: the same patch from another pair’s clean run, lowest to highest draw. An unrelated activation takes the corrupted state away as well and so recovers about half, so a recovery means something only above that bar.", "h5"),
    legend([["recovery, interval over pairs", INK, "dot"], hollow, ["from another pair", PALE, "bar"], [GIVEN, GREY, "times"], ["none, all", GREY, "line"]]),
    choose([choiceOf(kinds), read], ([kind, at]) => [meanings([kind], SITE), draw(here.filter((r) => r.kind === kind && r.read === at), (mine, model) => recoveries(d, mine, model))]),
    mapped.length ? [
      heading("At every position", "One seed at a time; a model without a finished cell of that seed is not drawn. Only the changed token has a null; each box’s hint has its interval.", "h5"), recoveryScale(),
      choose([choiceOf(mapped), { label: "Seed", options: seedsOf(rows).map((s) => [s, String(s)]) }, read], ([kind, seed, at]) => [meanings([kind], SITE), draw(rows.filter((r) => r.kind === kind && r.seed === seed && r.read === at), (mine) => heat(d, mine))]),
    ] : null,
    folded("Recoveries at the changed token as a table", () => table([
      { name: "Model", class: "whole", value: (r) => r.model }, { name: "Seed", num: true, value: (r) => r.seed }, { name: "Patched", value: (r) => r.kind }, { name: "Block", num: true, value: (r) => blocks(r.layer) }, { name: "Position", num: true, value: (r) => r.position }, { name: "Read at", num: true, value: (r) => r.readout },
      { name: "Recovery", num: true, value: (r) => estimate(r.recovery, r.low, r.high) }, { name: "From another pair", num: true, value: (r) => estimate(r.null_recovery, r.null_low, r.null_high) }, { name: "Pairs", num: true, value: (r) => r.n }, { name: "Left out", num: true, title: "pairs whose clean and corrupted runs differ by less than 0.5 logits", value: (r) => r.left_out }, { name: "", value: (r) => r.mark },
    ], here)));
}

const READ = { last: "the last position", own: "the patched position", between: "another position" };
// Each row by how it is read; the last position patched and read there counts as both.
const readBy = (d) => (r) => {
  const last = d.cells.find((c) => c.i === r.cell).length - 1;
  const how = [r.readout === last ? "last" : null, r.readout === r.position ? "own" : null].filter(Boolean);
  return (how.length ? how : ["between"]).map((read) => ({ ...r, read }));
};
const HEAT = d3.scaleLinear([-0.5, 0, 1, 1.5], ["#d9825b", "#f7f7f5", "#1f6fa8", "#0b2f4d"]).clamp(true);
const recoveryHint = (d, r) => `${who(d, r)}, ${r.kind} of ${place(r.layer)} at position ${r.position}\nrecovery ${num(r.recovery)} ${range(r.low, r.high)}${r.mark ? `\n${r.mark}` : ""}${known(r.null_low) ? `\nfrom another pair ${num(r.null_recovery)} (${num(r.null_low)} to ${num(r.null_high)})` : ""}\nchanged at ${r.changed ?? "–"}, read at ${r.readout}, ${r.n} pairs, ${r.left_out} left out`;

const recoveryScale = () => el("div", { class: "legend" }, [-0.5, 0, 0.5, 1, 1.5].map((v) => el("span", {}, el("i", { class: "box", style: `--c:${HEAT(v)}` }), v === -0.5 ? "−0.5 or less" : v === 1.5 ? "1.5 or more" : String(v))), el("span", {}, el("i", { class: "box hatch" }), GIVEN));

function heat(d, rows) {
  const positions = d3.range(d3.min(rows, (r) => r.position), d3.max(rows, (r) => r.position) + 1), layers = unique(rows.map((r) => r.layer)).sort((a, b) => b - a);
  const first = positions[0], tick = positions.length > 12 ? 10 : positions.length > 6 ? 2 : 1, given = rows.filter((r) => r.mark === GIVEN);
  return plot({
    width: fit(54 + Math.max(120, positions.length * 8)), height: 56 + layers.length * 20, marginLeft: 34, marginRight: 8, marginTop: 18, marginBottom: 30,
    x: { type: "band", domain: positions, label: "position", ticks: positions.filter((p) => p % tick === 0 || p === first), tickSize: 3, padding: 0.04 }, y: { type: "band", domain: layers, label: "block", tickFormat: blocks, tickSize: 0, padding: 0.06 },
    marks: [
      Plot.cell(rows, { x: "position", y: "layer", fill: (r) => (r.mark === GIVEN ? "#e3e6eb" : known(r.recovery) ? HEAT(r.recovery) : "#fff"), title: (r) => recoveryHint(d, r) }),
      Plot.text(given, { x: "position", y: "layer", text: () => "╱", fill: GREY, fontSize: 10, pointerEvents: "none" }),
      Plot.text(unique(rows.map((r) => r.changed)).filter((p) => positions.includes(p)), { x: (p) => p, text: () => "changed", frameAnchor: "top", dy: -11, fontSize: 9, fill: INK, textAnchor: "middle" }),
    ],
  });
}

function recoveries(d, rows, model) {
  const n = seedsOf(rows).length, hue = d.hue(model), layers = unique(rows.map((r) => r.layer)).sort((a, b) => a - b), ends = d3.extent(rows.flatMap((r) => [r.low, r.high, r.recovery, r.null_low, r.null_high]).filter(known));
  return plot({
    width: panelWidth(layers.length, n, 8, 64), height: 180, marginLeft: 38, marginRight: 8,
    x: { type: "point", domain: layers, padding: 0.5, label: "block", tickFormat: blocks }, y: { domain: [Math.min(-0.1, ends[0] ?? 0), Math.max(1.1, ends[1] ?? 1)], label: `recovery, ${rows[0].kind}`, grid: true, ticks: 5 },
    marks: [Plot.ruleY([0, 1], { stroke: GREY }), bySeed(rows, (seed, i) => {
      const dx = beside(i, n, 7);
      return [
        Plot.ruleX(seed.filter((r) => known(r.null_low)), { x: "layer", y1: (r) => r.null_low - 0.008, y2: (r) => r.null_high + 0.008, dx, stroke: PALE, strokeWidth: 5 }),
        Plot.ruleX(seed, { x: "layer", y1: "low", y2: "high", dx, stroke: hue, strokeWidth: 1.5 }),
        Plot.dot(seed, { x: "layer", y: "recovery", dx, stroke: (r) => (r.mark === GIVEN ? GREY : hue), fill: (r) => fillOf(r, hue), symbol: (r) => (r.mark === GIVEN ? "times" : "circle"), r: 2.8, title: (r) => recoveryHint(d, r) }),
      ];
    })],
  });
}
