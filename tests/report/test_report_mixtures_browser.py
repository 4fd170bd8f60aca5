"""The figures of mixtures and of training checkpoints in a browser: marks, nulls, tables, and what is missing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from report_mixtures import (
    ABLATED,
    EXPERTS,
    MIXED,
    TOKENS,
    WITHOUT_DRAWS,
    mixture_tables,
)
from report_runs import GROUPS, make_run, pattern_cell, pattern_tables
from test_report_browser import CHROMIUM, Seen, browser, playwright  # noqa: F401

from causegrid.report import write_report

pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="no chromium on this machine (Debian: apt install chromium)"
)
ROUTING, ALONE, REROUTED = (
    "Where the tokens go: every expert",
    "Each expert alone",
    "What ablating a group does to the routing",
)
TRAINING, INTEGRAL, ONE = (
    "Participation ratio over training",
    "Integral over training",
    "At the one checkpoint",
)
HEADINGS = (ROUTING, ALONE, REROUTED, TRAINING, INTEGRAL, ONE)


def page(browser: Any, folder: Any, *makes: Any) -> Seen:  # noqa: F811
    cells = [pattern_cell(seed=i) for i in range(len(makes))]
    make_run(folder, "pattern-selectivity", cells, lambda cell: makes[cell["seed"]](cell))
    return Seen(browser, write_report(folder))


@pytest.fixture(scope="module")
def seen(browser, tmp_path_factory) -> Seen:  # noqa: F811
    return page(browser, tmp_path_factory.mktemp("mixtures"), mixture_tables, pattern_tables)


def part(seen: Seen, title: str, cell: int = 0) -> Any:
    """The box of one section of a cell."""
    return seen.tab.locator(f"#cell-0-{cell}").get_by_role("heading", name=title, exact=True).locator("..")


def marks(figure: Any) -> tuple[int, int]:
    """Dots with a hint; bars and lines."""
    return figure.locator("circle[role='img']").count(), figure.locator("g[aria-label='rule'] line").count()


def unfold(box: Any, lines: int) -> None:
    """Open the box of a table, which is drawn a moment after, and hold it to its number of lines."""
    box.locator("summary").click()
    playwright.expect(box.locator("details tbody tr")).to_have_count(lines)


def press(box: Any, name: str) -> None:
    box.get_by_role("button", name=name, exact=True).click()


def test_sections_stand_where_a_cell_has_their_table(seen):
    assert seen.fine
    first, second = (seen.tab.locator(f"#cell-0-{i}").locator("h4, h5").all_inner_texts() for i in (0, 1))
    assert [h for h in first if h in HEADINGS] == [ROUTING, ALONE, REROUTED, TRAINING, INTEGRAL]
    assert not set(second) & set(HEADINGS)


def test_every_expert_has_its_use_and_interval(seen):
    box = part(seen, ROUTING)
    assert "intervals over 64 prompts" in box.inner_text()
    n = len(MIXED) * EXPERTS
    lines = len(MIXED) - 1 + len(MIXED)  # between layers; where each would be if tokens were spread evenly
    for button in ("all positions", "the query position", "combine weight"):
        press(box, button)
        assert marks(box.locator("svg")) == (n, n + lines)
    hint = box.locator("[aria-label^='L22E0, the query position']").get_attribute("aria-label")
    assert "share of tokens 0.910 [0.880, 0.930]\ncombine weight 0.270 [0.180, 0.360]" in hint
    unfold(box, n)
    said = box.locator("tbody tr").first.inner_text().split("\t")
    assert said[:3] == ["L22E0", "0.900 [0.880, 0.930]", "0.910 [0.880, 0.930]"]
    assert seen.fine


def test_each_expert_alone_stands_beside_experts_of_like_use(seen):
    box = part(seen, ALONE)
    n, alone = len(MIXED) * ABLATED, len(MIXED)  # the first of a layer is used too much to compare
    assert f"of {n} experts up to one in twenty" in box.inner_text()
    bars = 2 * n - alone + 1  # intervals, the others' spread, the zero line
    assert marks(box.locator("svg")) == (n, bars + len(MIXED) - 1)
    press(box, "use")
    assert marks(box.locator("svg")) == (n, bars)
    press(box, "top-1")
    assert "percentage points" in box.locator("svg").text_content()
    assert box.locator("circle[fill='white']").count() == alone
    hint = box.locator("[aria-label^='L23E1: 39 tokens']").get_attribute("aria-label")
    assert "experts of like use +0.20 ± 1.00 (4)\np 0.40, least attainable 0.40" in hint
    hint = box.locator("[aria-label^='L23E0: 40 tokens']").get_attribute("aria-label")
    assert "experts of like use too few (0)" in hint and "\np " not in hint
    unfold(box, 2 * n)
    assert seen.fine


def test_changes_of_routing_stand_beside_the_groups_own_draws(seen):
    box = part(seen, REROUTED)
    lines = [row.inner_text().split("\t") for row in box.locator("table").first.locator("tbody tr").all()]
    assert [line[0] for line in lines] == list(GROUPS)
    for line in lines:
        assert line[2] == ("none" if line[0] == WITHOUT_DRAWS else "6.0 % [5.0 to 8.0] (5)")
        assert line[3] == f"{GROUPS[line[0]][1]:+.2f}".replace("-", "−")
    for group, figure in zip(GROUPS, box.locator("svg").all(), strict=True):
        layers = len(MIXED)
        drawn = 0 if group == WITHOUT_DRAWS else layers
        assert marks(figure) == (layers, layers + drawn)
        assert figure.locator("g[aria-label='dot'] path").count() == drawn
    before = lines[0][1]
    press(box, "zero")
    assert box.locator("table").first.locator("tbody tr td").nth(1).inner_text() != before
    unfold(box, 3 * 2 * 2 * (len(MIXED) + 1))
    assert seen.fine


def test_the_course_over_training_and_its_integral(seen):
    box = part(seen, TRAINING)
    assert "the untrained model stands apart at 0" in box.inner_text()
    assert "the other 248 heads: middle 90 %" in box.inner_text()
    *courses, integral = box.locator("svg").all()
    for (heads, *_), figure in zip(GROUPS.values(), courses, strict=True):
        n = len(heads) * len(TOKENS)
        assert marks(figure) == (n, n + 1)  # the others at step 0
        assert figure.locator("g[aria-label='area'] path").count() == 1
        assert [t for t in figure.locator("text").all_text_contents() if t[-1] in "0B"] == [
            "0",
            "1B",
            "4B",
            "16B",
        ]
    assert marks(integral) == (270, 270 + 29)
    unfold(box, 270)
    integrals = [float(r.inner_text().split("\t")[2].split()[0]) for r in box.locator("tbody tr").all()]
    assert integrals == sorted(integrals, reverse=True)
    assert seen.fine


def one_checkpoint(cell: Any) -> Any:
    tables, facts = mixture_tables(cell)
    tables["checkpoints"] = tables["checkpoints"].query("tokens == 1e9")
    empty = dict.fromkeys(("integral", "low", "high"), np.nan)
    tables["pr_integral"] = tables["pr_integral"].assign(**empty, n_checkpoints=1)
    return tables, facts


def no_draws(cell: Any) -> Any:
    tables, facts = mixture_tables(cell)
    changes = tables["routing_changes"]
    above = changes["group"] == "name-mover"  # heads above the last layer with experts
    changes = changes[~above | (changes["layer"] == -1)].assign(n_null=0)
    changes.loc[changes["group"] == "name-mover", ["share", "low", "high"]] = np.nan
    tables["routing_changes"] = changes.drop(columns=["null_mean", "null_low", "null_high"])
    tables["checkpoints"] = tables["checkpoints"].query("tokens > 0")
    del tables["verdicts"]
    return tables, facts


def test_one_checkpoint_and_groups_without_draws(browser, tmp_path):  # noqa: F811
    found = page(browser, tmp_path, one_checkpoint, no_draws)
    assert found.fine
    box = part(found, TRAINING)
    assert "One checkpoint after step 0 has no course and no integral" in box.inner_text()
    (figure,) = box.locator("svg").all()
    assert marks(figure) == (270, 270 + 29)
    assert box.get_by_role("heading", name=ONE).count() == 1
    assert "untrained" not in part(found, TRAINING, 1).inner_text()
    assert "heads of no competing group" in part(found, TRAINING, 1).inner_text()
    box = part(found, REROUTED, 1)
    first = box.locator("table").first.locator("tbody tr").first.inner_text().split("\t")
    assert first[:3] == ["name-mover", "no layer can change", "none"]
    assert box.locator("svg").count() == 2 and "random draws, lowest" not in box.inner_text()
    text = found.tab.locator("main").inner_text()
    assert "NaN" not in text and "undefined" not in text and "null" not in box.inner_text()


@pytest.mark.parametrize("width", [700, 390])
def test_no_screen_is_too_narrow(browser, seen, width):  # noqa: F811
    found = Seen(browser, seen.path, width)
    assert found.fine
    assert found.tab.evaluate("document.documentElement.scrollWidth") <= width
