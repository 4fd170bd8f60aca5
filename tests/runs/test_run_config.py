"""Study files: every mistake is one line with file, line, key, what is allowed and the nearest match."""

from __future__ import annotations

from pathlib import Path

import pytest
from runs_fake_study import Fake, Other

from causegrid.errors import InputError
from causegrid.runs.config import load
from causegrid.studies.base import studies

GOOD = """\
# a study
study: fake
log: log.txt
tasks: [a, b]
depth:
  steps: 5
  rate: 1e-3
parts:
  - kind: dense
    width: 8
  - kind: expert
"""


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    monkeypatch.setattr(studies, "_discovered", True)
    monkeypatch.setattr(studies, "_things", {"fake": Fake, "other": Other})


@pytest.fixture
def file(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = Path("s.yaml")
    path.write_text(GOOD)
    return path


def complaint(file: Path, *overrides: str) -> list[str]:
    with pytest.raises(InputError) as caught:
        load(file, overrides=overrides)
    return str(caught.value).splitlines()


def test_a_good_file_resolves_and_is_frozen(file):
    study, config = load(file)
    assert isinstance(study, Fake)
    assert (config.tasks, config.depth.steps, config.depth.rate, config.depth.mode) == (
        ["a", "b"],
        5,
        1e-3,
        "mean",
    )
    assert [p.kind for p in config.parts] == ["dense", "expert"]
    with pytest.raises(ValueError, match="frozen"):
        config.log = "other"


def test_overrides_set_nested_keys_lists_and_new_keys(file):
    overrides = ["depth.steps=7", "seeds=[3, 4]", "parts.0.width=2", "tasks.1=c", "depth.mode=zero", "log="]
    with pytest.raises(InputError, match=r"--set log= log -> null -> must be text"):
        load(file, overrides=overrides)
    _, config = load(file, overrides=overrides[:-1])
    assert (config.depth.steps, list(config.seeds), config.parts[0].width) == (7, [3, 4], 2)
    assert (config.tasks, config.depth.mode) == (["a", "c"], "zero")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("  steps: 5", "  stps: 5",
         "s.yaml:6 depth.stps -> unknown key -> allowed: steps, rate, mode, did you mean 'steps'?"),
        ("  steps: 5", "  steps: many",
         "s.yaml:6 depth.steps -> 'many' -> must be a whole number"),
        ("  rate: 1e-3", "  rate: 0", "s.yaml:7 depth.rate -> 0 -> must be greater than 0"),
        ("  rate: 1e-3", "  mode: zeros",
         "s.yaml:7 depth.mode -> 'zeros' -> allowed: mean, zero, did you mean 'zero'?"),
        ("tasks: [a, b]", "task: [a, b]",
         "s.yaml:2 tasks -> missing -> required here"),
        ("tasks: [a, b]", "tasks: [a, [b]]", "s.yaml:4 tasks.1 -> ['b'] -> must be text"),
        ("tasks: [a, b]", "tasks: a", "s.yaml:4 tasks -> 'a' -> must be a list, as in [a, b]"),
        ("log: log.txt", "log: yes", "s.yaml:3 log -> true -> must be text"),
        ("  rate: 1e-3", "  rate: x", "s.yaml:7 depth.rate -> 'x' -> must be a number"),
        ("depth:\n  steps: 5\n  rate: 1e-3", "depth: 5",
         "s.yaml:5 depth -> 5 -> must be a mapping, lines of `key: value`"),
        ("study: fake", "study: fakes",
         "s.yaml:2 study -> unknown study 'fakes': allowed are "),
        ("study: fake\n", "", "s.yaml:2 study -> missing -> allowed: "),
        ("study: fake", "study: [fake]", "s.yaml:2 study -> unknown study ['fake']"),
        ("  - kind: expert", "  - kind: expert\n    expert: 3",
         "s.yaml:12 parts.1.expert -> unknown key -> allowed: "),
        ("  - kind: expert", "tagged:\n  - kind: exprt",
         "s.yaml:12 tagged.0 -> unknown 'kind' 'exprt' -> allowed: dense, expert, did you mean 'expert'?"),
        ("  - kind: expert", "tagged:\n  - kind: dense\n    widht: 3",
         "s.yaml:13 tagged.0.widht -> unknown key -> allowed: kind, width, did you mean 'width'?"),
        ("log: log.txt", "log: log.txt\nlog: other.txt", "s.yaml:4 log -> stands twice (first at s.yaml:3)"),
        ("tasks: [a, b]", "tasks: [a, b", "s.yaml:5 is not YAML: "),
        ("log: log.txt", "log: x\n\t- x", "s.yaml:4 is not YAML: "),
        ("log: log.txt", "log: !!python/object:os.system x", "s.yaml:3 is not YAML: could not determine"),
        ("log: log.txt", "log: 2001-99-99", "s.yaml is not YAML: "),
        ("log: log.txt", "log: &a [*a]", "s.yaml:3 refers to itself"),
        ("log: log.txt", "---\nlog: log.txt", "s.yaml:3 is not YAML: but found another document"),
    ],
)  # fmt: skip
def test_one_mistake_one_line(file, old, new, said):
    assert old in GOOD
    file.write_text(GOOD.replace(old, new))
    lines = complaint(file)
    assert any(line.startswith(said) for line in lines), lines
    assert len(lines) == (2 if new.startswith("task:") or "parts.1" in said else 1)


@pytest.mark.parametrize(
    ("override", "said"),
    [
        (
            "depth.stps=4",
            "--set depth.stps=4 depth.stps -> unknown key -> allowed: steps, rate, mode, did you mean",
        ),
        ("dept.steps=4", "--set dept.steps=4 dept -> unknown key -> allowed: "),
        ("depth.steps", "--set depth.steps -> not an assignment"),
        ("=4", "--set =4 -> not an assignment"),
        ("depth..steps=4", "--set depth..steps=4 -> not an assignment"),
        ("depth.steps=[4", "--set depth.steps=[4 -> the value is not YAML"),
        ("depth.steps=x", "--set depth.steps=x depth.steps -> 'x' -> must be a whole number"),
        ("tasks.7=c", "--set tasks.7=c tasks.7 -> '7' is not a position in a list -> allowed: 0, 1"),
        ("tasks.x=c", "--set tasks.x=c tasks.x -> 'x' is not a position"),
        ("log.x=c", "--set log.x=c log.x -> goes through a string ('log.txt')"),
        ("study=fkae", "--set study=fkae study -> unknown study 'fkae'"),
    ],
)
def test_bad_overrides_are_named(file, override, said):
    (line,) = complaint(file, override)
    assert line.startswith(said)


def test_an_override_mends_a_mistake_in_the_file(file):
    file.write_text(GOOD.replace("steps: 5", "steps: many"))
    assert load(file, overrides=["depth.steps=5"])[1].depth.steps == 5


def test_many_mistakes_are_cut_short(file):
    file.write_text(GOOD + "".join(f"extra{i}: 1\n" for i in range(9)))
    lines = complaint(file)
    assert len(lines) == 6 and lines[-1] == "and 4 more"
    assert lines[0].startswith("s.yaml:12 extra0 -> unknown key -> allowed: study, log,")


@pytest.mark.parametrize(
    ("content", "said"),
    [(b"", "is empty"), (b"# only a comment\n", "is empty"), (b"- a\n- b\n", "holds a list"),
     (b"hello", "holds a str"), (b"null", "holds a null"), (b"\xff\xfe\x00", "is not UTF-8"),
     (b"study: fake\x00", "is not YAML")],
)  # fmt: skip
def test_files_that_are_no_study(file, content, said):
    file.write_bytes(content)
    (line,) = complaint(file)
    assert line.startswith("s.yaml") and said in line


def test_files_that_are_not_there(file, tmp_path):
    assert complaint(Path("t.yaml")) == ["no study file 't.yaml'; did you mean 's.yaml'?"]
    assert complaint(Path("nowhere/s.yaml")) == ["no study file 'nowhere/s.yaml': its folder does not exist"]
    assert complaint(tmp_path)[0].endswith("is a folder: give a study file, as `causegrid init NAME` writes")
