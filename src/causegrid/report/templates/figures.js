// What every figure is made of: text nodes, number formats, tables, option buttons, panels.
// Text from data only ever enters the page as a text node.
"use strict";
const GREY = "#8a94a6", PALE = "#cfd5de", INK = "#1c2330", ACCENT = "#1f4e8c";
const HUES = ["#0072b2", "#d55e00", "#009e73", "#8e63b5", "#c48a00", "#b3367a", "#4a7a8c", "#7a5c3e"];
const METRIC = {
  logit_diff: { name: "margin", head: "Margin effect, logits", axis: "change of the margin (logits)", scale: 1, unit: " logits", digits: 2 },
  top1: { name: "top-1", head: "Top-1 effect, pp", axis: "change of top-1 accuracy (percentage points)", scale: 100, unit: " pp", digits: 1 },
};

const known = (v) => v !== null && v !== undefined;
const num = (v, digits = 2) => (known(v) ? (Number(v.toFixed(digits)) < 0 ? "−" : "") + Math.abs(v).toFixed(digits) : "–");
const signed = (v, digits = 2) => (known(v) && Number(v.toFixed(digits)) > 0 ? "+" : "") + num(v, digits);
const pvalue = (v) => (!known(v) ? "–" : v < 0.001 ? "< 0.001" : v.toPrecision(2));
const range = (low, high, format = num, digits = 2) => (known(low) && known(high) ? `[${format(low, digits)}, ${format(high, digits)}]` : "");
const plural = (n, what) => `${n} ${what}${n === 1 ? "" : "s"}`;
const unique = (values) => [...new Set(values)];
const slug = (text) => String(text).replace(/[^a-z0-9]+/gi, "-").replace(/^-|-$/g, "").toLowerCase();

// A table by column, {name: [values]} or {name: {words, at}}, as rows; `keep(columns, i)` picks them.
function records(columns, keep = null) {
  const found = Object.entries(columns || {}).map(([name, c]) => [name, Array.isArray(c) ? c : c.at.map((i) => c.words[i])]);
  const by = Object.fromEntries(found), rows = found.length ? d3.range(found[0][1].length) : [];
  return (keep ? rows.filter((i) => keep(by, i)) : rows).map((i) => Object.fromEntries(found.map(([name, c]) => [name, c[i]])));
}

function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) if (known(value)) node.setAttribute(key, value);
  node.append(...children.flat(3).filter((c) => known(c) && c !== ""));
  return node;
}
const dim = (text) => el("span", { class: "dim" }, text);
const said = (text) => (text ? el("p", { class: "note" }, text) : null);
const badge = (text, kind) => el("span", { class: `badge ${kind || slug(text)}` }, text);
const heading = (text, note, level = "h3") => [el(level, {}, text), said(note)];
const estimate = (v, low, high, digits = 3) => (known(v) ? el("span", {}, num(v, digits), " ", dim(range(low, high))) : "–");

// columns: {name, value(row), num, class, title}; `below(row)` is a second line of each row, over its whole width.
function table(columns, rows, below = null) {
  const head = columns.map((c) => el("th", { class: c.num ? "num" : null, title: c.title, scope: "col" }, c.name));
  const body = rows.map((r) => {
    const line = el("tr", { class: below ? "first" : null }, columns.map((c) => el("td", { class: [c.num ? "num" : "", c.class || ""].join(" ").trim() || null }, c.value(r) ?? "–")));
    return below ? [line, el("tr", { class: "second" }, el("td", { colspan: columns.length }, below(r)))] : line;
  });
  return el("div", { class: "scroll" }, el("table", { class: below ? "lines" : null }, el("thead", {}, el("tr", {}, head)), el("tbody", {}, body)));
}

// items: [text, colour, how]; how: dot (default), ring, diamond, line, dash, dots, bar, tick, times, hatch.
function legend(items) {
  return el("div", { class: "legend" }, items.map(([text, fill, how = "dot"]) => el("span", {}, el("i", { class: how, style: `--c:${fill}` }), text)));
}

// choices: [{label, options: [[value, text], ...], first, has}]; a single option has no buttons.  `has(value, chosen)`
// says whether an option exists under the choices before it: where it does not its button is hidden, and the first that
// does is taken.  draw(values) -> node or several.
function choose(choices, draw, kind = "") {
  const place = el("div"), wanted = choices.map((c) => c.first ?? c.options[0]?.[0]), groups = [];
  const bar = el("div", { class: `controls ${kind}`.trim() });
  const show = () => {
    const chosen = [];
    choices.forEach((choice, at) => {
      const there = choice.options.map(([value]) => value).filter((value) => !choice.has || choice.has(value, chosen));
      chosen.push(there.includes(wanted[at]) ? wanted[at] : there[0]);
      if (!groups[at]) return;
      groups[at].group.hidden = !there.length;
      groups[at].buttons.forEach(([value, b]) => {
        b.hidden = !there.includes(value);
        b.setAttribute("aria-pressed", String(value === chosen[at]));
      });
    });
    place.replaceChildren(...[drawn(() => draw(chosen))].flat(3).filter((c) => known(c) && c !== ""));
  };
  choices.forEach((choice, at) => {
    if (choice.options.length < 2) return;
    const buttons = choice.options.map(([value, text]) => {
      const b = el("button", { type: "button" }, text);
      b.onclick = () => {
        wanted[at] = value;
        show();
      };
      return [value, b];
    });
    const group = el("span", { class: "choice", role: "group", "aria-label": choice.label }, `${choice.label}: `, buttons.map(([, b]) => b));
    groups[at] = { group, buttons };
    bar.append(group);
  });
  show();
  return el("div", {}, bar.childNodes.length ? bar : null, place);
}

// A figure that cannot be drawn says so in its place; the others are drawn all the same.
function drawn(draw) {
  try {
    return draw();
  } catch (error) {
    console.error(error);
    return el("p", { class: "warn" }, `This figure could not be drawn: ${error.message}. Its numbers are in the tables beside the page.`);
  }
}

// Room for a figure of `width` pixels at most.
const fit = (width) => Math.min(width, Math.max(260, document.querySelector("main").clientWidth - 54));
const plot = (options) => el("div", { class: options.width > fit(options.width) ? "plot scroll" : "plot" }, hinted(Plot.plot({ style: { fontSize: "11px" }, ...options })));
const panel = (title, ...figures) => el("figure", { class: "panel", style: `width:${Math.min(figures[0].firstChild.getAttribute("width"), fit(Infinity))}px` }, el("figcaption", {}, title), figures);
const folded = (title, draw) => {
  const box = el("details", {}, el("summary", {}, title));
  const fill = () => box.childNodes.length < 2 && box.append(drawn(draw));
  box.addEventListener("toggle", () => box.open && fill());
  return box;
};
const panels = (figures, kind = "") => el("div", { class: `panels ${kind}`.trim() }, figures);
// Marks of several groups at one place, side by side: pixels to the right for the i-th of n.
const beside = (i, n, step) => (i - (n - 1) / 2) * step;

// The titles of a figure's marks as one box that shows the text of the mark nearest to the pointer.
const hint = el("div", { id: "hint", role: "status" });
const NEAR = 30;
function hinted(svg) {
  const marks = [...svg.querySelectorAll("title")].map((title) => {
    const mark = title.parentNode;
    mark.setAttribute("aria-label", title.textContent);
    mark.setAttribute("role", "img");
    title.remove();
    return mark;
  });
  let shown = null;
  const show = (mark) => {
    if (mark === shown) return;
    shown?.classList.remove("near");
    shown = mark;
    hint.hidden = !mark;
    if (!mark) return;
    mark.classList.add("near");
    hint.textContent = mark.getAttribute("aria-label");
    hint.style.left = "0";
    document.body.append(hint);
    const at = mark.getBoundingClientRect(), box = hint.getBoundingClientRect(), room = document.documentElement.clientWidth;
    hint.style.left = `${Math.max(6, Math.min(at.x + at.width / 2 - box.width / 2, room - box.width - 6))}px`;
    hint.style.top = `${at.y - box.height - 10 > 4 ? at.y - box.height - 10 : at.bottom + 10}px`;
  };
  const move = (event) => {
    let nearest = null, least = NEAR * NEAR;
    for (const mark of marks) {
      const { x, y, width, height } = mark.getBoundingClientRect();
      const distance = (x + width / 2 - event.clientX) ** 2 + (y + height / 2 - event.clientY) ** 2;
      if (distance < least) [nearest, least] = [mark, distance];
    }
    show(nearest);
  };
  svg.addEventListener("pointermove", move);
  svg.addEventListener("pointerdown", move);
  svg.addEventListener("pointerleave", () => show(null));
  addEventListener("scroll", () => show(null), { passive: true });
  return svg;
}
