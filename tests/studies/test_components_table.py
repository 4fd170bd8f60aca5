"""The components table: against runs of each length by itself, raw modules, and numpy."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import tiny
from causegrid.errors import InputError
from causegrid.interventions.components import components
from causegrid.interventions.convolution import remove_conv
from causegrid.interventions.removal import removed
from causegrid.models.behaviour import behaviour
from causegrid.models.record import Model, models
from causegrid.studies.state.components import components_table
from causegrid.tasks import task

torch.set_num_threads(1)
LENGTHS = (4, 9, 12)
N = 22


def small(name: str) -> Model:
    extra = {"mamba2": dict(n_state=8, head_dim=8), "mamba": dict(n_state=8), "transformer": dict(n_heads=2)}
    made = models.get(name)(name, n_tokens=6, n_out=6, d_model=16, n_layers=2, seed=1, **extra.get(name, {}))
    with torch.no_grad():
        for key, parameter in made.module.named_parameters():
            if parameter.dim() == 2 and "A_log" not in key:
                parameter.mul_(4.0)
    return made


def hf(name: str, **changes: object) -> Model:
    module = tiny.hf(name, **changes)
    heads = 4 if name in tiny.ATTENTION else 0
    return Model(name=name, family=module.config.model_type, module=module, n_layers=2, d_model=32, n_tokens=97,
                 n_out=97, n_heads=heads)  # fmt: skip


def metrics(right: np.ndarray) -> dict[str, np.ndarray]:
    return {"token": right.mean(1), "strict": right.all(1).astype(float), "last": right[:, -1].astype(float)}


@pytest.mark.parametrize(
    "model",
    [small(n) for n in ("lstm", "gru", "mamba", "mamba2", "transformer")]
    + [hf(n) for n in ("mamba2", "llama_gqa")],
    ids=lambda m: ("hf " if m.is_hf else "") + m.name,
)
def test_one_forward_stands_for_every_length(model: Model) -> None:
    """Each row equals the whole model run, with the removal, on sequences cut to that length."""
    s3 = task("s3")
    table = components_table(model, s3, lengths=LENGTHS, n=N, n_reference=8, batch=8, seed=5)
    found = components(model)
    per_layers = sum(len(c.modes) * (len(c.layers) + 1) for c in found.values())
    assert len(table) == per_layers * len(LENGTHS) * 3
    data = s3.sample(N, 12, seed=(5, 12), split="test")
    ids, labels = torch.from_numpy(data.tokens), data.labels[s3.label]
    reference = torch.from_numpy(s3.sample(8, 12, seed=(5, 12), split="val").tokens)
    changed = 0
    for (kind, mode, layers, length), rows in table.groupby(["kind", "mode", "layers", "length"], sort=False):
        component = found[kind]
        which = None if layers == "all" else int(layers[1:])
        means = component.means(reference, 4) if mode == "mean" else None
        with removed(component, mode, which, means=means):
            right = model(ids[:, :length]).argmax(-1).numpy() == labels[:, :length]
        clean = metrics(model(ids[:, :length]).argmax(-1).numpy() == labels[:, :length])
        rows = rows.set_index("metric")
        assert list(rows.index) == ["token", "strict", "last"]
        for metric, after in metrics(right).items():
            row = rows.loc[metric]
            assert row.accuracy == pytest.approx(after.mean()) and row.clean == pytest.approx(
                clean[metric].mean()
            )
            assert row.effect == pytest.approx(row.accuracy - row.clean)
            assert row.low <= row.effect <= row.high
            assert (row.flag == "exactly zero") == bool((after == clean[metric]).all())
            assert row.n == N and row.n_fired == 3 * (
                2 if which is None else 1
            )  # 22 sequences in three batches
            assert pd.isna(row.layer) if which is None else row.layer == which
            changed += row.effect != 0
    assert changed > len(table) / 10
    expected = behaviour(small("lstm"), s3, [12], n=N, seed=5) if model.name == "lstm" else None
    if expected is not None:
        got = table[table.length == 12].groupby("metric")["clean"].first()
        for row in expected.itertuples():
            assert got[row.metric] == pytest.approx(row.accuracy)


@pytest.mark.parametrize("name", ["mamba", "mamba2"])
def test_a_convolution_without_a_bias_is_removed_in_its_two_modes(name: str) -> None:
    """`identity` against torch's own call of the module: the last tap 1, the others 0."""
    model, s3 = hf(name, use_conv_bias=False), task("s3")
    assert model.module.backbone.layers[0].mixer.conv1d.bias is None
    table = components_table(model, s3, lengths=(6, 9), n=20, n_reference=8, batch=10, seed=3)
    conv = table[table.kind == "conv"]
    assert set(conv["mode"]) == {"identity", "zero"} and len(conv) == 2 * 3 * 2 * 3
    assert set(table.loc[table.kind == "mixer", "mode"]) == {"zero", "mean"}
    assert "mean" in components(hf(name))["conv"].modes
    data = s3.sample(20, 9, seed=(3, 9), split="test")
    for layer in model.module.backbone.layers:
        with torch.no_grad():
            layer.mixer.conv1d.weight.zero_()
            layer.mixer.conv1d.weight[:, :, -1] = 1.0
    with torch.no_grad():
        said = model.module(torch.from_numpy(data.tokens)).logits.argmax(-1).numpy()
    row = conv.query("mode == 'identity' and layers == 'all' and length == 9 and metric == 'token'").iloc[0]
    assert row.accuracy == pytest.approx((said == data.labels[s3.label]).mean())
    with (
        pytest.raises(InputError, match="no bias to carry a mean"),
        remove_conv(model, mode="mean", tokens=[[1, 2]]),
    ):
        pass


def test_a_shut_output_gate_leaves_the_heads_bias() -> None:
    """An LSTM whose last output gate is 0 says its head's bias, whatever it reads."""
    model, z6 = small("lstm"), task("z6")
    table = components_table(model, z6, kinds=["output_gate"], lengths=(5, 20), n=40, seed=2)
    said = int(model.module.head.bias.argmax())
    labels = z6.sample(40, 20, seed=(2, 20), split="test").labels[z6.label]
    for layers in ("L1", "all"):
        shut = table[(table["mode"] == "shut") & (table.layers == layers)].set_index(["length", "metric"])
        for length in (5, 20):
            assert shut.loc[(length, "token"), "accuracy"] == pytest.approx(
                (labels[:, :length] == said).mean()
            )
            assert shut.loc[(length, "last"), "accuracy"] == pytest.approx(
                (labels[:, length - 1] == said).mean()
            )
    assert set(table.kind) == {"output_gate"} and str(table.layer.dtype) == "Int64"


def test_paired_interval_is_that_of_the_differences() -> None:
    """The interval moves with the per-sequence differences, not with how hard the sequences are."""
    model, parity = small("gru"), task("parity")
    table = components_table(model, parity, kinds=["state"], lengths=(12,), n=60, seed=3)
    row = table[(table.layers == "all") & (table.metric == "token")].iloc[0]
    data = parity.sample(60, 12, seed=(3, 12), split="test")
    labels = data.labels[parity.label]
    with torch.no_grad():
        clean = model.module(torch.from_numpy(data.tokens)).argmax(-1).numpy() == labels
        x = model.module.embed(torch.from_numpy(data.tokens))
        for block in model.module.blocks:  # torch's own GRU on sequences of one token
            x = torch.stack([torch.nn.GRU.forward(block, x[:, t : t + 1])[0][:, 0] for t in range(12)], dim=1)
        alone = model.module.head(x).argmax(-1).numpy() == labels
    difference = alone.mean(1) - clean.mean(1)
    assert row.effect == pytest.approx(difference.mean())
    half = 1.96 * difference.std() / np.sqrt(60)
    assert row.low == pytest.approx(row.effect - half, abs=0.3 * half)
    assert row.high == pytest.approx(row.effect + half, abs=0.3 * half)


def test_the_noise_floor_is_that_of_two_batch_layouts() -> None:
    """A model whose answers depend on the batch size: the noise is seen, and covers effects below it."""
    model, parity = small("lstm"), task("parity")
    clean = components_table(model, parity, lengths=(6,), n=20, batch=20)
    assert (clean.noise == 0).all() and "within noise" not in set(clean.flag)

    def by_layout(_module: object, _args: object, out: torch.Tensor) -> torch.Tensor:
        return (
            out if len(out) == 20 else torch.stack([-out[..., 0], -out[..., 1]], dim=-1)
        )  # classes exchanged

    plain = model.module.head
    model.module.head = torch.nn.Linear(16, 2)
    model.n_out = 2
    handle = model.module.head.register_forward_hook(by_layout)
    try:
        found = components_table(model, parity, lengths=(6,), n=20, batch=20)
    finally:
        handle.remove()
        model.module.head, model.n_out = plain, 6
    token = found[found.metric == "token"].iloc[0]
    data = parity.sample(20, 6, seed=(0, 6), split="test")
    assert token.noise > 0 and len(data.tokens) == 20
    covered = found[(found.flag != "exactly zero") & (found.effect.abs() <= found.noise) & (found.noise > 0)]
    assert len(covered) and (covered.flag == "within noise").all()
    assert (found[found.effect.abs() > found.noise].flag == "").all()


def test_progress_reaches_its_end_and_the_model_is_as_it_was() -> None:
    model, seen = small("mamba"), []
    before = {k: (id(p), p.clone()) for k, p in model.module.named_parameters()}
    model.module.train()
    components_table(
        model, task("parity"), kinds=("conv", "state"), lengths=(8,), n=20, batch=8,
        progress=lambda done, total, what: seen.append((done, total, what)),
    )  # fmt: skip
    assert seen[-1][0] == seen[-1][1] == len(seen) == 3 * 4 * 3 and seen[0][2] == "removing components"
    assert model.module.training
    assert all(
        before[k][0] == id(p) and torch.equal(before[k][1], p) for k, p in model.module.named_parameters()
    )


def test_bad_input_is_one_line() -> None:
    model, parity = small("gru"), task("parity")
    with pytest.raises(
        InputError, match=r"unknown component 'resetgate': allowed are reset_gate, .*'reset_gate'"
    ):
        components_table(model, parity, kinds=["resetgate"])
    with pytest.raises(InputError, match="no components"):
        components_table(model, parity, kinds=[])
    with pytest.raises(InputError, match="at least one length"):
        components_table(model, parity, lengths=())
    with pytest.raises(InputError, match="6 tokens and 6 classes"):
        components_table(model, task("dyck"))
    short = models.get("transformer")(
        "transformer", n_tokens=2, n_out=2, d_model=16, n_heads=2, max_length=32
    )
    with pytest.raises(InputError, match="32 learned positions"):
        components_table(short, parity, lengths=(8, 40), n=20)
