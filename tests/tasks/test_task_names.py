import json

import pytest

from causegrid.errors import InputError
from causegrid.tasks import PromptTask, StateTask, task, tasks


@pytest.mark.parametrize(
    "name, options, words",
    [
        ("pairity", {}, ("pairity", "did you mean 'parity'", "dyck")),
        ("variable_binding", {}, ("did you mean 'variable-binding'",)),
        (None, {}, ("None",)),
        ("dyck", {"max_dept": 3}, ("max_dept", "allowed are k, max_depth", "did you mean 'max_depth'")),
        ("s3", {"k": 3}, ("'k'", "(none)")),
        ("ioi", {"template": 2}, ("did you mean 'templates'",)),
        ("prompts", {}, ("needs the option 'file'", "prompts:mine.jsonl")),
        ("prompts:", {}, ("needs a file",)),
        ("prompts:a.jsonl", {"file": "b.jsonl"}, ("b.jsonl",)),
        ("ioi", {"templates": 9}, ("1..4",)),
        ("ioi", {"templates": []}, ("empty",)),
        ("ioi", {"templates": ["{A} {B}"]}, ("{place}",)),
        ("ioi", {"templates": ["{A"]}, ("cannot be read",)),
    ],
)
def test_bad_names_and_options_are_one_line(name, options, words):
    with pytest.raises(InputError) as caught:
        task(name, **options)
    message = str(caught.value)
    assert all(w in message for w in words), message
    assert "\n" not in message


def test_kinds(tmp_path):
    file = tmp_path / "mine.jsonl"
    file.write_text(json.dumps({"prompt": "a b", "answer": "c"}))
    assert isinstance(task("dyck", k=8), StateTask)
    for made in (
        task("ioi"),
        task("variable-binding"),
        task(f"prompts:{file}"),
        task("prompts", file=str(file)),
    ):
        assert isinstance(made, PromptTask) and made.kind == "prompt"
    assert {"ioi", "variable-binding", "prompts"} <= set(tasks.names())


def test_a_task_of_too_many_classes_is_refused_by_name(monkeypatch):
    class Wide(StateTask):
        def __init__(self, name, *, n=257):
            self.name, self.n_tokens, self.labels = name, 2, {"state": n}

        def sample(self, n, length, *, seed, split):
            raise AssertionError("not asked")

    monkeypatch.setitem(tasks._things, "wide", Wide)
    with pytest.raises(InputError, match=r"'wide': its label 'state' has 257 classes; take at most 256"):
        task("wide")
    assert task("wide:n=256").n_classes == 256
