"""`causegrid list`: whole sentences, a note of its own for every name, and the options a name may carry."""

from __future__ import annotations

import json

import pytest

from causegrid.catalogue import catalogue, first_sentence
from causegrid.cli import main


@pytest.mark.parametrize(
    ("document", "sentence"),
    [
        ("One line", "One line"),
        ("A sentence that\nruns over two lines.  Raises no more.", "A sentence that runs over two lines"),
        ("A scheme 0..9 of v1.5, e.g. this.", "A scheme 0..9 of v1.5, e.g. this"),
        ("A title\n\nAnd its text.", "A title"),
        ("held-out-ioi, and others, ...", "held-out-ioi, and others, ..."),
        ("", ""),
    ],
)
def test_the_first_sentence_whole(document, sentence):
    assert first_sentence(document) == sentence


def test_every_name_has_a_note_of_its_own():
    found = catalogue()
    assert found["note"].is_unique and found["note"].all()
    assert not found["note"].str.contains("InputError|positional $", regex=True).any()
    notes = dict(zip(found["name"], found["note"], strict=True))
    assert "6 states" in notes["s3"] and "3 points" in notes["s3"] and "n points" in notes["s<n>"]
    assert "modulo 6" in notes["z6"] and "modulo n" in notes["z<n>"]


def test_options_are_those_a_name_may_carry():
    from causegrid.studies.names import require_family
    from causegrid.tasks import task

    found = catalogue(["models", "tasks"])
    options = dict(zip(found["name"], found["options"], strict=True))
    assert options["mamba"]["conv"] is True and options["mamba"]["rank"] is None
    assert options["dyck"] == {"k": 2, "max_depth": 10}
    assert options["smollm2-135m"] == options["prompts"] == {}
    for family in ("transformer", "mamba", "mamba2", "lstm", "gru"):
        assert "seed" not in options[family] and "n_tokens" not in options[family]
        given = {k: v for k, v in options[family].items() if v is not None}
        require_family(f"{family}:" + ",".join(f"{k}={v}" for k, v in given.items()))
    assert task("dyck:k=2,max_depth=10").name.startswith("dyck")


def test_the_list_spells_options_as_they_are_written(capsys):
    assert main(["list", "models"]) == 0
    mamba = next(line for line in capsys.readouterr().out.splitlines() if line.split()[1] == "mamba")
    assert mamba.endswith("expand=2, taps=4, rank, conv=true, signed=false")
    assert main(["list", "engines"]) == 0
    assert "options" not in capsys.readouterr().out
    assert main(["list", "engines", "--json"]) == 0
    assert all(row["options"] == {} for row in json.loads(capsys.readouterr().out))
