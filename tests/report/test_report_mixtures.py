"""The page's data on mixtures of experts and training checkpoints: it equals the tables, and is small."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from report_mixtures import TOKENS, mixture_tables
from report_runs import GROUPS, make_run, pattern_cell, pattern_tables
from test_report_page import Page, rows

from causegrid.report import write_report

KEYS = ("routing", "experts", "rerouted", "checkpoints", "rest", "integrals")


def cells_of(folder: Path, make=mixture_tables) -> list[dict]:
    make_run(folder, "pattern-selectivity", [pattern_cell()], make)
    return Page(write_report(folder)).data[0]["section"]["cells"]


@pytest.fixture(scope="module")
def given() -> dict[str, pd.DataFrame]:
    return mixture_tables(pattern_cell())[0]


@pytest.fixture(scope="module")
def cell(tmp_path_factory) -> dict:
    (found,) = cells_of(tmp_path_factory.mktemp("mixture"))
    return found


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("routing", "routing"),
        ("experts", "expert_effects"),
        ("rerouted", "routing_changes"),
        ("integrals", "pr_integral"),
    ],
)
def test_embedded_tables_equal_the_parquet(cell, given, key, name):
    found, wanted = rows(cell[key]), given[name]
    assert len(found) == len(wanted) and {"share", "integral"} & set(found)
    assert {"low", "high"} < set(found) and ({"null_mean"} < set(found)) == ("null_mean" in wanted)
    for column in found:
        if wanted[column].dtype.kind in "if":
            np.testing.assert_allclose(found[column].astype(float), wanted[column], atol=1e-4, rtol=1e-4)
        else:
            assert list(found[column]) == list(wanted[column])


def test_heads_of_groups_are_shown_one_by_one_and_the_others_as_quantiles(cell, given):
    table = given["checkpoints"]
    names = "L" + table["layer"].astype(str) + "H" + table["head"].astype(str)
    own = names.isin([h for heads, *_ in GROUPS.values() for h in heads])
    found, rest = rows(cell["checkpoints"]), rows(cell["rest"])
    assert len(found) == own.sum() == 22 * len(TOKENS)
    for column in ("tokens", "layer", "head", "pr", "low", "high"):
        np.testing.assert_allclose(found[column], table.loc[own, column], rtol=1e-4)
    assert list(found["revision"]) == list(table.loc[own, "revision"])
    assert dict(zip(rest["revision"], rest["tokens"], strict=True)) == TOKENS
    for row in rest.itertuples():
        ratios = table.loc[~own & (table["tokens"] == row.tokens), "pr"]
        assert row.n == len(ratios) == 270 - 22
        np.testing.assert_allclose(
            (row.low, row.middle, row.high), np.quantile(ratios, [0.05, 0.5, 0.95]), rtol=1e-4
        )


def test_without_groups_every_head_is_among_the_others(tmp_path):
    def make(cell):
        tables, facts = mixture_tables(cell)
        del tables["groups"]
        return tables, facts

    (found,) = cells_of(tmp_path, make)
    assert rows(found["checkpoints"]).empty and set(rows(found["rest"])["n"]) == {270}


def test_a_dense_model_without_checkpoints_has_none_of_it(tmp_path):
    (found,) = cells_of(tmp_path, pattern_tables)
    assert {k: found[k] for k in KEYS} == {k: {} for k in KEYS}


def test_a_mixture_of_a_thousand_experts_keeps_the_page_small(tmp_path):
    """16 layers of 64 experts: under 150 KB more, and none of the decisions token by token."""
    (found,) = cells_of(tmp_path, partial(mixture_tables, layers=tuple(range(16)), experts=64))
    assert len(rows(found["routing"])) == 16 * 64 * 2
    assert sum(len(json.dumps(found[k], separators=(",", ":"))) for k in KEYS) < 150_000
    assert not {"chosen", "weights", "logits", "values", "halves"} & {c for k in KEYS for c in found[k]}
