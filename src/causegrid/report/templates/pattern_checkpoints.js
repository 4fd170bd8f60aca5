// Pattern selectivity over training: the participation ratio of every head at each checkpoint, and its integral.
const tokensName = (v) => (v === 0 ? "0" : d3.format(".3~s")(v).replace("G", "B"));

function overTraining(c) {
  const rest = c.rest.filter((r) => known(r.tokens)), heads = c.checkpoints.filter((r) => known(r.tokens) && known(r.pr));
  const seen = d3.sort(unique([...rest, ...heads].map((r) => r.tokens))), after = seen.filter((t) => t > 0);
  if (!seen.length && !c.integrals.length) return el("div");
  const said = after.length > 1 ? ["The ratio of the groups’ heads at each training checkpoint, on the same prompts, beside that of all other heads. Across: tokens seen so far, on a logarithmic scale", seen.length > after.length ? "; the untrained model stands apart at 0" : "", ". A ratio that rises is a head that comes to write more dimensions; it says nothing of effect. Bars: intervals over subsamples of the prompts."] : ["One checkpoint after step 0 has no course and no integral; below is what it says by itself."];
  return el("div", {}, heading("Participation ratio over training", said.join(""), "h4"),
    after.length > 1 ? courses(c, heads, rest, seen, after) : null,
    integrals(c));
}

// One panel a group: its heads' ratios over ln tokens, on the band of every other head's.
function courses(c, heads, rest, seen, after) {
  const group = groupsOfHeads(c), hue = hueOf(c), rows = heads.map((r) => ({ ...r, name: headName(r), group: group.get(headName(r)) ?? "" }));
  // 0 tokens have no logarithm: they stand one mean step left of the first checkpoint, not joined to it.
  const step = (Math.log(d3.max(after)) - Math.log(after[0])) / (after.length - 1), at = (t) => (t > 0 ? Math.log(t) : Math.log(after[0]) - step);
  const groups = [...c.rivals, ""].filter((g) => rows.some((r) => r.group === g)), shown = groups.length ? groups : [""], width = fit([720, 720, 500][shown.length] ?? 340), span = at(d3.max(after)) - at(seen[0]) || 1;
  const ticks = seen.reduce((kept, t) => (kept.length && ((at(t) - at(kept.at(-1))) / span) * (width - 70) < 34 ? kept : [...kept, t]), []);
  const later = rest.filter((r) => r.tokens > 0);
  const top = d3.max([...rows.map((r) => r.high ?? r.pr), ...rest.map((r) => r.high)]) || 2, many = d3.max(rest, (r) => r.n);
  return [
    legend([rows.length ? ["one head of the group, with its interval", INK] : null, rest.length ? [`the other ${plural(many ?? 0, "head")}: middle 90 %`, PALE, "bar"] : null, rest.length ? ["their median", INK, "dash"] : null].filter(Boolean)),
    panels(shown.map((g) => {
      const mine = rows.filter((r) => r.group === g), names = unique(mine.map((r) => r.name)), fill = g ? hue(g) : GREY;
      return panel(g ? el("b", {}, g) : rows.length ? el("b", {}, "heads of no competing group") : "", plot({
        width, height: 250, marginLeft: 40, marginRight: 22, marginBottom: 34, x: { label: "tokens seen", domain: [at(seen[0]) - 0.03 * span, at(d3.max(after)) + 0.03 * span], ticks: ticks.map(at), tickFormat: (v) => tokensName(ticks.find((t) => at(t) === v)) }, y: { label: "participation ratio", domain: [1, Math.max(2, top)], nice: true, grid: true },
        marks: [
          Plot.areaY(later, { x: (r) => at(r.tokens), y1: "low", y2: "high", fill: PALE, fillOpacity: 0.5 }),
          Plot.line(later, { x: (r) => at(r.tokens), y: "middle", stroke: INK, strokeDasharray: "4,3", strokeWidth: 1.2 }),
          Plot.ruleX(rest.filter((r) => r.tokens === 0), { x: (r) => at(0), y1: "low", y2: "high", stroke: PALE, strokeWidth: 8, strokeOpacity: 0.5 }),
          names.map((name, i) => {
            const own = mine.filter((r) => r.name === name), dx = beside(i, names.length, Math.min(3, 18 / names.length));
            return [
              Plot.line(own.filter((r) => r.tokens > 0), { x: (r) => at(r.tokens), y: "pr", dx, stroke: fill, strokeWidth: 1, strokeOpacity: 0.55 }),
              Plot.ruleX(own, { x: (r) => at(r.tokens), y1: "low", y2: "high", dx, stroke: fill, strokeWidth: 1.2 }),
              Plot.dot(own, { x: (r) => at(r.tokens), y: "pr", dx, fill, r: 2.4, title: (r) => `${name}${g ? `, ${g}` : ""}\n${tokensName(r.tokens)} tokens (${r.revision})\nparticipation ratio ${num(r.pr)} ${range(r.low, r.high)}` }),
            ];
          }),
        ],
      }));
    })),
  ];
}

function integrals(c) {
  const every = c.integrals, group = groupsOfHeads(c);
  if (!every.length) return null;
  const whole = every.some((r) => known(r.integral)), ratio = (r) => (known(r.mean) ? `${num(r.mean)} ± ${num(r.spread)}` : "–");
  const rows = whole ? every : every.filter((r) => known(r.mean)).map((r) => ({ ...r, low: known(r.spread) ? r.mean - r.spread : null, high: known(r.spread) ? r.mean + r.spread : null }));
  return el("div", {},
    heading(whole ? "Integral over training" : "At the one checkpoint", whole ? `The area under (ratio − 1) over the logarithm of the tokens seen, ${plural(d3.max(every, (r) => r.n_checkpoints) ?? 0, "checkpoint")} after step 0: how much, and for how long, a head wrote more than one dimension. It ranks heads by specialisation in general, not for this task, and gates nothing. Bars: the spread of the subsamples’ own integrals.` : "Mean over subsamples of the prompts. Bars: ± one standard deviation.", "h5"),
    rows.length ? headsByLayer(c, rows, whole ? { value: "integral", label: "integral", least: 0, said: (r) => `integral ${num(r.integral)} ${range(r.low, r.high)}\nlast checkpoint ${ratio(r)}` } : { value: "mean", label: "participation ratio", least: 1, said: (r) => `participation ratio ${ratio(r)}` }) : null,
    folded(`Every head as a table (${every.length})`, () => table([
      { name: "Head", class: "heads", value: headName }, { name: "Group", class: "whole", value: (r) => group.get(headName(r)) || "" },
      whole ? { name: "Integral", num: true, value: (r) => [num(r.integral), " ", dim(range(r.low, r.high))] } : null,
      { name: "Ratio at the last checkpoint", num: true, title: "mean ± standard deviation over subsamples of the prompts", value: ratio }, { name: "Checkpoints after step 0", num: true, value: (r) => r.n_checkpoints },
    ].filter(Boolean), d3.sort(every, (r) => -(r.integral ?? r.mean ?? 0)))));
}
