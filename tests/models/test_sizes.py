"""Sizes that make no model are refused in one line, by every family."""

from __future__ import annotations

import pytest

from causegrid import model, task
from causegrid.errors import InputError

OPTIONS = {
    "lstm": ("d_model", "n_layers"),
    "gru": ("d_model", "n_layers"),
    "transformer": ("d_model", "n_layers", "n_heads", "expand", "max_length"),
    "mamba": ("d_model", "n_layers", "n_state", "expand", "taps", "rank"),
    "mamba2": ("d_model", "n_layers", "n_state", "expand", "taps", "head_dim", "n_groups", "chunk"),
}
CASES = [(family, option) for family, options in OPTIONS.items() for option in options]


@pytest.mark.parametrize(("family", "option"), CASES)
@pytest.mark.parametrize("value", ["0", "-1", "1.5", "true"])
def test_a_size_below_one_is_refused(family, option, value):
    with pytest.raises(InputError, match=f"{option} must be a whole number") as refused:
        model(f"{family}:{option}={value}", task=task("parity"))
    assert value.capitalize() in str(refused.value) and "\n" not in str(refused.value)
