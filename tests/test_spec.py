"""Options in a name: `dyck:k=8`, `mamba:conv=false`."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import causegrid as cg
from causegrid.errors import InputError
from causegrid.models import save
from causegrid.spec import joined, split
from causegrid.studies.names import require_family

NAME = st.from_regex(r"[a-z][a-z0-9-]{0,8}", fullmatch=True)
VALUE = st.one_of(
    st.booleans(), st.integers(-99, 99), st.floats(-9, 9), st.from_regex(r"[a-z]{1,6}x", fullmatch=True)
)


@given(NAME, st.dictionaries(NAME, VALUE, max_size=4))
def test_a_spelled_name_reads_back(name, options):
    assert split(joined(name, options)) == (name, options)


def test_values_have_the_kind_they_look_like():
    assert split("x:a=1,b=1.5,c=TRUE,d=false,e=rope") == (
        "x",
        {"a": 1, "b": 1.5, "c": True, "d": False, "e": "rope"},
    )
    assert split("plain") == ("plain", {})


@pytest.mark.parametrize("text", ["dyck:", "dyck:k", "dyck:k=", "dyck:=8", "dyck:k=8,", "dyck:k=8,k=9"])
def test_half_written_options_are_refused(text):
    with pytest.raises(InputError, match="dyck"):
        split(text)


@pytest.mark.parametrize(
    ("make", "name", "line"),
    [
        (lambda name: cg.model(name, task=cg.task("parity")), "mamba:conv=no", "conv must be true or false, not 'no'"),
        (lambda name: cg.model(name, task=cg.task("parity")), "mamba2:conv=0", "conv must be true or false, not 0"),
        (cg.task, "dyck:k=two", "k must be a whole number, not 'two'"),
        (cg.task, "dyck:k=true", "k must be a whole number, not True"),
        (cg.task, "code-depth:indentation=yes", "indentation must be true or false, not 'yes'"),
    ],
)  # fmt: skip
def test_a_value_of_another_kind_is_refused(make, name, line):
    """`no` is a text, and a text is true: the convolution stayed on while the name said it was off."""
    with pytest.raises(InputError, match=line):
        make(name)


def test_a_task_is_made_and_called_as_its_name_says():
    made = cg.task("dyck:max_depth=4, k=8")
    assert (made.name, made.n_tokens, dict(made.labels)) == (
        "dyck:k=8,max_depth=4",
        16,
        {"depth": 5, "top": 9},
    )
    assert cg.task("ioi:templates=2").name == "ioi:templates=2"
    with pytest.raises(InputError, match="did you mean 'k'"):
        cg.task("dyck:kk=8")
    with pytest.raises(InputError, match="beside it"):
        cg.task("dyck:k=8", k=2)


def test_a_model_is_made_saved_and_loaded_under_its_full_name(tmp_path):
    parity = cg.task("parity")
    bare = cg.model("mamba:conv=false", task=parity, seed=3)
    assert bare.name == "mamba:conv=false" and bare.family == "mamba" and bare.config["conv"] is False
    assert not any("conv1d" in n for n, _ in bare.module.named_parameters())
    save(bare, tmp_path / "m")
    assert cg.model(tmp_path / "m").name == "mamba:conv=false"
    with pytest.raises(InputError, match="conv"):
        cg.model("mamba:convv=false", task=parity)


def test_families_and_their_options_are_asked_before_anything_runs():
    require_family("transformer:positions=rope")
    require_family("mamba:signed=true,conv=false")
    with pytest.raises(InputError, match="did you mean 'signed'"):
        require_family("mamba:sign=true")
    with pytest.raises(InputError, match="unknown option of model 'lstm' 'seed'"):
        require_family("lstm:seed=1")
    with pytest.raises(InputError, match="did you mean 'mamba'"):
        require_family("manba:conv=false")
