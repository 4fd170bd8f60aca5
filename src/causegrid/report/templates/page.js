// Draws the embedded data, run by run.  No request is ever made.
const DRAW = { "state-encoding": stateEncoding, "pattern-selectivity": patternSelectivity };
JSON.parse(document.getElementById("data").textContent).forEach((run, i) => {
  if (!DRAW[run.study] || !run.section) return;
  const root = document.querySelector(`#study-${i} .figures`);
  const failed = drawn(() => DRAW[run.study](run.section, root, i, run.missing));
  if (failed) root.append(failed);
});
// Print shows what is folded in the claims, then folds it again.
let opened = [];
addEventListener("beforeprint", () => (opened = [...document.querySelectorAll(".claims details:not([open])")]).forEach((box) => (box.open = true)));
addEventListener("afterprint", () => opened.forEach((box) => (box.open = false)));
document.body.dataset.drawn = "yes";
