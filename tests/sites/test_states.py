"""States read and written where they are carried, against recurrences written out here."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from site_models import hf, ours, output, tokens, traces
from torch import nn

from causegrid.errors import InputError
from causegrid.sites import Edit, capture, edit, replace, site, substitute, supported, zero
from causegrid.sites.states import StateTap, restarted, tapped
from causegrid.sites.table import place


def cells(
    block: nn.Module, x: torch.Tensor, change: dict[int, torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor]:
    """The oracle: torch's single-step cells in a loop -> (outputs (B, L, d), states (B, L, d or 2 d))."""
    lstm = isinstance(block, nn.LSTM)
    cell = (nn.LSTMCell if lstm else nn.GRUCell)(32, 32)
    cell.load_state_dict({k.removesuffix("_l0"): v for k, v in block.state_dict().items()})
    state = torch.zeros(x.shape[0], 64 if lstm else 32)
    states = []
    for t in range(x.shape[1]):
        both = tuple(state.chunk(2, dim=-1))
        state = torch.cat(cell(x[:, t], both), dim=-1) if lstm else cell(x[:, t], state)
        state = change.get(t, state)
        states.append(state)
    found = torch.stack(states, dim=1).detach()
    return found[..., :32], found


@pytest.mark.parametrize("name", ["lstm", "gru"])
def test_recurrent_states_equal_single_step_cells(name: str) -> None:
    model = ours(name)
    ids = tokens(model)
    acts = capture(
        model, ids, ["L1.state", "L1.state", "L1.state@3", "L1.state@-1", "L1.resid_pre", "L1.resid_post"]
    )
    _, states = cells(model.module.blocks[1], acts["L1.resid_pre"], {})
    torch.testing.assert_close(acts["L1.state"], states, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(acts["L1.state@3"], states[:, 3], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(acts["L1.state@-1"], states[:, -1], rtol=1e-5, atol=1e-5)
    assert torch.equal(acts["L1.state"][..., :32], acts["L1.resid_post"])


@pytest.mark.parametrize("name", ["lstm", "gru"])
@pytest.mark.parametrize("position", [0, 4, 8])
def test_an_edited_recurrent_state_is_carried_on(name: str, position: int) -> None:
    model = ours(name)
    ids = tokens(model)
    clean = capture(model, ids, ["L1.resid_pre", "L1.resid_post"])
    new = torch.full((3, 64 if name == "lstm" else 32), 0.7)
    expected, _ = cells(model.module.blocks[1], clean["L1.resid_pre"], {position: new})
    with edit(model, replace(f"L1.state@{position}", new)) as log:
        found = capture(model, ids, "L1.resid_post")["L1.resid_post"]
    assert log.total == 1
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    assert torch.equal(found[:, :position], clean["L1.resid_post"][:, :position]) or position == 0


def test_mamba_states_equal_the_recurrence_written_out() -> None:
    model = ours("mamba")
    ids = tokens(model)
    mixer = model.module.blocks[1].mixer
    acts = capture(model, ids, ["L1.ssm_input", "L1.state", "L1.state@5", "L1.attn_out", "L1.resid_pre"])
    new = torch.linspace(-1, 1, acts["L1.state@5"].numel()).reshape(acts["L1.state@5"].shape)
    with torch.no_grad():
        x = acts["L1.ssm_input"]
        step, b, c = mixer.x_proj(x).split([2, 16, 16], dim=-1)
        dt = nn.functional.softplus(mixer.dt_proj(step))
        gate = mixer.in_proj(model.module.blocks[1].norm(acts["L1.resid_pre"])).chunk(2, dim=-1)[1]

        def run(change: dict[int, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
            h, states, out = torch.zeros(3, 64, 16), [], []
            for t in range(9):
                h = torch.exp(-mixer.A_log.exp() * dt[:, t, :, None]) * h
                h = h + dt[:, t, :, None] * x[:, t, :, None] * b[:, t, None, :]
                h = change.get(t, h)
                states.append(h)
                out.append(torch.einsum("ben,bn->be", h, c[:, t]) + mixer.D * x[:, t])
            y = torch.stack(out, 1) * nn.functional.silu(gate)
            return torch.stack(states, 1), mixer.out_proj(y)

        states, _ = run({})
        _, changed = run({5: new})
    torch.testing.assert_close(acts["L1.state"], states, rtol=1e-4, atol=1e-5)
    assert torch.equal(acts["L1.state@5"], acts["L1.state"][:, 5])
    with edit(model, replace("L1.state@5", new)):
        found = capture(model, ids, "L1.attn_out")["L1.attn_out"]
    torch.testing.assert_close(found, changed, rtol=1e-4, atol=1e-4)


def test_mamba2_states_carry_on_and_leave_the_fast_path_behind() -> None:
    model = ours("mamba2")
    ids = tokens(model, length=17)
    fast = vars(model.module.blocks[0].mixer)["ssd"]
    clean = output(model, ids)
    states = capture(model, ids, "L0.state")["L0.state"]
    assert states.shape == (3, 17, 8, 8, 8)
    with edit(model, Edit(site("L0.state@6"), lambda h: h)):
        torch.testing.assert_close(output(model, ids), clean, rtol=1e-4, atol=1e-5)
    with edit(model, zero("L0.state@6")):
        after = capture(model, ids, ["L0.state", "L0.attn_out"])
    assert not after["L0.state"][:, 6].any() and torch.equal(after["L0.state"][:, :6], states[:, :6])
    assert not torch.allclose(after["L0.state"][:, 7], states[:, 7])
    restarted = capture(model, ids[:, :7], "L0.attn_out")["L0.attn_out"]
    torch.testing.assert_close(after["L0.attn_out"][:, :6], restarted[:, :6], rtol=1e-4, atol=1e-5)
    assert vars(model.module.blocks[0].mixer)["ssd"] is fast
    assert torch.equal(clean, output(model, ids))


@pytest.mark.parametrize("name", ["lstm", "gru", "mamba", "mamba2"])
def test_two_taps_on_one_module_and_whole_states_are_read_only(name: str) -> None:
    model = ours(name)
    ids = tokens(model)
    add = Edit(site("L0.state@2"), lambda h: h + 1)
    double = Edit(site("L0.state@-7"), lambda h: 2 * h)
    clean = capture(model, ids, "L0.state@2")["L0.state@2"]
    with edit(model, add, double) as log:
        found = capture(model, ids, "L0.state@2")["L0.state@2"]
    torch.testing.assert_close(found, 2 * (clean + 1))
    assert log.fired == {"L0.state@2": 1, "L0.state@-7": 1}
    with pytest.raises(InputError, match="needs a position"), edit(model, zero("L0.state")):
        pass
    with pytest.raises(InputError, match="has 9 tokens"), edit(model, zero("L0.state@9")):
        output(model, ids)


def test_hf_states_are_refused_with_the_reason() -> None:
    for name in ("mamba", "mamba2"):
        assert "scan" in supported(hf(name))["state"]


@pytest.mark.parametrize("name", ["lstm", "gru", "mamba", "mamba2"])
def test_a_restarted_recurrence_is_a_state_zeroed_before_every_position(name: str) -> None:
    """Restarting equals one-token sequences, fires once a forward, and leaves nothing behind."""
    model = ours(name)
    module, _ = place(model, "L1.state")
    before, fired = traces(model), []
    x = torch.randn(3, 7, 32, generator=torch.Generator().manual_seed(2))
    current = nullcontext()
    if hasattr(module, "conv1d"):  # the convolution reaches back too
        kernel = torch.zeros_like(module.conv1d.weight)
        kernel[:, :, -1] = 1.0
        current = substitute(module.conv1d, {"weight": kernel})
    with torch.no_grad(), current:
        with restarted(module, lambda: fired.append(1)):
            found = module(x)
        alone = module(x.reshape(21, 1, 32))
    if isinstance(found, tuple):
        (found, state), (alone, last) = found, alone
        for mine, torchs in zip(*(s if isinstance(s, tuple) else (s,) for s in (state, last)), strict=True):
            torch.testing.assert_close(mine, torchs.view(1, 3, 7, 32)[:, :, -1])
    torch.testing.assert_close(found, alone.view(3, 7, 32), rtol=1e-5, atol=1e-5)
    assert fired == [1] and traces(model) == before


def test_a_restart_is_refused_where_it_cannot_be() -> None:
    model = ours("gru")
    module, _ = place(model, "L0.state")
    with (
        tapped(module, StateTap(None, lambda _t, _s: None)),
        pytest.raises(InputError, match="tapped"),
        restarted(module, lambda: None),
    ):
        pass
    with pytest.raises(InputError, match="no recurrent state"), restarted(nn.Linear(2, 2), lambda: None):
        pass
    with restarted(module, lambda: None), pytest.raises(InputError, match="no initial state"):
        module(torch.zeros(1, 2, 32), torch.zeros(1, 1, 32))
    assert "forward" not in vars(module)
