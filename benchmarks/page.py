"""`docs/performance.md`, its plots and the README's figures, written from the results' JSON alone.

For a reader who wants to know whether to trust it: what was compared with what, the median and the spread,
the target that was set before, and where it was missed, by how much and why.  No number on the page comes
from anywhere but the JSON.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import plots
from benchmarks.bench import Curve, Equality, Figure, Note, Result, read
from benchmarks.plots import slug, time

ORDER = (
    "training_steps",
    "floors",
    "seeds",
    "sweep-smollm2",
    "sweep-smollm2-cell",
    "sweep-neox",
    "screens",
    "probing",
    "startup",
)
FLOORS = "floors"
BEGIN, END = "<!-- bench -->", "<!-- /bench -->"

HOW = """\
## How it is measured

- Two things are compared only when they ran next to each other: one round runs ours, then the other, then the next
  round begins. The ratio is taken within each round; the page shows the median over rounds and, in brackets, the
  quartiles. Warm-up rounds (compilation, caches) are not counted. Garbage is collected between rounds.
- `speedup` is the other's time over ours; `cost` is ours over the other's. Times in seconds are medians too, and
  belong to this machine.
- Threads are fixed for each figure and shown beside it; both sides have the same number.
- Each part runs in a process of its own. What must be equal is compared on the same weights and inputs, and the bench
  fails (exit code 1) when a difference is larger than allowed. A missed target does not fail it; it is listed above.
- A growth exponent is the slope of a least squares line through log time against log size, with its 95 % interval: 1
  is linear, 2 quadratic. Below 1 a fixed cost is still a visible part of the time.
- Other libraries are installed into an environment of the bench's own (`.bench/`), with versions pinned in
  `benchmarks/competitors/requirements.txt`; none of them is a dependency of causegrid.

## Run it again

```
make bench          everything, some hours on two idle cores; rewrites this page, its plots, the README's table
make bench-quick    every part on tiny sizes: shows that it works, measures nothing, writes nothing here
python -m benchmarks NAME ...    some parts; `--list` names them, `--resume` goes on with an interrupted run
```

The machine should have nothing else to do: the ratios bear noise, but a second busy process on the same cores does not
slow both sides alike.
"""


@dataclass(frozen=True, kw_only=True)
class Part:
    """A row's results and the facts of its run."""

    name: str
    results: Sequence[Result]
    facts: dict[str, Any]

    def of(self, kind: type[Any]) -> list[Any]:
        """The results of one kind."""
        return [r for r in self.results if isinstance(r, kind)]


def order(names: Iterable[str]) -> list[str]:
    """Row names as the page shows them: those of `ORDER` first, then by name."""
    return sorted(names, key=lambda name: (ORDER.index(name) if name in ORDER else len(ORDER), name))


def write(root: Path, folder: Path) -> None:
    """Write `docs/performance.md` and `docs/performance/*.svg` under `root`, and the README's block.

    Raises ValueError on results of the quick mode, which measure nothing.
    """
    found = {path.stem: read(path) for path in sorted(folder.glob("*.json"))}
    parts = [Part(name=name, results=found[name][0], facts=found[name][1]) for name in order(found)]
    quick = [part.name for part in parts if part.facts["quick"]]
    if quick:
        raise ValueError(f"{quick[0]}: results of the quick mode are no measurements and get no page")
    plots_folder = root / "docs" / "performance"
    for old in plots_folder.glob("*.svg"):
        old.unlink()
    for part in parts:
        for curve in part.of(Curve):
            plots.draw(curve, plots_folder / f"{slug(curve.name)}.svg")
    (root / "docs" / "performance.md").write_text(text(parts), encoding="utf-8")
    readme = root / "README.md"
    if readme.exists():
        readme.write_text(quoted(readme.read_text(encoding="utf-8"), parts), encoding="utf-8")


def text(parts: Sequence[Part]) -> str:
    """The page."""
    blocks = [
        "# Performance",
        "Written by `make bench` from the numbers it measured (`benchmarks/results/*.json`); nothing here is typed by "
        "hand.",
        *_failures(parts),
        *_machines(parts),
        *_targets(parts),
        *_floors(parts),
        *_missed(parts),
        *_equal(parts),
        *_found(parts),
        *_growth(parts),
        HOW.rstrip(),
    ]
    return "\n\n".join(blocks) + "\n"


def quoted(readme: str, parts: Sequence[Part]) -> str:
    """The README with the block between its two markers replaced; unchanged when it has none."""
    if BEGIN not in readme or END not in readme:
        return readme
    head, rest = readme.split(BEGIN, 1)
    _, tail = rest.split(END, 1)
    rows = [
        [f.name, f.against, f.threads, ratio(f, spread=False), target(f)]
        for part in parts
        for f in part.of(Figure)
        if f.target is not None and (part.name != FLOORS or f.threads == 1)
    ]
    return head + f"{BEGIN}\n{_table(['work', 'against', 'threads', 'median', 'target'], rows)}\n{END}" + tail


def ratio(f: Figure, *, spread: bool = True) -> str:
    """`12.3 x (11.9 - 12.8)`."""
    middle = f"{_three(f.ratio)} x"
    return f"{middle} ({_three(f.low)} - {_three(f.high)})" if spread else middle


def target(f: Figure) -> str:
    """`>= 40 x`, `<= 2 x`, or a dash."""
    if f.target is None:
        return "-"
    return f"{'>=' if f.kind == 'speedup' else '<='} {f.target:g} x"


def _three(value: float) -> str:
    """Three digits, no exponents: 0.0123, 1.23, 12.3, 1230."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}" if value >= 0.001 else f"{value:.1e}"


def _table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    lines = [list(head), ["---"] * len(head), *[[str(v).replace("|", "\\|") for v in row] for row in rows]]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _failures(parts: Sequence[Part]) -> list[str]:
    bad = [
        f"- **{p.facts['title']}** could not be measured: `{p.facts['error']}`"
        for p in parts
        if p.facts["error"]
    ]
    for part in parts:
        for found in part.results:
            if isinstance(found, Figure | Equality) and found.equal is False:
                bad.append(
                    f"- **{found.name}** differs from {found.against} by {found.difference:.2g}; "
                    f"{found.tolerance:.0e} is allowed"
                )
    return ["## Failed", "\n".join(bad)] if bad else []


def _machines(parts: Sequence[Part]) -> list[str]:
    groups: dict[str, list[Part]] = {}
    for part in parts:
        groups.setdefault(json.dumps(part.facts["machine"], sort_keys=True), []).append(part)
    blocks = ["## The machine"]
    for members in groups.values():
        facts = members[0].facts["machine"]
        rows = [
            ["processor", f"{facts['processor']}, {facts['instructions']}, {facts['cores']} cores"],
            ["memory", f"{facts['memory_gib']} GiB" if facts["memory_gib"] else "unknown"],
            ["system", f"{facts['system']}, Python {facts['python']}, {facts['blas']} for matrix products"],
            ["versions", ", ".join(f"{name} {version}" for name, version in facts["versions"].items())],
            ["measured", _when(members)],
        ]
        if len(groups) > 1:
            rows.append(["parts", ", ".join(part.facts["title"] for part in members)])
        blocks.append(_table(["", ""], rows))
    return blocks


def _when(parts: Sequence[Part]) -> str:
    days = sorted({part.facts["finished"][:10] for part in parts})
    minutes = sum(part.facts["seconds"] for part in parts) / 60
    return f"{' to '.join(dict.fromkeys([days[0], days[-1]]))}, {minutes:.0f} minutes in all"


def _targets(parts: Sequence[Part]) -> list[str]:
    rows = [
        [f.name, f.against, f.threads, f.kind, target(f), ratio(f), time(f.ours_s), time(f.other_s), _met(f)]
        for part in parts
        if part.name != FLOORS
        for f in part.of(Figure)
    ]
    head = ["work", "against", "threads", "kind", "target", "measured", "ours", "other", "met"]
    return ["## Against others", _table(head, rows)] if rows else []


def _floors(parts: Sequence[Part]) -> list[str]:
    part = next((p for p in parts if p.name == FLOORS), None)
    if part is None or not part.of(Figure):
        return []
    rows = [
        [f.name, f.threads, time(f.ours_s), time(f.other_s), target(f), ratio(f), _met(f), f.note]
        for f in part.of(Figure)
    ]
    head = ["step", "threads", "ours", "floor", "target", "measured", "met", "size"]
    return [
        "## Against the machine's floor",
        "The floor is 6 x parameters x tokens floating point operations at the fastest matrix product rate measured "
        "in the same round (over the model's own shapes and 1024 x 1024 x 1024). For Mamba one read of its scans' "
        "inputs and one write of their outputs, forward and backward, at the measured copy bandwidth, is added. "
        "Element-wise work, attention, the optimizer and everything else a step must also do has no part in the "
        "floor, so 1 x cannot be reached.",
        _table(head, rows),
        "\n".join(f"- {note.title}: {note.text}" for note in part.of(Note)),
    ]


def _met(f: Figure) -> str:
    return {None: "-", True: "yes", False: "**no**"}[f.met]


def _missed(parts: Sequence[Part]) -> list[str]:
    lines = []
    for part in parts:
        for f in part.of(Figure):
            if f.met is False:
                by = f.target / f.ratio if f.kind == "speedup" else f.ratio / f.target
                what = "its floor" if part.name == FLOORS else f.against
                why = f" {f.note}" if f.note else ""
                lines.append(
                    f"- **{f.name}** on {f.threads} thread{'s' * (f.threads > 1)} against {what}: "
                    f"{ratio(f)}, target {target(f)}: short by a factor of {by:.2f}.{why}"
                )
    return ["## Missed targets", "\n".join(lines) if lines else "None."]


def _equal(parts: Sequence[Part]) -> list[str]:
    rows: dict[tuple[str, ...], None] = {}  # the same comparison on one thread and two is one line
    for part in parts:
        for f in part.results:
            if isinstance(f, Figure | Equality) and f.equal is not None:
                cells = [
                    f.name,
                    f.against,
                    f"{f.difference:.1e}",
                    f"{f.tolerance:.0e}",
                    "yes" if f.equal else "**no**",
                ]
                rows[(*cells, f.note)] = None
    head = ["what", "against", "largest difference", "allowed", "equal", "how"]
    return ["## Equal results", _table(head, list(rows))] if rows else []


def _found(parts: Sequence[Part]) -> list[str]:
    lines = [
        f"- **{note.title}**: {note.text}" for part in parts if part.name != FLOORS for note in part.of(Note)
    ]
    return ["## Found along the way", "\n".join(lines)] if lines else []


def _growth(parts: Sequence[Part]) -> list[str]:
    blocks: list[str] = []
    for part in parts:
        for curve in part.of(Curve):
            rows = [
                [name, f"{v:.2f}", f"{low:.2f} to {high:.2f}"]
                for name, (v, low, high) in curve.exponent.items()
            ]
            blocks += [f"### {curve.name}", f"![{curve.name}, log-log](performance/{slug(curve.name)}.svg)"]
            blocks += [curve.note] if curve.note else []
            blocks += [_table(["", "exponent", "95 % interval"], rows)] if rows else []
    lead = "Both axes are logarithmic. The number beside a line is its exponent: 1 is linear, 2 quadratic."
    return ["## How it grows", lead, *blocks] if blocks else []
