"""Self-checks on a device whose sums have no fixed order: no more bits are asked than two plain runs share."""

from __future__ import annotations

import torch

import tiny
from causegrid import sites
from causegrid.models import wrap

BITS = ("empty edit z", "empty edit resid_post", "restored after edits", "prefix reuse")


def test_a_model_that_repeats_itself_to_rounding_only_passes() -> None:
    model = wrap(tiny.hf("gpt_neox"), name="restless")
    model.module.lm_head.register_forward_hook(lambda _m, _a, out: out + 1e-6 * torch.rand_like(out))
    table = sites.check(model).set_index("test")
    for name in BITS:
        assert table.loc[name, "result"] == "ok" and 0 < table.loc[name, "value"] < 1e-5, table.loc[name]
        assert "plain runs differ by" in table.loc[name, "detail"]


def test_an_edit_that_moves_more_than_a_plain_run_still_fails() -> None:
    model = wrap(tiny.hf("gpt_neox"), name="hooked")

    def more_when_hooked(module: torch.nn.Module, _args: object, out: torch.Tensor) -> torch.Tensor:
        z = module.gpt_neox.layers[0].attention.dense
        return out + (1e-6 if not z._forward_pre_hooks else 1e-3) * torch.rand_like(out)

    model.module.lm_head.register_forward_hook(lambda _m, _a, out: more_when_hooked(model.module, (), out))
    table = sites.check(model).set_index("test")
    assert (
        table.loc["empty edit z", "result"] == "fail" and table.loc["empty edit resid_post", "result"] == "ok"
    )
