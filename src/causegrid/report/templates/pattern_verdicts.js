// Pattern selectivity, the verdicts: what each group is under both rule sets, and its effect beside the random draws.
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
  "not the largest": "a group listed harms more, without being significant", contaminated: "draws may hold heads of competing groups", "overlapping null": "fewer than 10 random draws hold none of the group’s own heads: their mean, sd and the specificity rest on those",
  "pattern unknown": "no pattern score to tell correlate from null",
};
const ruling = (v) => badge(v, (VERDICT[v] || ["none"])[0]);

function verdicts(c) {
  if (!c.main.length) return el("p", { class: "dim" }, "There are no verdicts in this cell.");
  const m = METRIC[c.decides], other = c.metrics.find((x) => x !== c.decides), every = [...c.verdicts, ...c.beside];
  const onOther = (v) => c.verdicts.find((w) => w.group === v.group && w.metric === other);
  const byOther = (v, metric = c.decides) => c.beside.find((w) => w.group === v.group && w.metric === metric);
  const seen = Object.keys(VERDICT).filter((k) => every.some((v) => v.combined === k || v.verdict === k));
  const marks = Object.keys(MARK).filter((k) => every.some((v) => (v.marks || []).includes(k)));
  const marksOf = (v) => [...(v.marks || []).map((k) => [k, k]), ...((other && onOther(v)?.marks) || []).filter((k) => !(v.marks || []).includes(k)).map((k) => [k, `${k} (${METRIC[other].name})`])];
  const also = (v) => {
    const w = byOther(v, c.otherRules === "paper" && c.metrics.includes("top1") ? "top1" : c.metrics.includes("logit_diff") ? "logit_diff" : c.decides);
    return w && w.combined !== v.combined ? el("div", {}, dim(`By the ${c.otherRules} rules ${w.combined}: ${w.reason}.`)) : null;
  };
  const reason = (v) => el("div", { class: "why" }, el("span", { class: "heads" }, (v.heads || []).join(" ")), " ", v.reason, marksOf(v).map(([k, text]) => [" ", el("span", { class: "mark", title: MARK[k] }, text)]), also(v));
  const split = c.main.filter((v) => byOther(v) && byOther(v).combined !== v.combined);
  const agree = !c.otherRules ? "" : split.length ? ` The ${c.otherRules} rules, asked of the same effects and draws, say otherwise of ${split.map((v) => v.group).join(", ")}.` : ` The ${c.otherRules} rules, asked of the same effects and draws, agree on every group.`;
  return el("div", {}, heading("Verdicts", `A group of heads is a cause when ablating it does what ablating equally many other heads of the same layers does not. p is two-sided against those random draws; Holm’s correction is over the ${plural(c.rivals.length, "competing group")}, which share no head; BH is Benjamini and Hochberg’s over all cells of this page. Specificity: the group’s effect over that of its random draws; 3 × is asked.${agree}`, "h4"),
    table([
      { name: "Group", value: (v) => el("b", {}, v.group) },
      { name: "Verdict", value: (v) => ruling(v.combined) },
      c.otherRules ? { name: `By ${c.otherRules} rules`, title: `the verdict of the ${c.otherRules} rules on the same effects and draws`, value: (v) => { const w = byOther(v); return !w ? "–" : w.combined === v.combined ? dim("the same") : ruling(w.combined); } } : null,
      { name: m.head, num: true, value: (v) => effect(v, "") },
      { name: "Random draws", num: true, title: "the matched-random null: mean ± standard deviation of the draws that hold none of the group’s heads (how many those are, of all draws; p ranks the group among all)", value: (v) => (v.n_null ? [known(v.null_mean) ? `${signed(v.null_mean * m.scale, m.digits)} ± ${num(known(v.null_sd) ? v.null_sd * m.scale : null, m.digits)}` : "–", el("div", { class: "dim" }, `${known(v.n_apart) && v.n_apart !== v.n_null ? `${v.n_apart} of ` : ""}${v.n_null}`)] : "none") },
      { name: "p", num: true, value: (v) => (v.n_null ? pvalue(v.p) : "–") },
      { name: "p Holm", num: true, value: (v) => (v.n_null ? pvalue(v.p_holm) : "–") },
      { name: "p BH", num: true, title: "Benjamini and Hochberg’s, over all cells of this page", value: (v) => (v.n_null ? pvalue(v.p_bh) : "–") },
      { name: "Least p", num: true, title: "the smallest p this many draws can give", value: (v) => (v.n_null ? pvalue(v.p_min) : "–") },
      { name: "Specificity", num: true, value: (v) => (known(v.specificity) && v.n_null ? `${num(v.specificity, 1)} ×` : "–") },
      other ? { name: `${METRIC[other].head}; verdict by it`, num: true, title: `the effect on ${METRIC[other].name}, and the verdict if it decided`, value: (v) => { const w = onOther(v); return w ? [effect(w, ""), el("div", {}, w.verdict === v.combined ? dim(w.verdict) : ruling(w.verdict))] : "–"; } } : null,
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
      width: fit(505), height: 46 + 42 * groups.length, marginTop: 4, marginLeft: 112, marginRight: 16, y: { label: null, domain: groups, tickFormat: (g) => short(g), tickSize: 0 }, x: { label: m.axis, grid: true, nice: true, inset: 8 },
      marks: [
        Plot.ruleX([0], { stroke: GREY }),
        Plot.tickX(ticks, { y: "group", x: "v", stroke: INK, strokeOpacity: 0.28, inset: 8 }),
        Plot.ruleY(dots, { y: "group", x1: "lo", x2: "hi", stroke: ACCENT, strokeWidth: 2.5 }),
        Plot.dot(subset, { y: "group", x: "same", stroke: ACCENT, fill: "white", r: 4, strokeWidth: 1.5 }),
        Plot.dot(dots, { y: "group", x: "x", fill: ACCENT, r: 5, title: ((v) => `${v.group}: ${v.verdict}\n${m.name} ${effect(v)} on ${v.n} prompts${v.null_prompts && v.null_prompts < v.n && known(v.same) ? `\n${signed(v.same, m.digits)} on the ${v.null_prompts} prompts of the draws` : ""}\n${v.n_null ? `${v.n_null} draws: ${signed(v.null_mean * m.scale, m.digits)} ± ${num(v.null_sd * m.scale, m.digits)}, p ${pvalue(v.p)}, Holm ${pvalue(v.p_holm)}${known(v.p_bh) ? `, BH over all cells ${pvalue(v.p_bh)}` : ""}, least attainable ${pvalue(v.p_min)}` : "no draws"}`) }),
      ],
    });
  };
  const said = c.notes.map((n) => `${n.group} ${n.n_null} of ${n.wanted}${n.exhaustive ? " (all there are)" : ""}${n.contaminated ? " (contaminated)" : ""}${n.stopped ? " (stopped early: plainly within chance)" : n.why ? ` (${n.why})` : ""}`);
  const subset = d3.max(c.main, (v) => v.null_prompts), all = d3.max(c.main, (v) => v.n);
  return el("div", {}, heading("Each group beside its matched-random null", `A thin line is one random draw: as many heads of the same layers${c.rules === "strict" ? " (some of the group’s own may be among them)" : ", none of the group’s own"}, ablated the same way${subset && subset < all ? `, on ${subset} of the prompts. The open dot is the group on those same prompts` : ""}. The dot with its interval is the group${subset && subset < all ? ` on all ${all}` : ""}. Left of 0 is harm.${said.length ? ` Draws: ${said.join("; ")}.` : ""}`, "h4"),
    legend([["group, interval over prompts", ACCENT, "dot"], subset && subset < all ? ["group on the draws’ prompts", ACCENT, "ring"] : null, ["one random draw", GREY, "tick2"]].filter(Boolean)),
    el("div", { class: "panels" }, c.metrics.map((m) => panel(el("b", {}, METRIC[m].name), strip(m)))));
}
