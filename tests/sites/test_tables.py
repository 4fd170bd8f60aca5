from __future__ import annotations

import pytest
from site_models import OURS, hf, ours
from torch import nn

import tiny
from causegrid.errors import InputError
from causegrid.models.record import Model
from causegrid.sites import KINDS, FamilyTable, Place, families, require, site, supported, table


@pytest.mark.parametrize("name", tiny.CONFIGS)
def test_case_23_head_and_layer_out_of_range_name_the_counts(name: str) -> None:
    model = hf(name)
    with pytest.raises(InputError, match="has 2 layers"):
        require(model, "L2.resid_post")
    with pytest.raises(InputError, match="has 2 layers"):
        require(model, "L-1.resid_pre")
    assert require(model, "L-1.resid_post") == site("L-1.resid_post")
    if model.n_heads:
        assert require(model, "L1.z[3]").head == 3
        for head in (4, 12, -1):
            with pytest.raises(InputError, match=r"has 4 heads \(0\.\.3\)"):
                require(model, f"L0.z[{head}]")


@pytest.mark.parametrize(
    "model", [hf(n) for n in tiny.CONFIGS] + [ours(n) for n in OURS], ids=lambda m: m.name
)
def test_every_kind_is_supported_or_has_a_reason(model: Model) -> None:
    for use in ("capture", "edit"):
        reasons = supported(model, use)
        assert tuple(reasons) == KINDS
        assert reasons["resid_pre"] == reasons["resid_post"] == ""
        for kind, reason in reasons.items():
            if reason:
                with pytest.raises(InputError) as caught:
                    require(model, f"L0.{kind}", use)
                assert reason in str(caught.value) and "\n" not in str(caught.value)


def test_same_family_name_two_layouts() -> None:
    assert table(hf("mamba")).blocks == "backbone.layers"
    assert table(ours("mamba")).blocks == "blocks"


def test_conv_reason_points_to_weight_substitution() -> None:
    for name in ("mamba", "mamba2"):
        assert "weight substitution" in supported(hf(name), "edit")["conv"]
        assert supported(ours(name), "edit")["conv"] == ""


def _strange(family: str, module: nn.Module) -> Model:
    return Model(
        name="strange", family=family, module=module, n_layers=1, d_model=4, n_tokens=5, n_out=5, n_heads=1
    )


def test_unknown_family_lists_the_supported_ones() -> None:
    with pytest.raises(InputError, match=r"hf:gpt_neox.*lstm") as caught:
        table(_strange("bloom", nn.Linear(2, 2)))
    assert "'bloom'" in str(caught.value) and "register" in str(caught.value)


def test_a_third_party_registers_a_table_and_a_wrong_one_is_named() -> None:
    families.register("strange-one")(
        FamilyTable(
            blocks="layers", norm="", head="", places={"resid_pre": Place(path="nowhere", side="input")}
        )
    )
    with pytest.raises(InputError, match="'layers'"):
        from causegrid.sites import blocks

        blocks(_strange("strange-one", nn.Linear(2, 2)))
    with pytest.raises(ValueError, match="twice"):
        families.register("strange-one")(table(hf("llama")))


def test_expert_sites_say_why_not() -> None:
    with pytest.raises(InputError, match="ablate_expert"):
        site("L0.expert")
