from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from site_models import OURS, hf, ours, tokens, traces

import tiny
from causegrid.errors import InputError
from causegrid.models.record import Model
from causegrid.sites import Place, check, families, table


@pytest.mark.parametrize(
    "model", [hf(n) for n in tiny.CONFIGS] + [ours(n) for n in OURS], ids=lambda m: m.name
)
def test_no_check_fails_on_any_family(model: Model) -> None:
    found = traces(model)
    frame = check(model)
    assert list(frame.columns) == ["test", "result", "value", "detail"]
    assert frame.test.is_unique
    assert set(frame.result) <= {"ok", "unsupported"}, frame[frame.result == "fail"].to_string()
    assert (frame.detail != "").all()
    results = frame.set_index("test").result
    for name in (
        "finite weights",
        "lens at the last block",
        "prefix reuse",
        "restored after edits",
        "noise floor",
    ):
        assert results[name] == "ok"
    assert (results["rows equal full patterns"] == "ok") == (model.n_heads > 0)
    assert traces(model) == found


def test_own_tokens_are_used_and_refused_when_impossible() -> None:
    model = hf("llama")
    assert "(2, 5, 32)" in check(model, tokens(model, 2, 5)).set_index("test").detail["capture resid_pre"]
    with pytest.raises(InputError, match="vocabulary"):
        check(model, [[5000]])


def _with_places(name: str, key: str, **places: Place) -> Model:
    model = hf(name)
    layout = table(model)
    families.register(f"hf:{key}")(replace(layout, places={**layout.places, **places}, reasons={}))
    return Model(**{**vars(model), "family": key})


def test_a_table_that_points_at_the_wrong_module_fails() -> None:
    wrong = _with_places("olmo2", "olmo2-before-the-norm", attn_out=Place(path="self_attn"))
    results = check(wrong).set_index("test").result
    assert results["parts sum to residual"] == "fail"
    silent = check(_with_places("mamba", "mamba-silent", conv=Place(path="mixer.conv1d"))).set_index("test")
    for name, said in (("capture conv", "never called"), ("empty edit conv", "zero times")):
        assert silent.result[name] == "fail" and said in silent.detail[name]


def test_weights_that_are_not_finite_fail() -> None:
    module = tiny.hf("llama")
    model = Model(**{**vars(hf("llama")), "module": module})
    with torch.no_grad():
        module.get_submodule("model.layers.1.mlp.up_proj").weight[0, 0] = float("nan")
    frame = check(model).set_index("test")
    assert frame.result["finite weights"] == "fail" and "up_proj" in frame.detail["finite weights"]


def test_half_precision_passes_at_its_own_tolerance() -> None:
    module = tiny.hf("llama_gqa").bfloat16()
    model = Model(**{**vars(hf("llama_gqa")), "module": module})
    frame = check(model)
    assert "fail" not in set(frame.result), frame[frame.result == "fail"].to_string()
