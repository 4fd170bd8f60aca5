"""Planted models against a forward pass written out in float64 loops, which knows only the weights."""

from __future__ import annotations

import numpy as np
import pytest

from causegrid.errors import InputError
from causegrid.headnames import head
from causegrid.models.planted import MARGIN, OUT, Plant, Planted, PlantedPrompts, plant, planted_prompts
from causegrid.sites.edit import edit, zero

EVERY = (
    Plant(role="primary", share=0.25),
    Plant(role="secondary", share=0.1, size=2),
    Plant(role="correlate"),
    Plant(role="interferer", share=0.12, size=2),
    Plant(role="bos-interferer", share=0.15, size=2),
    Plant(role="null", size=2),
)


BACKED = (
    Plant(role="primary", share=0.4, placement="early"),
    Plant(role="backup", share=0.2, size=2, placement="late"),
)


def by_hand(
    made: Planted, tokens: np.ndarray, removed: set[tuple[int, int]] = frozenset()
) -> tuple[np.ndarray, np.ndarray]:
    """(logits of the last position (B, 8), its attention rows (layers, B, H, L)) with some heads' z set to 0."""
    model = made.model
    weights = {k: v.double().numpy() for k, v in model.module.state_dict().items()}
    heads, shared, width = model.n_heads, model.n_heads // model.n_kv_heads, model.head_dim
    logits, rows = [], []
    for prompt in tokens:
        x = weights["embed.weight"][prompt].copy()  # (L, d)
        seen = np.zeros((model.n_layers, heads, len(prompt)))
        for layer in range(model.n_layers):
            w = {n: weights[f"blocks.{layer}.attn.{n}.weight"] for n in ("q", "k", "v", "proj")}
            added = np.zeros_like(x)
            for h in range(heads):
                own, kv = slice(h * width, (h + 1) * width), h // shared
                part = slice(kv * width, (kv + 1) * width)
                for i in range(len(prompt)):
                    scores = [w["q"][own] @ x[i] @ (w["k"][part] @ x[j]) / width**0.5 for j in range(i + 1)]
                    a = np.exp(np.array(scores) - max(scores))
                    a /= a.sum()
                    z = sum(a[j] * (w["v"][part] @ x[j]) for j in range(i + 1))
                    if (layer, h) not in removed:
                        added[i] += w["proj"][:, own] @ z
                    if i == len(prompt) - 1:
                        seen[layer, h] = a
            x = x + added
        logits.append(weights["head.weight"] @ x[-1])
        rows.append(seen)
    return np.array(logits), np.stack(rows, axis=1)


def margins(logits: np.ndarray, prompts: PlantedPrompts) -> np.ndarray:
    row = np.arange(len(logits))
    return logits[row, prompts.answers] - logits[row, prompts.foils]


@pytest.mark.parametrize(
    "shape",
    [
        {"n_layers": 2, "n_heads": 8},
        {"n_layers": 3, "n_heads": 8, "n_kv_heads": 2},
        {"n_layers": 2, "n_heads": 8, "head_dim": 12},
    ],
    ids=["full", "grouped", "wide"],
)
@pytest.mark.parametrize("plants", [EVERY, (*BACKED, *EVERY[3:])], ids=["every", "backed"])
def test_module_equals_loops(shape, plants):
    made = plant(plants, seed=3, tail="heavy", **shape)
    prompts = planted_prompts(4, seed=1)
    expected, _ = by_hand(made, prompts.tokens)
    got = made.model(prompts.tokens)[:, -1].double().numpy()
    assert got == pytest.approx(expected, abs=1e-4)
    for heads in made.groups.values():
        without, _ = by_hand(made, prompts.tokens, {head(h) for h in heads})
        with edit(made.model, *(zero(f"L{layer}.z[{h}]") for layer, h in map(head, heads))):
            ablated = made.model(prompts.tokens)[:, -1].double().numpy()
        assert ablated == pytest.approx(without, abs=1e-4)


def test_rows_are_the_attention():
    from causegrid.sites.rows import query_rows

    made = plant(EVERY, seed=3, n_layers=2, n_heads=8)
    prompts = planted_prompts(3, seed=1)
    _, rows = by_hand(made, prompts.tokens)
    assert query_rows(made.model, prompts.tokens).numpy() == pytest.approx(rows, abs=1e-5)


@pytest.mark.parametrize("head_dim", [8, 16])
def test_every_role_does_what_it_says(head_dim):
    """Over several models: each group's part of the margin is its share, and its attention is on its target."""
    shares: dict[str, list[float]] = {}
    held: dict[str, list[float]] = {}
    for seed in range(4):
        made = plant(EVERY, n_layers=2, n_heads=8, head_dim=head_dim, noise=0.01, seed=seed)
        assert (made.model.head_dim, made.model.d_model) == (head_dim, 24)
        prompts = planted_prompts(8, seed=[seed, 9])
        clean, rows = by_hand(made, prompts.tokens)
        for name, heads in made.groups.items():
            without, _ = by_hand(made, prompts.tokens, {head(h) for h in heads})
            part = (margins(clean, prompts) - margins(without, prompts)).mean() / MARGIN
            shares.setdefault(name, []).append(float(part))
            at = prompts.positions[made.plants[name].target]
            on = [rows[layer, np.arange(8), h, at].mean() for layer, h in map(head, heads)]
            held.setdefault(name, []).append(float(np.mean(on)))
    mean = {name: float(np.mean(v)) for name, v in shares.items()}
    assert mean["primary"] == pytest.approx(0.25, rel=0.3)
    assert mean["secondary"] == pytest.approx(0.1, rel=0.4)
    assert mean["interferer"] == pytest.approx(-0.12, rel=0.4)
    assert mean["bos-interferer"] == pytest.approx(-0.15, rel=0.3)
    assert shares["correlate"] == [0.0] * 4
    assert abs(mean["null"]) < 0.03
    assert min(held[n][i] for n in held if n != "null" for i in range(4)) > 0.5 > max(held["null"])


@pytest.mark.parametrize(
    "shape",
    [
        {"n_layers": 2, "n_heads": 8},
        {"n_layers": 4, "n_heads": 6, "n_kv_heads": 2},
        {"n_layers": 2, "n_heads": 8, "head_dim": 16},
    ],
    ids=["full", "grouped", "wide"],
)
def test_a_backup_takes_over_when_its_primary_is_gone(shape):
    """Alone it costs nothing, its primary costs what it cannot make up for, both cost the whole share; and one head
    of the primary alone costs far less than its part."""
    costs: dict[str, list[float]] = {}
    for seed in range(4):
        made = plant(BACKED, noise=0.01, seed=seed, **shape)
        prompts = planted_prompts(8, seed=[seed, 9])
        primary, backup = ({head(h) for h in made.groups[g]} for g in ("primary", "backup"))
        assert max(layer for layer, _ in primary) < min(layer for layer, _ in backup)
        clean, seen = by_hand(made, prompts.tokens)
        assert margins(clean, prompts).mean() == pytest.approx(MARGIN, rel=0.25)
        removed = {"backup": backup, "primary": primary, "both": primary | backup}
        removed |= {f"one-{i}": {one} for i, one in enumerate(sorted(primary))}
        for name, heads in removed.items():
            without, rows = by_hand(made, prompts.tokens, heads)
            cost = (margins(clean, prompts) - margins(without, prompts)).mean() / MARGIN
            costs.setdefault(name.split("-")[0], []).append(float(cost))
            if name == "primary":
                awake = rows
        row = np.arange(8)
        for layer, h in backup:
            target = prompts.positions["target"]
            assert seen[layer, row, h, 0].mean() > 0.8 > 0.2 > seen[layer, row, h, target].mean()
            assert awake[layer, row, h, target].min() > 0.95
    mean = {name: float(np.mean(v)) for name, v in costs.items()}
    assert max(map(abs, costs["backup"])) < 0.03
    assert mean["primary"] == pytest.approx(0.4 - 0.2, rel=0.25)
    assert mean["both"] == pytest.approx(0.4, rel=0.2)
    assert min(np.array(costs["both"]) - np.array(costs["primary"])) > 0.12  # what the backup made up for
    assert abs(mean["one"]) < 0.5 * 0.4 / 3


def test_roles_that_share_keys_with_a_backup_keep_theirs():
    """All heads share one set of keys and values: those of a backup know names alone, and that is enough."""
    plants = (*BACKED, *(Plant(role=p.role, share=p.share, size=2, placement="late") for p in EVERY[2:5]))
    costs: dict[str, list[float]] = {}
    for seed in range(4):
        made = plant(plants, n_layers=2, n_heads=12, n_kv_heads=1, noise=0.01, seed=seed)
        prompts = planted_prompts(8, seed=[seed, 9])
        clean, _ = by_hand(made, prompts.tokens)
        for name, heads in made.groups.items():
            without, _ = by_hand(made, prompts.tokens, {head(h) for h in heads})
            change = (margins(clean, prompts) - margins(without, prompts)).mean() / MARGIN
            costs.setdefault(name, []).append(float(change))
    assert np.mean(costs["interferer"]) == pytest.approx(-0.12, rel=0.4)
    assert np.mean(costs["bos-interferer"]) == pytest.approx(-0.15, rel=0.3)
    assert costs["correlate"] == [0.0] * 4
    assert max(map(abs, costs["backup"])) < 0.03


def test_wide_heads_without_a_role_are_as_loud_as_narrow_ones():
    loud = {}
    for head_dim in (8, 32):
        parts = []
        for seed in range(3):
            made = plant(
                [Plant(role="null")], n_layers=1, n_heads=8, head_dim=head_dim, noise=0.05, seed=seed
            )
            prompts = planted_prompts(24, seed=[seed, 9])
            clean, _ = by_hand(made, prompts.tokens)
            for h in range(8):
                without, _ = by_hand(made, prompts.tokens, {(0, h)})
                parts.append((margins(clean, prompts) - margins(without, prompts)).std() / MARGIN)
        loud[head_dim] = float(np.mean(parts))
    assert loud[8] == pytest.approx(0.05, rel=0.4)
    assert loud[32] == pytest.approx(loud[8], rel=0.25)


def test_a_bos_interferer_says_the_same_of_every_prompt():
    made = plant([Plant(role="bos-interferer", share=0.2)], n_layers=2, n_heads=8, noise=0.0, seed=4)
    prompts = planted_prompts(10, seed=2)
    clean, _ = by_hand(made, prompts.tokens)
    without, _ = by_hand(made, prompts.tokens, {head(h) for h in made.groups["bos-interferer"]})
    change = margins(without, prompts) - margins(clean, prompts)
    assert change.mean() > 0.1 * MARGIN
    assert change.std() < 0.15 * change.mean()


def test_prompts_are_distinct_and_say_where_things_are():
    made = plant(EVERY, n_layers=2, n_heads=8, noise=0.0, seed=0)
    prompts = planted_prompts(300, seed=5)
    assert len(np.unique(prompts.tokens, axis=0)) == 300
    embedded = made.model.module.embed.weight.detach().double().numpy()[prompts.tokens]  # (B, L, d)
    row = np.arange(300)
    for name, value in (("target", prompts.answers), ("distractor", prompts.foils)):
        assert (embedded[row, prompts.positions[name], value] == 1).all()
    assert (embedded[row, -1, OUT.start + prompts.answers] > 0).all()
    assert (prompts.answers < 4).all() and (prompts.foils >= 4).all()
    again = planted_prompts(300, seed=5)
    assert np.array_equal(again.tokens, prompts.tokens)


def test_groups_are_disjoint_and_where_they_were_asked_to_be():
    made = plant(
        [
            Plant(role="primary", share=0.1, size=5, placement="late"),
            Plant(role="null", size=3, placement="one"),
        ],
        n_layers=5,
        n_heads=6,
        seed=7,
    )
    assert {head(h)[0] for h in made.groups["primary"]} <= {2, 3, 4}
    assert len({head(h)[0] for h in made.groups["null"]}) == 1
    assert not set(made.groups["primary"]) & set(made.groups["null"])
    twice = plant([Plant(role="null"), Plant(role="null")], seed=0)
    assert list(twice.groups) == ["null", "null-2"]


@pytest.mark.parametrize("bearers", [1, 2, None])
def test_the_share_is_borne_by_as_many_heads_as_asked(bearers):
    made = plant([Plant(role="primary", share=0.4, size=3, bearers=bearers)], n_layers=3, n_heads=6, seed=3)
    says = []
    for layer, h in map(head, made.groups["primary"]):
        attn = made.model.module.blocks[layer].attn
        says.append(attn.proj.weight[OUT, attn.head_dim * h : attn.head_dim * (h + 1)].abs().sum().item() > 0)
        asks = attn.q.weight[attn.head_dim * h : attn.head_dim * (h + 1)]
        assert asks.abs().sum() > 0  # it attends as the others do
    assert sum(says) == (bearers or 3)


def test_bad_input():
    with pytest.raises(InputError, match="4 heads cannot bear the share of a group of 3"):
        plant([Plant(role="primary", share=0.2, bearers=4)])
    with pytest.raises(InputError, match=r"7 heads cannot share 2"):
        plant([Plant(role="null")], n_heads=7, n_kv_heads=2)
    with pytest.raises(InputError, match=r"role 'primry'.*'primary'"):
        plant([Plant(role="primry")])  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"width 6 .*at least 8"):
        plant([Plant(role="null")], head_dim=6)
    with pytest.raises(InputError, match="no primary to back up"):
        plant(BACKED[::-1])
    with pytest.raises(InputError, match="no layer is left for a backup after L0"):
        plant(BACKED, n_layers=1)
    with pytest.raises(InputError, match="too few"):
        plant([Plant(role="null", size=9, placement="one")], n_heads=4)


def test_the_sites_pass_their_own_checks():
    from causegrid.sites import check

    table = check(plant(EVERY, n_layers=2, n_heads=8, n_kv_heads=4, seed=1).model)
    assert not (table["result"] == "fail").any(), table.to_string()
