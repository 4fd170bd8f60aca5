"""Groups files: what is read and what is refused."""

from __future__ import annotations

import json

import pytest

from causegrid.errors import InputError
from causegrid.interventions.groups import Group, read_groups


def test_both_forms_are_read_from_a_dict_and_from_a_file(tiny_model, tmp_path):
    model = tiny_model("llama")
    given = {
        "_model": model.name,
        "plain": ["L0H1", "L1H3"],
        "aimed": {"heads": ["L1H0"], "target": "IO"},
    }
    want = {
        "plain": Group(name="plain", heads=("L0H1", "L1H3")),
        "aimed": Group(name="aimed", heads=("L1H0",), target="IO"),
    }
    path = tmp_path / "groups.json"
    path.write_text(json.dumps(given))
    assert read_groups(given, model) == read_groups(path, model) == read_groups(str(path), model) == want
    assert read_groups(want, model) == want


def test_case_24_another_models_groups(tiny_model, tmp_path):
    path = tmp_path / "groups.json"
    path.write_text(json.dumps({"_model": "model-a", "g": ["L0H1"]}))
    with pytest.raises(InputError, match=r"model-a.*tiny-llama"):
        read_groups(path, tiny_model("llama"))
    assert read_groups(path, tiny_model("llama"), force=True)["g"].heads == ("L0H1",)
    path.write_text(json.dumps({"_model": "model-a", "g": ["L0H9"]}))
    with pytest.raises(InputError, match="4 heads"):
        read_groups(path, tiny_model("llama"), force=True)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ('{"g": ["L0H1", "L0H1"]}', "twice"),
        ('{"g": []}', "no heads"),
        ('{"g": ["L0H12"]}', "4 heads"),
        ('{"g": ["H1"]}', "L3H1"),
        ('{"g": 3}', "list of heads"),
        ('{"g": [3]}', "L3H1"),
        ('{"g": {"head": ["L0H1"]}}', "did you mean 'heads'"),
        ('{"g": {"target": "IO"}}', "no 'heads'"),
        ('{"g": {"heads": ["L0H1"], "target": 3}}', "target"),
        ('{"g": ["L0H1"],', "not JSON"),
        ('{"g": ["L0H1"], "g": ["L0H2"]}', "appears twice"),
        ('["L0H1"]', "object of groups"),
        ("{}", "no groups"),
        ('{"_model": "tiny-llama"}', "no groups"),
        ('{"_model": 3, "g": ["L0H1"]}', "_model"),
        ('{"": ["L0H1"]}', "needs a name"),
        ('{" ": ["L0H1"]}', "needs a name"),
        ("[" * 100_000, "too deeply"),
        ('{"g": [' + "9" * 5000 + "]}", "not JSON"),
        ('{"g": ["L' + "9" * 5000 + 'H0"]}', "not a head"),
        ('{"a\\nb": ["L0H1"]}', "cannot be printed"),
    ],
)
def test_bad_files_are_refused_in_one_line(text, word, tiny_model, tmp_path):
    path = tmp_path / "groups.json"
    path.write_text(text)
    with pytest.raises(InputError, match=word) as caught:
        read_groups(path, tiny_model("llama"))
    assert "\n" not in str(caught.value) and "groups.json" in str(caught.value)


def test_a_byte_order_mark_is_no_fault(tiny_model, tmp_path):
    path = tmp_path / "groups.json"
    path.write_text('{"g": ["L0H1"]}', encoding="utf-8-sig")
    assert read_groups(path, tiny_model("llama"))["g"].heads == ("L0H1",)


def test_a_missing_file_is_refused(tiny_model, tmp_path):
    with pytest.raises(InputError, match=r"nothing\.json"):
        read_groups(tmp_path / "nothing.json", tiny_model("llama"))
