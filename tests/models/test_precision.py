"""Measures run in full float32: cuDNN's TF32 is off inside a forward and as the caller had it outside."""

from __future__ import annotations

import pytest
import torch

import tiny
from causegrid.models import wrap
from causegrid.models.forward import last_logits, logits


@pytest.mark.parametrize("before", [True, False])
def test_cudnn_computes_no_tf32_inside_a_forward(before: bool) -> None:
    model = wrap(tiny.hf("gpt2"), name="gpt2")
    seen = []
    model.module.register_forward_pre_hook(lambda *_: seen.append(torch.backends.cudnn.allow_tf32))
    torch.backends.cudnn.allow_tf32 = before
    try:
        logits(model, [[1, 2, 3]])
        last_logits(model, [[1, 2], [3, 4, 5]])
        assert seen == [False] * 3 and torch.backends.cudnn.allow_tf32 is before
        model.module.register_forward_pre_hook(lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            logits(model, [[1, 2, 3]])
        assert torch.backends.cudnn.allow_tf32 is before
    finally:
        torch.backends.cudnn.allow_tf32 = True
