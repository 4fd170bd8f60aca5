// Erasure: the reading of every basis, rank and block; then the numbers behind it by block, by rank, by length.
const READING = {
  "candidate necessary": ["#0072b2", "N", "the fresh probe is at its baseline and the task falls below every random subspace"],
  "readable, not used": ["#b3367a", "U", "the fresh probe is at its baseline and the task holds: it was readable, the model does without it"],
  "test void": ["#c48a00", "V", "the fresh probe still reads the state: it was not removed, so the task’s accuracy says nothing"],
  inconclusive: ["#5d6675", "?", "the fresh probe’s interval straddles its threshold, or the task is not shown to hold and yet fell no further than under random subspaces, or the untouched model does the task no better than the baseline"],
  "not readable": ["#a9b2bf", "–", "the first probe was at its baseline already: nothing to erase"],
};
const BASIS = { probe: "probe directions", principal: "principal components", singular: "singular directions", inlp: "INLP", leace: "LEACE" };
const WHOLE = 0.9; // of the variance: where random subspaces of that rank take so much, little is left to do the task with
const ITS_OWN = ["inlp", "leace"]; // bases that set their own rank
const readingHue = (r) => (READING[r.reading] || [GREY])[0];
const basisName = (b) => BASIS[b] || b;
const sizeOf = (r) => (ITS_OWN.includes(r.basis) ? basisName(r.basis) : `${r.basis} ${r.rank}${r.full && r.basis === "probe" ? " (all)" : ""}`);
const ofSize = (rows, basis, rank) => rows.filter((r) => r.basis === basis && (ITS_OWN.includes(basis) || r.rank === rank));
const ranksOf = (rows) => unique(rows.filter((r) => !ITS_OWN.includes(r.basis)).map((r) => r.rank)).sort((a, b) => a - b);
const basesOf = (rows) => unique([...Object.keys(BASIS), ...rows.map((r) => r.basis)]).filter((b) => rows.some((r) => r.basis === b));
const choiceOfBasis = (rows) => ({ label: "Erased", options: basesOf(rows).map((b) => [b, basisName(b)]) });
const choiceOfRank = (rows) => ({ label: "Rank", options: ranksOf(rows).map((k) => [k, String(k)]), has: (rank, [basis]) => rows.some((r) => r.basis === basis && r.rank === rank && !ITS_OWN.includes(basis)) });
// Under the buttons: why there is no rank to choose.
const rankNote = (rows, basis) => said(ITS_OWN.includes(basis) ? `${basisName(basis)} sets its own rank, at each block and seed: ${d3.extent(rows.filter((r) => r.basis === basis), (r) => r.rank).join(" to ")} here.`
  : basis === "probe" && ranksOf(rows.filter((r) => r.basis === basis)).length < ranksOf(rows).length ? `A probe has one direction less than there are classes: rank ${d3.max(rows.filter((r) => r.basis === basis), (r) => r.rank)} is all of it here.` : null);
const takesAll = (r) => r.basis === "inlp" && r.control_variance >= WHOLE;
const tookAll = (rows) => {
  const all = rows.filter(takesAll), inlp = rows.filter((r) => r.basis === "inlp");
  return all.length ? `INLP took nearly every direction (${unique(d3.extent(all, (r) => r.rank)).join(" to ")}) in ${all.length} of its ${plural(inlp.length, "box").replace(/xs$/, "xes")}` : null;
};
const choiceOfBlock = (rows) => { const layers = unique(rows.map((r) => r.layer)).sort((a, b) => a - b); return { label: "Block", options: layers.map((l) => [l, blocks(l)]), first: layers.at(-1) }; };

function erasures(d) {
  const rows = d.rows("erasure");
  if (!rows.length) return null;
  const present = Object.keys(READING).filter((k) => rows.some((e) => e.reading === k));
  const sweeps = rows.filter((r) => !ITS_OWN.includes(r.basis));
  const figure = (mine, x) => erasureFigure(d, mine, x);
  return el("div", {},
    heading("What removing it does: erasure, with the probe refitted", `At one block’s output a subspace is erased, around the mean of the training activations: directions the probe reads, principal or singular directions, or what INLP and LEACE find. Two questions follow. Does the task fall below what erasing random subspaces of the same rank does? And is the state gone: is a fresh probe, trained on the erased activations, down at the baseline without a model? While it is not, the test is void whatever the task did. The thresholds are 2 percentage points: above the baseline for a probe, below the untouched model for the task. ${shownAt} Each reading needs both answers:`, "h4"),
    el("dl", { class: "meanings" }, present.map((k) => [el("dt", {}, badge(`${READING[k][1]} ${k}`, slug(k))), el("dd", {}, READING[k][2])])),
    heading("The reading, by basis, rank and block", `One box per seed, left to right; a pale box is a seed that did not learn the task at the trained length.${rows.some(takesAll) ? " INLP takes one direction less than there are classes a round, and stops when a fresh probe reads no more than the best lookup table, or at its limit of rounds. Where that is nearly the whole space, random subspaces as large stop the task as well: that the task falls then tells nothing, and the reading is mostly “?”." : ""}`, "h5"),
    byFamily(d, rows, (mine) => readings(d, mine), tookAll),
    heading("By block", null, "h5"), erasureLegend(rows),
    choose([choiceOfBasis(rows), choiceOfRank(rows)], ([basis, rank]) => [rankNote(rows, basis), byFamily(d, ofSize(rows, basis, rank), (mine) => figure(mine, "layer"), tookAll)]),
    ranksOf(rows).length > 1 ? [
      heading("By rank, at one block", null, "h5"),
      choose([choiceOfBasis(sweeps), choiceOfBlock(sweeps)], ([basis, layer]) => [rankNote(sweeps, basis), byFamily(d, sweeps.filter((r) => r.basis === basis && r.layer === layer), (mine) => figure(mine, "rank"))]),
    ] : null,
    folded(`Every erasure as a table (${rows.length})`, () => erasureTable(rows)));
}

function readings(d, rows) {
  const seeds = seedsOf(rows), n = seeds.length, w = n > 3 ? 12 : 15, layers = unique(rows.map((r) => r.layer)).sort((a, b) => a - b);
  const order = (r) => [basesOf(rows).indexOf(r.basis), ITS_OWN.includes(r.basis) ? 0 : r.rank];
  const sizes = unique(d3.sort(rows, (r) => order(r)[0] * 1e4 + order(r)[1]).map(sizeOf));
  const step = n * w + 6;
  return plot({
    width: 88 + layers.length * step, height: 40 + sizes.length * 17, marginLeft: 84, marginRight: 4, marginTop: 6, marginBottom: 32,
    x: { type: "band", domain: layers, tickFormat: blocks, label: "block", paddingInner: 6 / step, paddingOuter: 0, tickSize: 0, round: false }, y: { type: "band", domain: sizes, label: null, paddingInner: 0.14, tickSize: 0 },
    marks: bySeed(rows, (seed, i) => [
      Plot.cell(seed, { x: "layer", y: sizeOf, fill: readingHue, fillOpacity: (r) => (r.learned === "learned" ? 0.92 : 0.35), insetLeft: i * w + 0.5, insetRight: (n - 1 - i) * w + 0.5, title: (r) => erasureHint(d, r) }),
      Plot.text(seed, { x: "layer", y: sizeOf, dx: beside(i, n, w), text: (r) => (READING[r.reading] || [0, " "])[1], fill: (r) => (r.learned === "learned" ? "white" : INK), fontSize: 9, fontWeight: 600, pointerEvents: "none" }),
    ]),
  });
}

const erasureHint = (d, r, at = place(r.layer)) => [
  `${who(d, r)}, ${at}`, `${basisName(r.basis)}, ${plural(r.rank, "direction")}${r.removed === false ? ` (stopped at its limit of ${known(r.iterations) ? `${r.iterations} ` : ""}rounds)` : ""}${takesAll(r) ? " (nearly the whole space)" : ""}: ${r.reading || "no reading"}`,
  `task ${num(r.accuracy, 3)} ${range(r.low, r.high, num, 3)}, untouched ${num(r.clean, 3)}`,
  `${r.n_control ?? "–"} random subspaces ${num(r.control_low, 3)} to ${num(r.control_high, 3)}`,
  known(r.matched_accuracy) ? `principal components of nearest variance ${num(r.matched_accuracy, 3)}${r.matched_mark ? ` (${r.matched_mark})` : ""}` : "",
  `fresh probe ${num(r.refit, 3)} ${range(r.refit_low, r.refit_high, num, 3)}, baseline ${num(r.baseline, 3)}`,
  known(r.refit_control) ? `first probe ${num(r.probe, 3)}, fresh probe after a random subspace ${num(r.refit_control, 3)}` : "",
].filter(Boolean).join("\n");

const erasureLegend = (rows) => legend([["task accuracy with the erasure, interval; its colour is the reading", INK, "dot"], ["fresh probe, interval", INK, "diamond"],
  [`task under ${unique(rows.map((e) => e.n_control)).filter((n) => n > 0).join(" or ") || "the"} random subspaces, lowest to highest`, PALE, "bar"],
  rows.some((r) => known(r.matched_accuracy)) ? ["task under equal-rank principal components of nearest variance", GREY, "times"] : null, ["baseline of the probe", INK, "tick"]].filter(Boolean));

// Task accuracy beside its random control, and the fresh probe beside its baseline, by `x`: layer, rank or length.
function erasureFigure(d, rows, x) {
  const n = seedsOf(rows).length, step = n > 3 ? 13 : 16, places = unique(rows.map((r) => r[x])).sort((a, b) => a - b);
  return plot({
    width: panelWidth(places.length, n, step), height: 215, marginLeft: 34, marginRight: 6,
    x: { type: "point", domain: places, padding: 0.5, label: x === "layer" ? "block" : x === "rank" ? "rank of the erased subspace" : "sequence length", tickFormat: x === "layer" ? blocks : String }, y: { domain: [0, 1], label: "accuracy", grid: true },
    marks: bySeed(rows, (shown, i) => {
      const dx = beside(i, n, step), left = dx - 3.5, right = dx + 3.5;
      return [
        x === "layer" ? null : Plot.areaY(shown, { x, y1: "control_low", y2: "control_high", dx: left, fill: PALE, fillOpacity: 0.45 }),
        Plot.ruleX(shown, { x, y1: (r) => Math.min(r.control_low, r.control_high - 0.012), y2: "control_high", dx: left, stroke: PALE, strokeWidth: 6 }),
        x === "layer" ? null : Plot.line(shown, { x, y: "accuracy", dx: left, stroke: GREY, strokeWidth: 1 }),
        x === "layer" ? null : Plot.line(shown, { x, y: "refit", dx: right, stroke: GREY, strokeWidth: 1, strokeDasharray: "2,2" }),
        Plot.dot(shown, { x, y: "matched_accuracy", dx: left, symbol: "times", stroke: GREY, r: 2.6 }),
        Plot.dot(shown, { x, y: "baseline", dx, symbol: DASHED, stroke: INK, strokeWidth: 1.3, r: 5 }),
        Plot.ruleX(shown, { x, y1: "low", y2: "high", dx: left, stroke: readingHue, strokeWidth: 1.5 }),
        Plot.ruleX(shown, { x, y1: "refit_low", y2: "refit_high", dx: right, stroke: readingHue, strokeWidth: 1.2 }),
        Plot.dot(shown, { x, y: "refit", dx: right, symbol: "diamond", stroke: readingHue, fill: "white", r: 3.5, strokeWidth: 1.5 }),
        Plot.dot(shown, { x, y: "accuracy", dx: left, stroke: readingHue, strokeWidth: 1.5, fill: (r) => fillOf(r, readingHue(r)), r: 3, title: (r) => erasureHint(d, r, `${place(r.layer)}${x === "length" ? `, length ${r.length}` : ""}`) }),
      ];
    }),
  });
}

const erasureTable = (rows, length = null) => table([
  { name: "Model", class: "whole", value: (r) => r.model }, { name: "Seed", num: true, value: (r) => r.seed }, { name: "Block", num: true, value: (r) => blocks(r.layer) }, length,
  { name: "Erased", class: "whole", value: (r) => r.basis }, { name: "Rank", num: true, value: (r) => `${r.rank}${r.full ? " (all)" : ""}` },
  { name: "Untouched", num: true, value: (r) => num(r.clean, 3) }, { name: "Task erased", num: true, value: (r) => estimate(r.accuracy, r.low, r.high) },
  { name: "Random subspaces", num: true, value: (r) => `${num(r.control_low)} to ${num(r.control_high)}` },
  { name: "Nearest variance", num: true, value: (r) => [num(r.matched_accuracy), r.matched_mark ? dim(` ${r.matched_mark}`) : ""] },
  { name: "Fresh probe", num: true, value: (r) => estimate(r.refit, r.refit_low, r.refit_high) },
  { name: "Baseline", num: true, value: (r) => num(r.baseline) }, { name: "Reading", value: (r) => (r.reading ? badge(r.reading) : r.mark || "–") },
].filter(Boolean), rows);

function beyond(d) {
  const [rows, left] = trainedOnly(d, d.rows("erasure_beyond"));
  if (!rows.length) return left && el("div", {}, heading("The same erasures at longer lengths", null, "h4"), left);
  const fitted = d.rows("erasure").filter((r) => rows.some((b) => b.cell === r.cell)).map((r) => ({ ...r, length: d.cells.find((c) => c.i === r.cell).length }));
  return el("div", {},
    heading("The same erasures at longer lengths", "Fitted at the length each cell is shown at (the leftmost place), applied unchanged to longer sequences. A subspace that holds the state at one length and not at another was no full account of it.", "h4"), left,
    erasureLegend(rows),
    choose([choiceOfBasis(rows), choiceOfRank(rows), choiceOfBlock(rows)], ([basis, rank, layer]) => [rankNote(rows, basis), byFamily(d, ofSize([...fitted, ...rows], basis, rank).filter((r) => r.layer === layer), (mine) => erasureFigure(d, mine, "length"), (mine) => unique(mine.map((r) => r.mark)).filter(Boolean).map((mark) => el("div", {}, `length ${unique(mine.filter((r) => r.mark === mark).map((r) => r.length)).join(", ")}: ${mark}`)))]),
    folded(`Erasures at longer lengths as a table (${rows.length})`, () => erasureTable(rows, { name: "Length", num: true, value: (r) => r.length })));
}
