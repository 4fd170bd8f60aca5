"""One SVG per curve: log-log, white behind it in light and dark pages, series labelled at their ends.

The file is a function of the curve alone: no date, fixed ids.
"""

from __future__ import annotations

import math
import re
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter

from benchmarks.bench import Curve

# Okabe and Ito's colours, told apart by most colour-blind readers; markers say the same again
LOOKS = [("#0072B2", "o"), ("#D55E00", "s"), ("#009E73", "^"), ("#CC79A7", "D"), ("#000000", "v")]
LOOKS += [("#E69F00", "P"), ("#56B4E9", "X")]
LABEL = 9.0  # points
HEIGHT = 1.5 * LABEL  # points between two labels


def slug(name: str) -> str:
    """A file name of letters, digits and hyphens."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def draw(curve: Curve, path: Path) -> None:
    """Draw the curve as SVG to `path`."""
    with matplotlib.rc_context(
        {"svg.hashsalt": curve.name, "font.family": "DejaVu Sans", "font.size": LABEL}
    ):
        canvas = Canvas(figsize=(7.2, 4.2), facecolor="white")
        axes = canvas.add_axes((0.11, 0.13, 0.56, 0.83), facecolor="white")
        ends: list[tuple[float, str, str]] = []
        for (name, values), (colour, marker) in zip(
            curve.series.items(), _looks(len(curve.series)), strict=True
        ):
            axes.plot(curve.xs, values, color=colour, marker=marker, markersize=5, linewidth=1.6)
            ends.append((values[-1], _label(curve, name), colour))
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.xaxis.set_major_locator(FixedLocator(curve.xs))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:,.0f}"))
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.tick_params(axis="x", which="minor", bottom=False)
        seconds = curve.y == "seconds"
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if _decades(curve) < 2.5 else (1,)))
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.yaxis.set_major_formatter(FuncFormatter(lambda v, _: time(v) if seconds else f"{v:,g}"))
        _wide_enough(axes, curve)
        axes.set_xlabel(curve.x)
        axes.set_ylabel("time" if seconds else curve.y)
        axes.grid(True, which="major", color="#dddddd", linewidth=0.7)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
        _name_ends(axes, ends, curve.xs[-1], canvas.dpi / 72)
        path.parent.mkdir(parents=True, exist_ok=True)
        canvas.savefig(path, format="svg", metadata={"Date": None})


def time(seconds: float) -> str:
    """A time with its unit: `12 ms`, `1.5 s`, `3 min`."""
    if seconds < 1e-3:
        return f"{seconds * 1e6:.3g} µs"
    if seconds < 1:
        return f"{seconds * 1e3:.3g} ms"
    return f"{seconds:.3g} s" if seconds < 600 else f"{seconds / 60:.3g} min"


def _looks(n: int) -> list[tuple[str, str]]:
    return [LOOKS[i % len(LOOKS)] for i in range(n)]


def _label(curve: Curve, name: str) -> str:
    found = curve.exponent.get(name)
    return name if found is None else f"{name}: {found[0]:.2f}"


def _span(curve: Curve) -> tuple[float, float]:
    values = [v for series in curve.series.values() for v in series if v > 0 and math.isfinite(v)]
    return min(values), max(values)


def _decades(curve: Curve) -> float:
    low, high = _span(curve)
    return math.log10(high / low)


def _wide_enough(axes: Axes, curve: Curve) -> None:
    """At least one decade up and down: a flat line should look flat, and a tick needs room."""
    low, high = _span(curve)
    spare = max(1.15, math.sqrt(10 / (high / low))) if high / low < 10 else 1.15
    axes.set_ylim(low / spare, high * spare)


def _name_ends(axes: Axes, ends: list[tuple[float, str, str]], x: float, pixels: float) -> None:
    """Labels right of the last point, moved apart where they would overlap; `pixels` per point."""
    ordered = sorted(ends)
    wanted = [axes.transData.transform((x, value))[1] / pixels for value, _, _ in ordered]
    placed = list(wanted)
    for _ in range(200):  # push neighbours apart, half each, until none overlap
        moved = False
        for i in range(1, len(placed)):
            short = HEIGHT - (placed[i] - placed[i - 1])
            if short > 0.1:
                placed[i - 1] -= short / 2
                placed[i] += short / 2
                moved = True
        if not moved:
            break
    for at, put, (value, text, colour) in zip(wanted, placed, ordered, strict=True):
        axes.annotate(
            text,
            (x, value),
            xytext=(14, put - at),
            textcoords="offset points",
            color=colour,
            va="center",
            annotation_clip=False,
            arrowprops=dict(arrowstyle="-", color=colour, linewidth=0.6, shrinkA=0, shrinkB=4),
        )
