"""What is ablated beside the groups: unions, upper bounds, keep-only; and that the baseline costs one pass."""

from __future__ import annotations

import numpy as np
import pytest

from causegrid import model, task
from causegrid.errors import InputError
from causegrid.interventions import Ablator
from causegrid.interventions.narrowed import narrowed
from causegrid.interventions.sweep import Planner
from causegrid.studies.pattern.conditions import ALL, check_unions, conditions, kinds_of, with_roles

GROUPS = {"a": ["L1H0", "L2H3"], "b": ["L2H1"], "c": ["L1H5", "L1H6"]}


@pytest.fixture(scope="module")
def lm(small_lm):
    return model(str(small_lm))  # 3 layers of 8 heads


@pytest.fixture(scope="module")
def prompts(lm):
    return task("ioi").prompts(lm.tokenizer, 40, seed=1).halves()


def test_every_group_has_its_union_its_upper_bound_and_its_keep_only(lm):
    found = conditions(lm, GROUPS, unions=[("a", "c"), ("a", "unknown")], picked_again={"a": ["L2H3"]})
    by_name = {f.name: f for f in found}
    assert [f.name for f in found[:3]] == list(GROUPS)
    assert set(by_name) - set(GROUPS) == {
        "a + c", ALL, "layers of a", "layers of b", "layers of c", "only a", "only b", "only c", "a without BOS",
    }  # fmt: skip
    assert set(by_name["a + c"].heads) == {*GROUPS["a"], *GROUPS["c"]}
    assert set(by_name[ALL].heads) == {h for heads in GROUPS.values() for h in heads}
    assert set(by_name["layers of a"].heads) == {f"L{x}H{h}" for x in (1, 2) for h in range(8)}
    every = {f"L{x}H{h}" for x in range(3) for h in range(8)}
    assert set(by_name["only b"].heads) == every - {"L2H1"} and by_name["only b"].role == "keep only"
    assert by_name["a without BOS"].heads == ("L2H3",) and by_name["a without BOS"].role == "picked again"
    assert by_name["layers of c"].of == ("c",) and by_name["a + c"].of == ("a", "c")


def test_what_would_repeat_a_group_is_left_out(lm):
    layer = [f"L0H{h}" for h in range(8)]
    names = {f.name for f in conditions(lm, {"whole": layer}, unions=[], picked_again={})}
    assert names == {"whole", "only whole"}  # it is its own upper bound, and there is nothing to unite
    every = [f"L{x}H{h}" for x in range(3) for h in range(8)]
    assert {f.name for f in conditions(lm, {"all": every}, unions=[], picked_again={})} == {"all"}
    two = {"a": GROUPS["a"], "c": GROUPS["c"]}
    unions = [f.name for f in conditions(lm, two, unions=[("a", "c")], picked_again={}) if f.role == "union"]
    assert unions == [ALL]


def test_only_groups_of_several_heads_compete():
    assert kinds_of(GROUPS, 8) == {"a": "competing", "b": "descriptive", "c": "competing"}


def test_roles_stand_in_the_table(lm, prompts):
    chosen, measured = prompts
    listed = conditions(lm, GROUPS, unions=[], picked_again={})
    ablator = Ablator(lm, measured, reference=chosen)
    table = ablator.table({x.name: x.heads for x in listed}, "zero", intervals=False)
    found = with_roles(table, listed, kinds_of(GROUPS, 8)).set_index(["group", "metric"])
    assert found.loc[("a", "top1"), "kind"] == "competing" and found.loc[("a", "top1"), "role"] == "group"
    assert found.loc[("only a", "top1"), "kind"] == "descriptive"
    assert list(found.loc[("layers of b", "top1"), "of"]) == ["b"]


@pytest.mark.parametrize(
    ("unions", "part"),
    [
        ([["a"]], "two screens or more"),
        ([["a", "a"]], "each once"),
        ([["a", "d"]], "not among the groups: a, b, c"),
    ],
)
def test_a_union_that_means_nothing(unions, part):
    with pytest.raises(InputError, match=part):
        check_unions(unions, list(GROUPS))


class Passes:
    """Rows that go through the first block; ablations of later blocks start from what it left."""

    def __init__(self, lm):
        self.rows = 0
        self.handle = lm.module.gpt_neox.layers[0].register_forward_pre_hook(self.count)

    def count(self, module, args):
        self.rows += len(args[0])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.handle.remove()


def test_the_baseline_is_one_pass_over_the_model(lm, prompts):
    """Groups above the first block, in two modes, their null on a subset: the untouched model runs once."""
    chosen, measured = prompts
    ablator = Ablator(lm, measured, reference=chosen)
    above = {name: heads for name, heads in GROUPS.items() if not any(h.startswith("L0") for h in heads)}
    with Passes(lm) as seen:
        ablator.planner.clean  # noqa: B018
        assert seen.rows == len(measured)
        ablator.planner.noise_floor  # noqa: B018  (other batch layouts, by definition)
        ablator.table(above, "mean", intervals=False)
        once = seen.rows  # and the reference, for its means
        ablator.table(above, "zero", intervals=False)
        ablator.table({h: [h] for heads in above.values() for h in heads}, "mean", intervals=False)
        planner = narrowed(ablator.planner, [1, 4, 7, 8])
        draws = Ablator(lm, planner.prompts, planner=planner)
        draws.table({"draw": ["L1H2", "L2H4"]}, "zero", intervals=False)
        assert seen.rows == once


def test_a_narrowed_planner_measures_what_its_own_pass_would(lm, prompts):
    _, measured = prompts
    pick = [9, 2, 5, 11, 0]
    whole = Planner(lm, measured, batch=7)
    whole.clean  # noqa: B018
    part = narrowed(whole, pick)
    np.testing.assert_array_equal(part.clean, whole.clean[pick])
    fresh = Planner(lm, measured.subset(pick))
    table = Ablator(lm, part.prompts, planner=part).table(GROUPS, "zero", intervals=False)
    again = Ablator(lm, fresh.prompts, planner=fresh).table(GROUPS, "zero", intervals=False)
    np.testing.assert_allclose(np.stack(table["values"]), np.stack(again["values"]), atol=1e-5)
    assert np.abs(np.stack(table["values"])).max() > 1e-3


def test_a_narrowed_planner_gives_the_same_numbers_whoever_asks_first(lm, prompts):
    """A stage taken up again in a new process finds a whole planner without its pass: the numbers are the same bits."""
    _, measured = prompts
    pick = [9, 2, 5, 11, 0]
    tables = []
    for before in (True, False):
        whole = Planner(lm, measured, batch=7)
        if before:
            whole.clean, whole.noise_floor  # noqa: B018
        part = narrowed(whole, pick)
        with Passes(lm) as seen:
            np.testing.assert_array_equal(part.clean, whole.clean[pick])
        assert not seen.rows  # the whole set's values, not a second measurement of them
        table = Ablator(lm, part.prompts, planner=part).table(GROUPS, "zero", intervals=False)
        tables.append((np.stack(table["values"]), table["noise"].to_numpy(), table["baseline"].to_numpy()))
    for first, second in zip(*tables, strict=True):
        np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("pick", [[], [0, 99], [1, 1], [-1]])
def test_prompts_a_planner_does_not_have(lm, prompts, pick):
    with pytest.raises(InputError, match="distinct numbers from 0 to"):
        narrowed(Planner(lm, prompts[1]), pick)
