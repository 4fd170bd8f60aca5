"""Denormal numbers are 0 inside the scope, and only there."""

from __future__ import annotations

import torch

from causegrid.models.ops.denormals import flushed


def test_denormal_numbers_are_zero_inside_alone():
    small = torch.tensor([1e-30])
    with flushed():
        assert float((small * 1e-9).item()) == 0.0
    assert 0.0 < float((small * 1e-9).item()) < 1e-37
