// Draws the embedded data, run by run.  No request is ever made.
const DRAW = { "state-encoding": stateEncoding, "pattern-selectivity": patternSelectivity };
JSON.parse(document.getElementById("data").textContent).forEach((run, i) => {
  if (!DRAW[run.study] || !run.section) return;
  const root = document.querySelector(`#study-${i} .figures`);
  const failed = drawn(() => DRAW[run.study](run.section, root, i, run.missing));
  if (failed) root.append(failed);
});
document.body.dataset.drawn = "yes";
