"""The page without a browser: what it says, what it holds, what it refuses.  Its numbers against the tables."""

from __future__ import annotations

import hashlib
import json
import re
import resource
import subprocess
import sys
from html.parser import HTMLParser
from importlib import resources
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import pandas as pd
import pytest
import report_runs
from report_mixtures import mixture_tables
from report_runs import (
    CLAIMS,
    GROUPS,
    UNION,
    make_run,
    pattern_cell,
    pattern_tables,
    state_cell,
    state_tables,
)

from causegrid.errors import InputError
from causegrid.report import write_report
from causegrid.report.claims import claim_rows, figure, folded_rows
from causegrid.report.rows import plain
from causegrid.runs.lock import Lock
from causegrid.runs.resume import FINISH_LOCK

VENDOR = {
    "d3.min.js": "f2094bbf6141b359722c4fe454eb6c4b0f0e42cc10cc7af921fc158fceb86539",
    "plot.umd.min.js": "4358086467740777dd788d6b27a95cebdbaefdd50c730a3060117073bd7134cb",
}

CELLS = {"td": ("id", "says", "num", "why"), "span": ("badge",), "div": ("figure",)}  # of a claim, by tag


class Page(HTMLParser):
    """Every start tag with its attributes, the claims (id, statement, result, cells, published, here, why), and the
    page's text outside scripts."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.claims: list[list[str]] = []
        self.text, self._skip, self._claims, self._cell = "", False, False, ""
        self.source = path.read_text(encoding="utf-8")
        self.feed(self.source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.tags.append((tag, found))
        self._skip = tag in ("script", "style")
        self._claims = self._claims or found.get("class") == "claims"
        if self._claims and tag == "tr" and found.get("class") == "claim":
            self.claims.append([])
        if self._claims and (found.get("class") or "").split(" ")[0] in CELLS.get(tag, ()):
            self._cell = tag
            self.claims[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        self._skip = self._skip and tag not in ("script", "style")
        self._claims = self._claims and tag != "table"
        self._cell = "" if tag == self._cell else self._cell

    def handle_data(self, data: str) -> None:
        if not self._skip:
            self.text += data
        if self._cell:
            self.claims[-1][-1] += " ".join(data.split())

    @property
    def said(self) -> str:
        return " ".join(self.text.split())

    @property
    def data(self) -> list[dict]:
        found = re.search(r'<script type="application/json" id="data">(.*?)</script>', self.source, re.S)
        return json.loads(found[1])


def rows(columns: dict) -> pd.DataFrame:
    """The page's columns as a table; a column of words is the words and a place in them per row."""
    found = {
        name: values if isinstance(values, list) else [values["words"][i] for i in values["at"]]
        for name, values in columns.items()
    }
    return pd.DataFrame(found)


@pytest.fixture(scope="module")
def page(whole) -> Page:
    return Page(whole / "report.html")


def small(folder: Path, **options) -> Path:
    make_run(folder, "state-encoding", [state_cell("parity", "gru")], state_tables, **options)
    return folder


# --- what is loaded, what is asked of the network --------------------------------------------------------


def test_importing_and_rendering_load_no_torch(tmp_path):
    small(tmp_path / "run")
    code = (
        "import sys; from causegrid.report import write_report\n"
        "assert not [m for m in ('torch', 'pandas') if m in sys.modules]\n"
        "print(write_report(sys.argv[1]).name)\n"
        "print([m for m in sys.modules if m.split('.')[0] in ('torch', 'transformers', 'numba', 'sklearn')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "run")], capture_output=True, text=True, check=True
    )
    assert done.stdout == "report.html\n[]\n"


def test_nothing_on_the_page_points_elsewhere(page):
    for tag, attributes in page.tags:
        assert "src" not in attributes and "srcset" not in attributes, (tag, attributes)
        target = attributes.get("href") or ""
        inside = (
            target.startswith("#")
            or target == "data:,"
            or re.match(r"[\w%-]+/tables/\w+\.(csv|parquet)$", target)
        )
        assert not target or inside, (tag, target)
    styles = "".join(re.findall(r"<style>(.*?)</style>", page.source, re.S))
    assert "url(" not in styles and "@import" not in styles
    policy = [a["content"] for t, a in page.tags if t == "meta" and "http-equiv" in a]
    assert policy[0].startswith("default-src 'none'")


def test_the_formal_grid_makes_a_small_page(page):
    """98 cells like these: under 6 MB of data."""
    section = page.data[0]["section"]
    assert len(json.dumps(section, separators=(",", ":"))) / len(section["cells"]) * 98 < 6e6


@pytest.mark.parametrize("name", VENDOR)
def test_vendored_files_are_the_released_ones(name):
    found = resources.files("causegrid.report").joinpath("vendor", name).read_bytes()
    assert hashlib.sha256(found).hexdigest() == VENDOR[name]


# --- what it says ------------------------------------------------------------------------------------------


def test_failed_and_unfinished_cells_are_named_and_in_no_figure(page):
    assert "32 of 36 cells finished" in page.said
    assert "dyck mamba seed 0: ValueError: the loss is not finite at step 17" in page.said
    assert "dyck gru seed 0 (interrupted, 1 of 6 stages)" in page.said
    assert "dyck lstm seed 0 (pending)" in page.said
    assert "variable-binding smollm2-135m seed 0 (interrupted, 2 of 7 stages)" in page.said
    states, patterns = page.data
    assert {c["task"] for c in states["section"]["cells"]} == {"parity", "s3"}
    assert [c["task"] for c in patterns["section"]["cells"]] == ["ioi", "ioi"]


def test_a_run_without_a_finished_cell_renders(tmp_path):
    small(tmp_path / "run", stopped={0: 0})
    said = Page(write_report(tmp_path / "run")).said
    assert "0 of 1 cell finished" in said
    assert "No cell is finished yet." in said and "Claims are tested over finished cells." in said
    assert "There are no tables yet." in said


def test_a_grid_that_never_ended_shows_what_its_finished_cells_say(tmp_path, monkeypatch):
    monkeypatch.setattr(report_runs._Study, "said", [{**CLAIMS[0], "why": "so far"}])
    cells = [state_cell("parity", "gru"), state_cell("dyck", "gru")]
    run = make_run(tmp_path / "run", "state-encoding", cells, state_tables, stopped={1: 2})
    found = Page(write_report(tmp_path / "run"))
    (row,) = [row for row in found.claims if row]
    assert row[0] == "S1" and row[3] == "1" and row[6] == "Why:so far"  # one cell is finished
    assert not (run.folder / "claims.json").exists()


def test_the_claims_table_shows_figure_and_interval(page):
    by_id = {row[0]: row for row in page.claims if row}
    published = {name: row[4].removeprefix("Published:") for name, row in by_id.items()}
    here = {name: row[5].removeprefix("Here:") for name, row in by_id.items()}
    assert by_id["S1"][2:4] == ["supported", "2"]
    assert published["S1"] == "mamba 0.58, transformer 0.04" and here["S1"] == "−0.312[−0.5, −0.12]"
    assert by_id["S5"][2] == "not enough evidence" and here["S5"] == "–"
    assert published["S5"] == "s3 −12.6, parity −6.83, dyck 4.04 (not significant)"
    assert by_id["S6"][2] == "contradicted" and by_id["S6"][6] == "Why:" + CLAIMS[2]["why"]


def test_sentences_on_cells_outside_the_test_are_apart():
    why = (
        "2 of 5 pairs (n.s.), at length 40. Not asked (all layers alike): parity gru seed 0. Mode zero: none. "
        "Learned to 15 only, left out: s3 mamba2 seeds 0, 1. At length 15, beside the test: 0 of 2 cells."
    )
    (row,) = folded_rows([{"id": "S3", "why": why}])
    assert row["why"] == "2 of 5 pairs (n.s.), at length 40. Mode zero: none."
    assert row["aside"].startswith("Not asked (all") and row["aside"].count("left out: s3") == 1
    assert sorted(f"{row['why']} {row['aside']}".split()) == sorted(why.split())
    assert claim_rows([{"why": why}])[0]["why"] == why
    assert folded_rows(CLAIMS)[0]["aside"] == ""


def test_figures_of_claims_as_text():
    assert figure(float("nan")) == figure(None) == figure("-") == "–"
    assert figure(True) == "yes" and figure(12) == "12" and figure([6, 7]) == "6, 7"
    assert claim_rows([{"low": float("nan"), "high": 1.0}])[0]["interval"] == ""
    assert claim_rows([{"low": 0.0, "high": 1.0}])[0]["interval"] == "[0, 1]"


def test_an_unknown_study_still_gives_its_cells_and_tables(tmp_path):
    run = small(tmp_path / "run")
    manifest = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**manifest, "study": "mine"}))
    found = Page(write_report(run))
    assert "No figures are made for this study" in found.said and "erasure (CSV, Parquet)" in found.said


# --- its numbers -------------------------------------------------------------------------------------------


def combined(folder: Path, study: str, name: str) -> pd.DataFrame:
    return pd.read_parquet(folder / study / "tables" / f"{name}.parquet")


# Of these tables the page holds the rows at the length each cell is shown at, and of components the longest too.
LENGTH_OF = {"behaviour": "", "probes": "length", "erasure": "length",
             "erasure_beyond": "fitted_length", "components": "length", "patching": "length"}  # fmt: skip


@pytest.mark.parametrize("name", LENGTH_OF)
def test_embedded_state_tables_equal_the_parquet(whole, page, name):
    found, wanted = rows(page.data[0]["section"][name]), combined(whole, "state-encoding", name)
    cells = page.data[0]["section"]["cells"]
    shown = {(c["task"], c["model"], c["seed"]): c["length"] for c in cells}
    if column := LENGTH_OF[name]:
        at = pd.Series(list(zip(wanted["task"], wanted["model"], wanted["seed"], strict=True))).map(shown)
        kept = wanted[column] == at
        wanted = wanted[kept | (wanted["length"] == 120)] if name == "components" else wanted[kept]
    assert len(found) == len(wanted) > 0
    for column in [c for c in found if c != "cell"]:
        if found[column].dtype.kind in "fi":
            got, true = found[column].astype(float), wanted[column].astype(float)
            np.testing.assert_allclose(got, true, rtol=1e-4, atol=5.1e-5)
        else:
            assert list(found[column]) == list(wanted[column])
    assert [cells[i]["model"] for i in found["cell"]] == list(wanted["model"])


def test_the_interval_over_seeds_is_students(whole, page):
    found = rows(page.data[0]["section"]["over_seeds"]).set_index(["task", "model", "length", "metric"])
    table = combined(whole, "state-encoding", "behaviour")
    of = ["s3", "mamba", 60, "token"]
    a, b, c = table.query("task == @of[0] and model == @of[1] and length == @of[2] and metric == @of[3]")[
        "accuracy"
    ]
    mean = (a + b + c) / 3
    sd = (((a - mean) ** 2 + (b - mean) ** 2 + (c - mean) ** 2) / 2) ** 0.5
    half = 4.302653 * sd / 3**0.5  # t of 2 degrees of freedom, 97.5 %
    assert sd > 0.01
    got = found.loc[tuple(of)]
    assert list(got) == pytest.approx([mean, mean - half, mean + half, 3], abs=1e-4)
    assert found["low"].min() >= 0 and found["high"].max() <= 1


def test_one_seed_has_no_interval_over_seeds(tmp_path):
    found = rows(Page(write_report(small(tmp_path / "run"))).data[0]["section"]["over_seeds"])
    assert set(found["n"]) == {1} and found["low"].isna().all() and found["high"].isna().all()


def test_depth_centres_are_means_of_seeds_at_one_length(tmp_path):
    """Four seeds: two learned to 40, one to 24, one not at all."""

    def make(cell):
        tables, facts = state_tables(cell)
        table, seed = tables["profile_summary"], cell["seed"]
        table["depth_centre"], table["last_block_share"] = 0.4 + 0.1 * seed, 0.01 + 0.1 * seed
        if seed == 1:
            tables["profile_summary"] = pd.concat([table, table.assign(length=24, depth_centre=np.nan)])
            facts |= {"learned_length": 24, "learned": "learned to 24"}
        if seed == 3:
            facts |= {"learned_length": 4, "learned": "not learned"}
        return tables, facts

    cells = [state_cell("parity", "gru", seed) for seed in range(4)]
    make_run(tmp_path / "run", "state-encoding", cells, make)
    found = rows(Page(write_report(tmp_path / "run")).data[0]["section"]["profiles"])
    got = {(r.length, r.learned): r for r in found.itertuples()}
    assert len(found) == 3 and {key: r.n for key, r in got.items()} == {
        (40, True): 2,
        (24, True): 1,
        (40, False): 1,
    }
    whole = got[40, True]  # 0.4 and 0.6; 0.01 and 0.21: half an interval is 12.7062 x 0.1
    assert [whole.depth_centre, whole.depth_centre_low, whole.depth_centre_high] == [0.5, 0, 1]
    assert [whole.last_block_share, whole.last_block_share_low] == [0.11, 0]
    assert whole.last_block_share_high == 1
    short = got[24, True]
    assert np.isnan(short.depth_centre) and short.last_block_share == pytest.approx(0.11)
    assert np.isnan(short.last_block_share_low) and got[40, False].depth_centre == pytest.approx(0.7)


def test_learning_curves_keep_their_ends_and_means(whole, page):
    found, wanted = rows(page.data[0]["section"]["training"]), combined(whole, "state-encoding", "training")
    assert found.groupby("cell").size().max() == 100
    cells = page.data[0]["section"]["cells"]
    for (place, got), (_, whole_curve) in zip(
        found.groupby("cell"), wanted.groupby("cell", sort=False), strict=True
    ):
        assert cells[place]["model"] == whole_curve["model"].iloc[0]
        assert got["step"].iloc[-1] == len(whole_curve) == cells[place]["steps"]
        parts = np.array_split(np.arange(len(whole_curve)), got["step"])[:-1]
        for column in ("loss", "token_accuracy"):
            means = [whole_curve[column].to_numpy()[part].mean() for part in parts]
            np.testing.assert_allclose(got[column], means, atol=1e-4)


def test_a_run_stopped_after_training_shows_what_there_is(tmp_path):
    cells = [state_cell("parity", m) for m in ("gru", "lstm")]
    make_run(tmp_path / "run", "state-encoding", cells, state_tables, until="train")
    found = Page(write_report(tmp_path / "run"))
    assert "Stopped as asked: 2 cells, shown as far as they go" in found.said
    section = found.data[0]["section"]
    assert len(section["cells"]) == 2 and section["behaviour"]["length"] and not section["probes"]["cell"]


def test_figures_of_other_papers_stand_beside_ours_without_a_verdict(tmp_path):
    anchor = {
        "id": "A1", "kind": "anchor", "statement": "strict accuracy", "result": "compared", "published": "27 %",
        "measured": "97 %", "low": None, "high": None, "why": "lengths 2-50 there", "cells": ["a"],
    }  # fmt: skip
    found = Page(write_report(small(tmp_path / "run", claims=[*CLAIMS, anchor])))
    assert [row[0] for row in found.claims if row] == ["S1", "S5", "S6"]
    row = found.text[found.text.index("What is compared") :]
    wanted = r".*A1\s*strict accuracy\s*1\s*Published: 27 %\s*Here: 97 %\s*Settings that differ: lengths 2-50 there"
    assert re.match(wanted, row, re.S)
    assert not [a for t, a in found.tags if a.get("class") == "badge compared"]


def test_a_cell_that_learned_to_a_shorter_length_is_shown_there(page):
    cells = page.data[0]["section"]["cells"]
    lengths = {(c["task"], c["model"]): (c["length"], c["learned"]) for c in cells}
    assert lengths["parity", "transformer"] == (24, "learned to 24")
    assert lengths["s3", "mamba"] == (40, "not learned") and lengths["s3", "gru"] == (40, "learned")


def test_embedded_pattern_tables_equal_the_parquet(whole, page):
    every = {
        n: combined(whole, "pattern-selectivity", n)
        for n in ("verdicts", "nulls", "singles", "prompts", "spectrum")
    }
    for cell, (_, wanted) in zip(
        page.data[1]["section"]["cells"], every["verdicts"].groupby("cell", sort=False), strict=True
    ):
        wanted = wanted[wanted["leads"]]
        found = rows(cell["verdicts"])
        assert set(rows(cell["beside"])["rules"]) == {"paper"} and set(found["rules"]) == {"strict"}
        assert [list(h) for h in found["heads"]] == [list(h) for h in wanted["heads"]]
        for column in ("effect", "low", "high", "null_mean", "null_sd", "p", "p_holm", "specificity"):
            np.testing.assert_allclose(found[column].astype(float), wanted[column].astype(float), rtol=1e-4)
        seed = wanted["seed"].iloc[0]
        of = {name: table[table["seed"] == seed] for name, table in every.items()}
        draws = of["nulls"]
        for metric in ("logit_diff", "top1"):
            for group, values in cell["nulls"][metric].items():
                mine = draws[(draws["metric"] == metric) & (draws["null_for"] == group)]
                np.testing.assert_allclose(values, mine["effect"], rtol=1e-4)
        np.testing.assert_allclose(cell["spectrum"]["pr"], of["spectrum"]["pr"], rtol=1e-4)
        assert len(cell["singles"]["group"]) == len(of["singles"])
        measured = of["prompts"].query("half == 'measured on'")["logit_diff"]
        given = cell["baseline"]["logit_diff"]
        assert given["mean"] == pytest.approx(measured.mean(), rel=1e-4) and given["n"] == len(measured)
        assert given["se"] == pytest.approx(measured.std(ddof=1) / np.sqrt(len(measured)), rel=1e-4)


def test_benjamini_hochberg_runs_over_the_cells_per_metric(tmp_path):
    """Raw p by hand: sorted, each times m over its rank, then the smallest of those at or above it."""
    given = {0: (0.01, 0.04, 0.5), 1: (0.002, 0.03, np.nan)}

    def make(cell):
        tables, facts = pattern_tables(cell)
        table = tables["verdicts"]
        for group, p in zip(GROUPS, given[cell["seed"]], strict=True):
            table.loc[table["group"] == group, "p"] = p
        table.loc[~table["leads"], "p"] = 1e-9  # the other rule set's rows are no tests of their own
        return tables, facts

    run = tmp_path / "run"
    found = Page(write_report(_made(run, make)))
    table = pd.read_parquet(run / "tables" / "across_cells.parquet")
    assert len(table) == 2 * 3 * 2 and not table["group"].eq(UNION).any()
    known = sorted(p for ps in given.values() for p in ps if p == p)
    for metric in ("logit_diff", "top1"):
        mine = table[table["metric"] == metric]
        for p, corrected in zip(mine["p"], mine["p_bh"], strict=True):
            if np.isnan(p):
                assert np.isnan(corrected)
                continue
            least = min(known[i] * len(known) / (i + 1) for i in range(len(known)) if known[i] >= p)
            assert corrected == pytest.approx(min(1.0, least))
    cells = found.data[0]["section"]["cells"]
    shown = {}
    for i, cell in enumerate(cells):
        by_row = zip(*(cell["verdicts"][k] for k in ("group", "metric", "p_bh")), strict=True)
        shown |= {(i, group): p for group, metric, p in by_row if metric == "top1"}
    assert shown[1, "name-mover"] == pytest.approx(0.01) and shown[0, "name-mover"] == pytest.approx(0.025)
    assert shown[0, UNION] is None


def _made(run, make):
    make_run(run, "pattern-selectivity", [pattern_cell(seed=0), pattern_cell(seed=1)], make)
    return run


def test_plain_makes_json_of_anything():
    given = {
        "a": np.float64("nan"), "b": np.array([1.23456789, np.inf]), "c": (True, None, "x"), 3: np.int64(7),
        "d": pd.Timestamp("2026-01-02"), "e": pd.NaT,
    }  # fmt: skip
    assert plain(given) == {
        "a": None, "b": [1.2346, None], "c": [True, None, "x"], "3": 7, "d": "2026-01-02 00:00:00", "e": None,
    }  # fmt: skip
    assert json.loads(json.dumps(plain(given), allow_nan=False))


# --- tables beside the page ----------------------------------------------------------------------------------


def test_links_lead_to_the_tables_whatever_the_folder_is_called(tmp_path):
    folder = tmp_path / "all of them"
    small(folder / "run #1 100% ü")
    found = Page(write_report(folder))
    links = [a["href"] for t, a in found.tags if t == "a" and ".csv" in (a.get("href") or "")]
    assert len(links) == 9 and all((folder / unquote(link)).is_file() for link in links)
    found = Page(write_report(folder / "run #1 100% ü"))
    links = [a["href"] for t, a in found.tags if t == "a" and ".csv" in (a.get("href") or "")]
    assert len(links) == 9 and all((folder / "run #1 100% ü" / unquote(link)).is_file() for link in links)


def test_tables_of_a_half_finished_run_hold_its_finished_cells_only(whole):
    table = combined(whole, "state-encoding", "behaviour")
    assert set(table["task"]) == {"parity", "s3"} and table["cell"].nunique() == 30


def test_tables_are_left_to_a_run_that_is_writing_them(tmp_path):
    run = small(tmp_path / "run")
    lock = Lock(run / FINISH_LOCK)
    assert lock.acquire()
    try:
        found = Page(write_report(run))
    finally:
        lock.release()
    assert not (run / "tables").exists()
    assert "The combined tables are being written by the run itself." in found.said
    assert found.data[0]["section"]["behaviour"]["length"]
    assert "being written" not in Page(write_report(run)).said and (run / "tables" / "erasure.csv").is_file()


def test_tables_that_cannot_be_joined_are_named_and_the_page_is_written(tmp_path):
    def make(cell):
        tables, facts = state_tables(cell)
        if cell["model"] == "lstm":
            tables["training"] = tables["training"].assign(loss=[["a"]] * len(tables["training"]))
        return tables, facts

    make_run(tmp_path / "run", "state-encoding", [state_cell("parity", m) for m in ("gru", "lstm")], make)
    assert "table 'training' cannot be joined over cells" in Page(write_report(tmp_path / "run")).said


# --- what it refuses -------------------------------------------------------------------------------------------


def test_what_is_not_a_run_is_refused_in_one_line(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("x")
    for name, reason in (("empty", "no run in it"), ("file", "it is a file"), ("nowhere", "no such folder")):
        with pytest.raises(InputError, match=reason) as refused:
            write_report(tmp_path / name)
        assert "\n" not in str(refused.value) and name in str(refused.value)
    assert not list((tmp_path / "empty").iterdir())


def test_a_damaged_run_of_a_folder_is_named_and_the_others_are_shown(tmp_path):
    small(tmp_path / "good")
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "run.json").write_text("{")
    found = Page(write_report(tmp_path))
    assert "bad' is not a run: run.json cannot be read" in found.said and "1 of 1 cell finished" in found.said
    with pytest.raises(InputError, match=r"run\.json cannot be read"):
        write_report(tmp_path / "bad")


def test_a_full_disk_leaves_the_old_page(tmp_path):
    run = small(tmp_path / "run")
    (run / "report.html").write_text("old")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))  # the tables fit, the page does not
    try:
        with pytest.raises(InputError, match=r"cannot write '.*report.html': ") as refused:
            write_report(run)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert "\n" not in str(refused.value)
    assert (run / "report.html").read_text() == "old"
    assert not [p for p in run.iterdir() if p.name.endswith(".tmp")]


def test_a_folder_that_cannot_be_written_is_refused_in_one_line(tmp_path):
    run = small(tmp_path / "run")
    (run / "tables").write_text("in the way")
    with pytest.raises(InputError, match=r"cannot write .*file exists"):
        write_report(run)
    assert not (run / "report.html").exists()


# --- text from tables ------------------------------------------------------------------------------------------

EVIL = '</script><script>window.broken = 1</script><img src="x" onerror="window.broken = 1">'


def evil_run(folder: Path) -> Path:
    """A folder of runs in which every text a user can write is HTML."""

    def make(cell):
        tables, facts = mixture_tables(cell)
        tables["prompts"] = tables["prompts"].assign(text=EVIL, answer=EVIL, foil=EVIL)
        tables["dropped"] = pd.DataFrame({"dropped": [EVIL]})
        for name, column in (
            ("verdicts", "group"),
            ("effects", "group"),
            ("groups", "group"),
            ("screens", "screen"),
        ):
            tables[name] = tables[name].assign(**{column: tables[name][column].replace("name-mover", EVIL)})
        tables["verdicts"] = tables["verdicts"].assign(reason=EVIL)
        tables["null_notes"] = tables["null_notes"].assign(why=EVIL, group=EVIL)
        tables["routing_changes"] = tables["routing_changes"].assign(group=EVIL, mode=EVIL)
        tables["expert_effects"] = tables["expert_effects"].assign(group=EVIL)
        tables["checkpoints"] = tables["checkpoints"].assign(revision=EVIL)
        tables["groups"] = tables["groups"].assign(note=EVIL)
        return tables, {**facts, "bos": EVIL}

    claims = [
        {**c, "why": EVIL, "statement": EVIL, "published": {EVIL: EVIL}, "measured": EVIL} for c in CLAIMS
    ]
    cells = [pattern_cell("prompts:<b>.jsonl", model=EVIL), pattern_cell(model="x")]
    make_run(
        folder / "<i>&amp;",
        "pattern-selectivity",
        cells,
        make,
        claims=claims,
        config={"<b>": EVIL},
        failed={1: EVIL},
    )
    return folder


def test_text_from_tables_is_escaped(tmp_path):
    found = Page(write_report(evil_run(tmp_path / "a<u>b")))
    assert not [t for t, _ in found.tags if t in ("img", "b.jsonl", "i", "u")]
    assert [t for t, _ in found.tags].count("script") == 4  # two libraries, the data, the script
    assert EVIL in found.text and "<i>&amp;" in found.text and "a<u>b" in found.text
    assert found.data[0]["section"]["cells"][0]["dropped"] == [EVIL]
