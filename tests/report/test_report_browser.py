"""The page in a browser, offline: it draws, asks for nothing, its buttons and hints work, whatever the tables hold."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from report_mixtures import mixture_tables
from report_runs import (
    BOUND,
    CLAIMS,
    GROUPS,
    ONLY,
    STAGES,
    UNION,
    make_run,
    pattern_cell,
    pattern_tables,
    state_cell,
    state_tables,
)
from report_states import FAMILIES
from test_report_page import EVIL, evil_run

from causegrid.report import write_report

playwright = pytest.importorskip(
    "playwright.sync_api", reason="playwright is not installed (pip install '.[dev]')"
)
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="no chromium on this machine (Debian: apt install chromium)"
)
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as play:
        found = play.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield found
        found.close()


class Seen:
    """A page that was opened offline, with what it asked for and complained of."""

    def __init__(self, browser: Any, path: Path, width: int = 1280) -> None:
        self.tab = browser.new_context(offline=True, viewport={"width": width, "height": 900}).new_page()
        self.asked: list[str] = []
        self.complaints: list[str] = []
        self.tab.on("request", lambda r: self.asked.append(r.url))
        self.tab.on("console", lambda m: self.complaints.append(m.text))
        self.tab.on("pageerror", lambda e: self.complaints.append(str(e)))
        self.path = path
        self.address = path.resolve().as_uri()
        self.tab.goto(self.address)
        self.tab.wait_for_selector("body[data-drawn]")

    @property
    def fine(self) -> bool:
        """Nothing was asked for but the page, nothing complained, no figure failed."""
        failed = self.tab.locator(".figures .warn").all_inner_texts()
        assert not failed and not self.complaints, (failed, self.complaints)
        assert self.asked == [self.address]
        return True

    def count(self, selector: str) -> int:
        return self.tab.locator(selector).count()


@pytest.fixture(scope="module")
def drawn(whole) -> Path:
    return whole / "report.html"


@pytest.fixture(scope="module")
def seen(browser, drawn) -> Seen:
    return Seen(browser, drawn)


def test_it_draws_everything_and_asks_for_nothing(seen):
    assert seen.fine
    # Of the one task shown, per family: two learning curves, a probe, readings and an erasure, an erasure at longer
    # lengths (not of the transformer, whose positions are learned), two or three parts, two of patching; behaviour in
    # three measures.  Parity has one rank: no sweep.
    assert seen.count("#study-0 .plot svg") == 3 + 5 * 8 - 1 + (2 + 3 + 3 + 2 + 2)
    assert seen.count("#study-1 .plot svg") == 2 * 6
    assert seen.tab.evaluate("performance.now()") < 20_000  # 1 to 2 s on an idle machine


@pytest.mark.parametrize("width", [1280, 700, 390])
def test_no_screen_is_too_narrow(browser, drawn, width):
    found = Seen(browser, drawn, width)
    assert found.fine
    assert found.tab.evaluate("document.documentElement.scrollWidth") <= width
    for box in found.tab.locator(".panel").all()[::5]:
        assert box.bounding_box()["width"] <= width


def test_option_buttons_redraw(seen):
    first = seen.tab.locator("#study-0 .plot svg").first
    before = first.inner_html()
    button = seen.tab.get_by_role("button", name="loss (nats)")
    assert button.get_attribute("aria-pressed") == "false"
    button.click()
    assert button.get_attribute("aria-pressed") == "true"
    assert seen.tab.get_by_role("button", name="token accuracy").get_attribute("aria-pressed") == "false"
    assert first.inner_html() != before
    for at in range(seen.count("#study-0 section .controls button")):
        button = seen.tab.locator("#study-0 section .controls button").nth(at)
        if button.is_visible():
            button.click()
    assert seen.fine


def part(seen: Seen, name: str) -> str:
    """The text of a section of the first run, spaces single."""
    return re.sub(r"\s+", " ", seen.tab.locator(f"#{name}-0").inner_text())


def test_learned_positions_beyond_the_trained_length_are_pale_or_left_out(browser, drawn):
    seen = Seen(browser, drawn)  # a page on which no other test has chosen a part
    assert "transformer (learned positions: untrained beyond 40)" in part(seen, "behaviour")
    figure = seen.tab.locator("#behaviour-0 svg").first
    for length, pale in ((40, False), (60, True)):
        mark = figure.locator(
            f"circle[aria-label^='transformer on parity, seed 0 (learned to 24), length {length}']"
        )
        assert (mark.get_attribute("opacity") == "0.3") == pale
        assert ("untrained beyond 40" in mark.get_attribute("aria-label")) == pale
    out = "Left out: transformer (learned positions: untrained beyond 40)."
    assert out in part(seen, "longer-lengths")
    assert seen.tab.locator("#longer-lengths-0 figcaption b").all_inner_texts() == [
        "mamba",
        "mamba2",
        "lstm",
        "gru",
    ]
    parts = seen.tab.locator("#parts-0")
    parts.get_by_role("button", name="the length each learned").click()
    playwright.expect(parts).not_to_contain_text(out)
    playwright.expect(parts.locator("figcaption b", has_text="transformer")).not_to_have_count(0)
    parts.get_by_role("button", name="120", exact=True).click()
    playwright.expect(parts).to_contain_text(out)
    playwright.expect(parts.locator("figcaption b", has_text="transformer")).to_have_count(0)


def test_notes_say_what_the_measures_do(seen):
    trained = seen.tab.locator("#study-0 .figures").inner_text()
    assert "at least 99 % of the first 40 tokens are right" in trained
    erasure = part(seen, "erasure")
    assert "probe’s interval straddles its threshold" in erasure and "too wide" not in erasure
    assert "a seed that did not learn the task at the trained length" in erasure
    assert "An interval that holds 0 shows no effect here" in part(seen, "parts")
    assert "the first block’s input where that token is the only difference" in part(seen, "patching")


def test_a_badge_says_how_far_the_seeds_got(seen):
    def badge(*lengths: int) -> str:
        said = {40: "learned", 4: "not learned"}
        cells = [{"learned": said.get(n, f"learned to {n}"), "learned_length": n} for n in lengths]
        return seen.tab.evaluate(
            "(cells) => { const b = result(cells); return b.textContent + '|' + b.className; }", cells
        )

    assert badge(39, 33, 34) == "learned to 33–39, 3 seeds|badge partly"
    assert badge(15, 15) == "learned to 15, 2 seeds|badge partly"
    assert badge(15, 4, 19) == "2 of 3 seeds learned to 15–19|badge partly"
    assert badge(40, 26, 40) == "2 of 3 seeds learned|badge partly"
    assert badge(40, 40) == "2 of 2 seeds learned|badge learned"
    assert badge(4, 4) == "not learned, 2 seeds|badge not-learned"


def test_every_word_on_a_button_of_parts_and_sites_is_explained(seen):
    for name, label in (("parts", "How"), ("patching", "Patched")):
        for button in seen.tab.locator(f"#{name}-0 [aria-label='{label}'] button").all():
            button.click()
            assert button.inner_text() in seen.tab.locator(f"#{name}-0 dl.meanings dt").all_inner_texts()
    seen.tab.locator("#parts-0").get_by_role("button", name="identity").click()
    assert seen.tab.locator("#parts-0 dl.meanings dt").all_inner_texts() == ["identity", "conv"]


def narrow_and_wide(cell: Any) -> Any:
    """Parity with principal components of rank 4 as well, and an INLP that took the whole space."""
    tables, facts = state_tables(cell)
    table = tables["erasure"]
    inlp = table["basis"] == "inlp"
    table.loc[inlp, ["rank", "control_variance"]] = [127, 0.99]
    table.loc[inlp, "removed"] = False
    more = table[table["basis"] == "principal"].assign(rank=4, full=False)
    return {**tables, "erasure": pd.concat([table, more], ignore_index=True)}, facts


def test_a_rank_that_a_basis_lacks_has_no_button(browser, tmp_path):
    make_run(tmp_path, "state-encoding", [state_cell("parity", "gru")], narrow_and_wide)
    found = Seen(browser, write_report(tmp_path))
    controls = found.tab.locator("#erasure-0 .controls").first
    ranks = controls.locator("[aria-label='Rank'] button:visible")

    def choose(name: str) -> list[str]:
        controls.get_by_role("button", name=name).click()
        return ranks.all_inner_texts()

    assert ranks.all_inner_texts() == ["1"] and "rank 1 is all of it here" in part(found, "erasure")
    assert choose("principal components") == ["1", "4"]
    ranks.last.click()
    assert choose("probe directions") == ["1"] and ranks.get_attribute("aria-pressed") == "true"
    assert choose("principal components") == ["1", "4"]  # and what was chosen there is chosen still
    assert ranks.last.get_attribute("aria-pressed") == "true"
    assert choose("INLP") == [] and "INLP sets its own rank" in part(found, "erasure")
    assert found.fine and found.count("#erasure-0 svg") == 3


def test_an_inlp_of_nearly_every_direction_is_said_to_be_one(browser, seen, tmp_path):
    make_run(tmp_path, "state-encoding", [state_cell("parity", "gru")], narrow_and_wide)
    found = Seen(browser, write_report(tmp_path))
    assert "INLP took nearly every direction (127) in 5 of its 5 boxes" in part(found, "erasure")
    hint = found.tab.locator("#erasure-0 [aria-label*='INLP']").first.get_attribute("aria-label")
    assert "INLP, 127 directions (stopped at its limit of 24 rounds) (nearly the whole space): " in hint
    assert "nearly every direction" not in part(seen, "erasure")


@pytest.mark.parametrize(
    ("task", "said"), [("dyck", "closing brackets"), ("dyck:k=8", "closing brackets"), ("s3", "nowhere else")]
)
def test_what_differs_between_twins_is_said(browser, tmp_path, task, said):
    make_run(tmp_path, "state-encoding", [state_cell(task, "gru")], state_tables)
    (text,) = [
        t
        for t in ("closing brackets", "nowhere else")
        if t in part(Seen(browser, write_report(tmp_path)), "patching")
    ]
    assert text == said


def test_what_is_folded_in_the_claims_is_printed(browser, tmp_path):
    claim = {**CLAIMS[0], "why": "effect 1. Learned to 9 only, left out: dyck gru seed 0."}
    make_run(tmp_path, "state-encoding", [state_cell("parity", "gru")], state_tables, claims=[claim])
    found = Seen(browser, write_report(tmp_path))
    box = found.tab.locator(".claims details")
    hidden = box.get_by_text("dyck gru seed 0")
    assert not box.evaluate("b => b.open") and hidden.count() == 1
    found.tab.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert box.evaluate("b => b.open")
    found.tab.evaluate("dispatchEvent(new Event('afterprint'))")
    assert not box.evaluate("b => b.open")
    wide = found.tab.locator(".claims td.why").bounding_box()["width"]
    assert wide > 0.85 * found.tab.locator(".claims").bounding_box()["width"]


def test_a_task_is_chosen_by_keyboard_and_every_part_follows(seen):
    button = seen.tab.locator(".tasks").get_by_role("button", name="s3", exact=True)
    button.focus()
    seen.tab.keyboard.press("Enter")
    assert button.get_attribute("aria-pressed") == "true"
    assert seen.tab.locator("h3.task").inner_text() == "s3"
    assert seen.tab.get_by_text("not learned, 3 seeds").count() >= 7  # in the overview and over each figure
    assert seen.tab.get_by_role("heading", name="By rank, at one block").is_visible()
    mark = seen.tab.locator(
        "#erasure-0 [aria-label^='mamba on s3, seed 1 (not learned), block 2'][aria-label*='INLP']"
    ).first
    said = mark.get_attribute("aria-label")
    for part in ("\ntask 0.", "\n39 random subspaces 0.", "\nfresh probe 0.", ", baseline 0."):
        assert part in said
    assert seen.count("#study-0 section details table") == 0  # tables wait until they are opened
    seen.tab.locator("#probes-0 summary").press("Enter")
    lines = seen.tab.locator("#probes-0 details tbody tr")
    playwright.expect(lines).to_have_count(5 * 3 * 5 * 2)  # families, seeds, layers, labels
    assert seen.fine
    seen.tab.locator(".tasks").get_by_role("button", name="parity", exact=True).click()


def test_seeds_that_did_not_learn_look_otherwise(seen):
    """Parity: the transformer learned to 24 only; every other family learned."""
    curves = seen.tab.locator("#learning-0 figure")
    for at, figure in enumerate(curves.all()):
        dashed = figure.locator("svg").first.locator("g[aria-label='line'][stroke-dasharray]").count()
        ends = figure.locator("svg").first.locator("circle").all()
        assert dashed == (3 if at == 0 else 0)
        fills = {mark.evaluate("m => getComputedStyle(m).fill") for mark in ends}
        assert len(ends) == 3 and (fills == {"rgb(255, 255, 255)"}) == (at == 0)
    assert "learned to 24, 3 seeds" in curves.first.inner_text()
    assert (
        "404,000" not in curves.first.inner_text()
        and "411,000 parameters · curriculum" in curves.first.inner_text()
    )


def test_cells_by_construction_are_hatched_and_said_to_be(seen):
    figure = seen.tab.locator("#patching-0 svg:has(rect)").first
    given = figure.locator("rect[aria-label*='by construction']").count()
    assert 0 < given == figure.get_by_text("╱").count() < figure.locator("rect[aria-label]").count()


def test_a_hint_tells_the_number_and_its_interval(seen, whole):
    table = whole / "state-encoding" / "tables" / "behaviour.csv"
    wanted = next(line.split(",") for line in table.read_text().splitlines() if ",gru,0,40,token," in line)
    mark = seen.tab.locator("#behaviour-0 svg").first.locator(
        "[aria-label^='gru on parity, seed 0, length 40']"
    )
    mark.scroll_into_view_if_needed()
    box = mark.bounding_box()
    seen.tab.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    text = seen.tab.locator("#hint").inner_text()
    accuracy, low, high = (f"{float(v):.3f}" for v in wanted[6:9])
    assert (
        text.startswith("gru on parity, ") and "length 40" in text
    )  # that seed, or the mean in the same place
    assert f"{accuracy} [{low}, {high}]" in mark.get_attribute("aria-label")
    seen.tab.mouse.move(2, 2)
    assert not seen.tab.locator("#hint").is_visible()


def test_verdicts_say_effect_null_and_p(seen):
    line = seen.tab.locator("#cell-1-0 table.lines tr.first").first.inner_text()
    assert re.sub(r"\s+", " ", line).startswith("name-mover primary secondary −1.90 [−2.08, −1.72]")
    assert re.search(r"± 0.22\s+119\s", line) and "0.017" in line and "0.050" in line and "7.1 ×" in line
    below = seen.tab.locator("#cell-1-0 table.lines tr.second").first.inner_text()
    assert "By the paper rules secondary: harms, 4x its null" in below
    heading = seen.tab.locator("#cell-1-0").get_by_role("heading", name="What describes the groups")
    described = heading.locator("xpath=following-sibling::div[1]").inner_text()
    for name in (UNION, BOUND, ONLY):
        assert name in described and f"said of {name}" in described


def test_p_over_all_cells_is_benjamini_and_hochbergs(seen, whole):
    """By hand: six margin p of 1/60 each, so each corrected one is 1/60 too."""
    seen.tab.locator("#study-1 summary", has_text="Every p over all cells").click()
    lines = seen.tab.locator("#study-1 details:has(> summary:text('Every p over all cells')) tbody tr")
    playwright.expect(lines).to_have_count(
        2 * 3
    )  # a table is drawn when its box opens, a moment after the click
    assert re.sub(r"\s+", " ", lines.first.inner_text()).count("0.017") == 3  # p, BH, least
    table = whole / "pattern-selectivity" / "tables" / "across_cells.csv"
    assert len(table.read_text().splitlines()) == 1 + 2 * 3 * 2


def test_the_bos_diagnostic_shows_every_head_alone(seen):
    heading = seen.tab.locator("#cell-1-0").get_by_role("heading", name="Heads on the first token")
    table = heading.locator("xpath=following-sibling::div[1]")
    assert re.sub(r"\s+", " ", table.locator("tr.first").first.inner_text()).startswith(
        "name-mover 1 of 5 −1.90"
    )
    said = table.locator("tr.second").first.inner_text()
    assert all(head in said for head in GROUPS["name-mover"][0])
    assert table.locator("span.bos").count() == 3


def test_every_plotted_estimate_has_an_interval_or_a_null(seen):
    """As many interval bars as dots, in the figures of one cell; ticks are the draws of the null."""
    null, _, alone, variants, modes, spectrum = seen.tab.locator("#cell-1-0 svg").all()
    assert null.locator("g[aria-label='tick'] line").count() == 3 * 119
    other = {"zero line": 1, "random targets": 1, "between layers": 29}
    for figure, dots, lines in (
        (null, 3, ["zero line"]),
        (alone, 22, ["zero line", "random targets"]),
        (variants, 6, ["zero line"]),
        (modes, 8, ["zero line"]),
        (spectrum, 270, ["between layers"]),
    ):
        assert figure.locator("circle[aria-label]").count() == dots
        assert figure.locator("g[aria-label='rule'] line").count() == dots + sum(other[k] for k in lines)


def test_text_from_tables_runs_nothing(browser, tmp_path):
    found = Seen(browser, write_report(evil_run(tmp_path)))
    assert found.tab.evaluate("window.broken") is None and found.count("img") == 0
    assert found.count("#study-0 .plot svg") == 6 + 3 + 3 + 1  # a mixture's, three courses, one of integrals
    assert EVIL in found.tab.locator(".example").first.inner_text()
    assert EVIL in found.tab.locator("table.lines").first.inner_text()
    assert found.fine


STATE_NAMES = [name for names in STAGES["state-encoding"].values() for name in names]
PATTERN_NAMES = [name for names in STAGES["pattern-selectivity"].values() for name in names]


def without(make: Any, names: list[str]) -> Any:
    """Cells by seed: each lacks one table and has the next one without rows; the last has NaN for every number."""

    def made(cell):
        tables, facts = make(cell)
        at = cell["seed"]
        if at < len(names):
            del tables[names[at]]
            after = names[(at + 1) % len(names)]
            tables[after] = tables[after].iloc[:0]
        else:
            for table in tables.values():
                for column in table.select_dtypes("float"):
                    table[column] = np.nan
        return tables, facts

    return made


def test_missing_and_empty_tables_leave_the_rest_of_the_page(browser, tmp_path):
    states = [state_cell("parity", FAMILIES[i % 5], i) for i in range(len(STATE_NAMES) + 1)]
    patterns = [pattern_cell(seed=i) for i in range(len(PATTERN_NAMES) + 1)]
    make_run(tmp_path / "states", "state-encoding", states, without(state_tables, STATE_NAMES))
    make_run(tmp_path / "patterns", "pattern-selectivity", patterns, without(mixture_tables, PATTERN_NAMES))
    found = Seen(browser, write_report(tmp_path))
    assert found.count("details.cell[open]") == 3  # the others are drawn when they are opened
    found.tab.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert found.count("details.cell[open]") == len(patterns)
    assert found.fine
    text = found.tab.locator("main").inner_text()
    assert "NaN" not in text and "undefined" not in text and "null ±" not in text
    assert found.count("#study-1 .plot svg") > 4 * len(patterns)


@pytest.mark.parametrize("name", STATE_NAMES)
def test_a_run_of_one_cell_without_a_table(browser, tmp_path, name):
    cell = state_cell("parity", "gru", STATE_NAMES.index(name))
    make_run(tmp_path, "state-encoding", [cell], without(state_tables, STATE_NAMES))
    assert Seen(browser, write_report(tmp_path)).fine


def test_the_published_rules_and_a_task_without_foils(browser, tmp_path):
    def make(cell):
        tables, facts = pattern_tables(cell)
        if cell["task"] == "no-foil":
            for name in ("verdicts", "effects", "singles", "nulls"):
                of_margin = tables[name]["metric"] == "logit_diff"
                numbers = tables[name].select_dtypes("float").columns
                tables[name].loc[of_margin, numbers] = np.nan
            tables["prompts"][["logit_diff", "restricted"]] = np.nan
            tables["prompts"]["foil"] = ""
        return tables, facts

    cells = [pattern_cell("no-foil"), pattern_cell(rules="paper", modes=["zero"])]
    make_run(tmp_path, "pattern-selectivity", cells, make)
    found = Seen(browser, write_report(tmp_path))
    assert found.fine
    first, second = found.tab.locator("details.cell").all()
    assert "there is no foil, so top-1 decides" in first.inner_text() and ", not “" not in first.inner_text()
    assert "Top-1 effect, pp" in first.locator("table.lines th").nth(3).inner_text()
    assert "paper (top-1 decides, as published)" in second.inner_text()
    assert "The same groups under each ablation" not in second.inner_text()


def test_long_names(browser, tmp_path):
    long = {g: f"{g} of the second kind, with a long name" for g in GROUPS}

    def make(cell):
        tables, facts = pattern_tables(cell)
        for table in tables.values():
            for column in ("group", "screen", "null_for"):
                if column in table:
                    table[column] = table[column].replace(long)
        return tables, facts

    make_run(tmp_path, "pattern-selectivity", [pattern_cell()], make)
    found = Seen(browser, write_report(tmp_path))
    assert found.fine
    labels = found.tab.locator("#cell-0-0 svg").first.locator("text").all_text_contents()
    assert any(label.endswith("…") and len(label) <= 17 for label in labels)
