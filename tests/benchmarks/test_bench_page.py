"""The page and the README's block from fixed JSON: every number on them is one of the results'."""

from __future__ import annotations

import re
from pathlib import Path

import bench_examples as examples
import pytest

from benchmarks import bench, page, plots


@pytest.fixture
def results(tmp_path: Path) -> Path:
    folder = tmp_path / "results"
    step = examples.figure()
    floor = dict(kind="cost", against="floor", ours_s=0.3, other_s=0.1, ratio=3.0, low=2.9, high=3.2)
    examples.write(folder, "other", [bench.Note(title="Finding", text="processes win")])
    examples.write(folder, "training_steps", [step, examples.CURVE])
    missed = examples.figure(**floor, name="Big step", target=2.0, difference=None, tolerance=None)
    rates = bench.Note(title="Rates on 1 thread", text="matrix products 50 GFLOP/s")
    examples.write(folder, "floors", [missed, rates])
    return folder


def test_the_page_holds_the_results_in_order(results: Path, tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("before\n<!-- bench -->\nold\n<!-- /bench -->\nafter\n")
    (tmp_path / "docs").mkdir()
    page.write(tmp_path, results)
    text = (tmp_path / "docs" / "performance.md").read_text()
    assert (
        "| Small step | a slow step | 1 | speedup | >= 40 x | 41.5 x (40.2 - 43) | 100 ms | 4.15 s | yes |"
        in text
    )
    assert "| Big step | 1 | 300 ms | 100 ms | <= 2 x | 3 x (2.9 - 3.2) | **no** |" in text
    assert "short by a factor of 1.50" in text
    assert "| Slow | 2.00 | 1.90 to 2.10 |" in text
    assert "**Finding**: processes win" in text
    assert "matrix products 50 GFLOP/s" in text
    assert "2026-01-02, 3 minutes in all" in text
    assert "## Failed" not in text
    assert text.index("Against others") < text.index("machine's floor") < text.index("## How it grows")
    readme = (tmp_path / "README.md").read_text()
    assert readme.startswith("before\n<!-- bench -->\n|")
    assert readme.endswith("<!-- /bench -->\nafter\n")
    assert "| Small step | a slow step | 1 | 41.5 x | >= 40 x |" in readme
    assert "old" not in readme


def test_plots_are_white_labelled_and_repeat_byte_for_byte(tmp_path: Path) -> None:
    first, second = tmp_path / "a.svg", tmp_path / "b.svg"
    plots.draw(examples.CURVE, first)
    plots.draw(examples.CURVE, second)
    assert first.read_bytes() == second.read_bytes()
    svg = first.read_text()
    assert re.search(r"<g id=\"patch_1\">.*?fill: #ffffff", svg, re.DOTALL)
    for words in ("length (tokens)", "time", "Fast: 1.00", "Slow: 2.00", "10 ms"):
        assert f"<!-- {words} -->" in svg, words


def test_failures_and_differences_come_first(results: Path, tmp_path: Path) -> None:
    examples.write(results, "broken", [], error="ImportError: no module named x")
    examples.write(results, "unequal", [examples.figure(difference=0.5)])
    (tmp_path / "docs").mkdir()
    page.write(tmp_path, results)
    text = (tmp_path / "docs" / "performance.md").read_text()
    assert "**The broken** could not be measured: `ImportError: no module named x`" in text
    assert "**Small step** differs from a slow step by 0.5; 1e-05 is allowed" in text
    assert text.index("## Failed") < text.index("## The machine")


def test_quick_results_get_no_page(results: Path, tmp_path: Path) -> None:
    examples.write(results, "fast", [], quick=True)
    with pytest.raises(ValueError, match="fast"):
        page.write(tmp_path, results)


def test_results_survive_the_file(tmp_path: Path) -> None:
    kept = [examples.figure(), examples.CURVE, bench.Note(title="a", text="b")]
    kept.append(bench.Equality(name="n", against="m", difference=0.0, tolerance=0.0))
    examples.write(tmp_path, "row", kept)
    assert bench.read(tmp_path / "row.json")[0] == kept
    with pytest.raises(ValueError, match="not finite"):
        examples.write(tmp_path, "row", [examples.figure(ratio=float("nan"))])


def test_a_figure_from_rounds() -> None:
    made = dict(ours=[1.0, 2.0, 2.0], other=[4.0, 6.0, 10.0], threads=1)
    speed = bench.figure("a", "b", "speedup", **made, target=4.0)
    assert (speed.ratio, speed.low, speed.high, speed.ours_s, speed.other_s) == (4.0, 3.5, 4.5, 2.0, 6.0)
    assert speed.met
    cost = bench.figure("a", "b", "cost", **made, target=0.2)
    assert cost.ratio == 0.25
    assert cost.met is False
    assert bench.figure("a", "b", "cost", **made, target=None).met is None
