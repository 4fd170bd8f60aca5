"""The command line as a user meets it: fixed JSON, exit codes, one line for bad input and nothing written."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

from causegrid.cli import main


@pytest.fixture
def call(capsys):
    """Run the command line in this process -> (exit code, stdout, stderr)."""

    def run(*words: object) -> tuple[int, str, str]:
        code = main([str(w) for w in words])
        out = capsys.readouterr()
        return code, out.out, out.err

    return run


def refused(result: tuple[int, str, str], *parts: str) -> None:
    """Exit code 2, nothing on stdout, one line on stderr holding all parts and no traceback."""
    code, out, err = result
    assert code == 2, (code, out, err)
    assert out == ""
    lines = [line for line in err.splitlines() if line.strip()]
    assert len(lines) == 1, err
    for part in parts:
        assert part in lines[0], (part, lines[0])


def test_list_says_what_is_registered(call):
    code, out, _ = call("list", "--json")
    found = {(r["kind"], r["name"]) for r in json.loads(out)}
    assert code == 0
    assert {("tasks", "parity"), ("tasks", "ioi"), ("models", "mamba2"), ("models", "smollm2-135m")} <= found
    assert {("screens", "name-mover"), ("studies", "state-encoding"), ("engines", "local")} <= found
    assert all(r["note"] for r in json.loads(out))


def test_bare_command_prints_help_and_fails(call):
    code, out, err = call()
    assert code == 2
    assert "verdict" in out + err


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (("rnu",), ("rnu", "run")),
        (("list", "taks"), ("taks", "tasks", "models")),
        (("run",), ("STUDY.yaml",)),
        (("run", "x.yaml", "--wrkers", "2"), ("--wrkers", "--workers")),
        (("run", "no-such.yaml"), ("no-such.yaml",)),
        (("run", "x.yaml", "--untl", "train"), ("--untl", "--until")),
        (("train", "partiy", "lstm"), ("partiy", "parity")),
        (("train", "parity", "lsmt"), ("lsmt", "lstm")),
        (("train", "ioi", "lstm"), ("ioi", "state task")),
        (("train", "parity", "lstm", "--schedule", "curiculum"), ("curiculum", "curriculum")),
        (("train", "parity", "lstm", "--steps", "x"), ("--steps", "'x'", "integer")),
        (("train", "parity", "lstm", "--length", "2"), ("--length", "'2'", "4")),
        (("run", "x.yaml", "--workers", "0"), ("--workers", "'0'", "1")),
        (("verdict", "ioi", "m", "--n-null", "1000000"), ("--n-null", "'1000000'", "100000")),
        (("train", "parity", "mamba:cnov=false"), ("cnov", "conv")),
        (("probe", "ioi", "lstm"), ("ioi", "state task")),
        (("probe", "parity", "lsmt"), ("lsmt", "lstm")),
        (("screen", "parity", "m", "--screen", "name-mover"), ("parity", "prompt task")),
        (("screen", "ioi", "m", "--screen", "name-movre"), ("name-movre", "name-mover")),
        (("screen", "ioi", "m", "--screen", "name-mover", "--rules", "strct"), ("strct", "strict", "paper")),
        (("ablate", "ioi", "m", "--heads", "L0H1", "--mode", "men"), ("men", "mean", "zero")),
        (("ablate", "prompts:nowhere.jsonl", "m", "--heads", "L0H1"), ("nowhere.jsonl",)),
        (("verdict", "ioi", "smolm2-135m"), ("smolm2-135m", "smollm2-135m")),
        (("status", "nowhere"), ("nowhere",)),
        (("report", "nowhere"), ("nowhere",)),
        (("claims", "nowhere"), ("nowhere",)),
        (("check", "lstmm"), ("lstmm", "lstm")),
        (("init", "a/b"), ("a/b",)),
        (("init", ""), ("''",)),
        (("init", ".."), ("..",)),
        (("train", "parity", "gru", "--seed", "-1"), ("--seed", "-1")),
        (("train", "parity", "gru", "--seed", "99999999999999999999"), ("--seed",)),
        (("train", "parity", "gru", "--out", "/proc/nowhere/x"), ("/proc/nowhere/x",)),
        (("init", "x", "--study", "state-encodin"), ("state-encodin", "state-encoding")),
    ],
)
def test_bad_words_get_one_line(call, words, parts, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    refused(call(*words), *parts)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_no_model(call, tmp_path):
    (tmp_path / "notes.txt").write_text("hello")
    refused(call("ablate", "ioi", tmp_path, "--heads", "L0H1"), str(tmp_path))


def test_no_network_and_no_cached_model(call):
    refused(call("ablate", "ioi", "nobody/no-such-model", "--heads", "L0H1"), "nobody/no-such-model")


def test_nan_weights_are_refused(call, small_lm, tmp_path):
    import shutil

    from safetensors.torch import load_file, save_file

    folder = tmp_path / "nan"
    shutil.copytree(small_lm, folder)
    weights = load_file(folder / "model.safetensors")
    name = sorted(weights)[0]
    weights[name][0] = float("nan")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    refused(call("ablate", "ioi", folder, "--heads", "L0H1"), "NaN")


@pytest.mark.parametrize("heads", ["L0H9", "L7H0", "L0.H1", "", "L0H1,L0H1"])
def test_heads_the_model_does_not_have(call, small_lm, heads):
    """Case 23: an error that names the model's head count, or how heads are written."""
    refused(call("ablate", "ioi", small_lm, "--heads", heads))


def test_case_23_names_the_head_count(call, small_lm):
    refused(call("ablate", "ioi", small_lm, "--heads", "L0H12"), "L0H12", "8 heads")


def test_case_24_groups_of_another_model(call, small_lm, tmp_path):
    file = tmp_path / "groups.json"
    file.write_text(json.dumps({"_model": "EleutherAI/pythia-1b", "mine": ["L0H1"]}))
    refused(call("verdict", "ioi", small_lm, "--groups", file), "EleutherAI/pythia-1b", str(small_lm))


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "empty"),
        ("[1, 2]\n", ":1"),
        ('{"prompt": "Anna lives in"}\n', "answer"),
        ('{"prompt": "Anna lives in", "answer": "London Paris"}\n', "London Paris"),
        ('{"prompt": "Anna lives in", "answr": "London"}\n', "answr"),
        ('{"prompt": \n', ":1"),
    ],
)
def test_bad_prompt_files(call, small_lm, tmp_path, text, part):
    file = tmp_path / "mine.jsonl"
    file.write_text(text)
    refused(call("ablate", f"prompts:{file}", small_lm, "--heads", "L0H1"), "mine.jsonl", part)


def test_screen_json(call, small_lm):
    code, out, _ = call("screen", "ioi", small_lm, "--screen", "name-mover", "--n", "24", "--json")
    rows = json.loads(out)
    assert code == 0
    assert len(rows) == 3 * 8
    assert {"layer", "head", "score", "selected"} <= set(rows[0])
    assert {(r["layer"], r["head"]) for r in rows} == {(x, h) for x in range(3) for h in range(8)}


def test_ablate_json_is_a_paired_difference(call, small_lm):
    code, out, _ = call(
        "ablate", "ioi", small_lm, "--heads", "L0H1,L2H3", "--mode", "zero", "--n", "24", "--json"
    )
    found = json.loads(out)
    assert code == 0
    assert found["n"] == 12
    assert (found["bos"], found["n_bos"], found["dropped"]) == ("none", 0, [])
    for metric in ("top1", "logit_diff"):
        assert found["ablated"][metric] - found["baseline"][metric] == pytest.approx(
            found["effect"][metric], abs=1e-9
        )
    assert found["effect"]["logit_diff"] != 0


def test_verdict_json_on_a_model_that_cannot_do_the_task(call, small_lm, tmp_path):
    """A random model fails the floor: no group may get a causal verdict by accident."""
    file = tmp_path / "groups.json"
    file.write_text(json.dumps({"a": ["L0H1", "L1H2"], "b": {"heads": ["L2H3"], "target": "IO"}}))
    code, out, _ = call("verdict", "ioi", small_lm, "--groups", file, "--n-null", "19", "--n", "32", "--json")
    rows = json.loads(out)
    assert code == 0
    assert {r["group"] for r in rows} == {"a", "b"}
    needed = {
        "group",
        "heads",
        "metric",
        "effect",
        "null_mean",
        "null_sd",
        "n_null",
        "p",
        "p_holm",
        "verdict",
        "marks",
    }
    assert all(needed <= set(r) for r in rows)
    assert all(r["heads"] == (["L0H1", "L1H2"] if r["group"] == "a" else ["L2H3"]) for r in rows)
    assert not {r["combined"] for r in rows} & {"primary", "secondary", "co-primary", "interferer"}


def test_check_passes_on_a_small_model(call, small_lm):
    code, out, _ = call("check", small_lm, "--json")
    rows = json.loads(out)
    assert code == 0
    assert {r["result"] for r in rows} <= {"ok", "unsupported"}
    assert any("noise" in r["test"] for r in rows)


def test_init_writes_a_study_that_plans(call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for study in ("state-encoding", "pattern-selectivity"):
        code, out, _ = call("init", study, "--study", study, "--json")
        assert code == 0
        file = json.loads(out)["file"]
        code, out, _ = call("plan", file, "--json")
        assert code == 0
        assert len(json.loads(out)) >= 3
        refused(call("init", study, "--study", study), "exists already")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["pattern-selectivity.yaml", "state-encoding.yaml"]


def test_run_until_names_the_stages(call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text("study: state-encoding\ngrid:\n- {tasks: [parity], models: [gru]}\n")
    refused(
        call("run", "mine.yaml", "--until", "trian"), "trian", "train, probe, erase", "did you mean 'train'"
    )
    assert [p.name for p in tmp_path.iterdir()] == ["mine.yaml"]


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("training.length=2", "training.length -> 2 -> must be greater than or equal to 8"),
        ("seeds=[]", "seeds -> [] -> must have at least 1 item"),
        ("grid=3", "grid -> 3 -> must be a list"),
    ],
)
def test_a_study_files_mistakes_name_the_value(call, tmp_path, monkeypatch, override, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text("study: state-encoding\ngrid:\n- {tasks: [parity], models: [gru]}\n")
    refused(call("plan", "mine.yaml", "--set", override), override, said)


@pytest.mark.parametrize(
    ("length", "reached", "said"),
    [
        (40, 40, "learned to length 40"),
        (40, 8, "learned to length 8"),
        (40, 7, "not learned (under 8)"),
        (40, 0, "not learned (under 8)"),
        (6, 6, "learned to length 6"),
        (6, 4, "not learned (under 8)"),
    ],
)
def test_train_says_whether_it_learned(call, monkeypatch, length, reached, said):
    """MEASURES 1.2: under 8 nothing was learned, unless no more was trained."""
    from types import SimpleNamespace

    from causegrid import verbs

    behaviour = pd.DataFrame([{"length": length, "metric": "token", "accuracy": 0.5}])
    ended = SimpleNamespace(steps=3, solved=False, learned_length=reached, behaviour=behaviour)
    monkeypatch.setattr(verbs, "fit", lambda *args, **kwargs: ended)
    code, out, _ = call("train", "parity", "gru", "--length", length)
    assert (code, out.splitlines()[-1]) == (0, f"3 steps; {said}")


def test_status_says_time_as_a_person_does_and_seconds_in_json(call, monkeypatch):
    import causegrid.runs

    table = pd.DataFrame([{"cell": "a1", "status": "done", "seconds": 793.48}])
    monkeypatch.setattr(causegrid.runs, "status", lambda folder: table.copy())
    assert call("status", "there")[1].splitlines() == ["cell  status  time", "a1    done    13 min"]
    assert json.loads(call("status", "there", "--json")[1])[0]["seconds"] == 793.48


def test_train_saves_a_model_that_probe_reads(call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    out_folder = Path("trained")  # not a registered name: those come first
    code, out, _ = call(
        "train", "parity", "gru", "--steps", "30", "--length", "8", "--out", out_folder, "--json"
    )
    found = json.loads(out)
    assert code == 0
    assert found["steps"] <= 30
    assert {r["metric"] for r in found["behaviour"]} == {"token", "strict", "last"}
    code, out, _ = call("probe", "parity", out_folder, "--length", "8", "--json")
    rows = json.loads(out)
    assert code == 0
    assert [r["layer"] for r in rows] == [-1, 0, 1, 2, 3]
    assert {"layer", "label", "accuracy", "low", "high", "baselines"} <= set(rows[0])
    assert {"majority", "position", "token", "untrained"} <= set(rows[0]["baselines"])
    header = call("probe", "parity", out_folder, "--length", "8")[1].splitlines()[0].split()
    assert {"layer", "accuracy", "majority", "token_pair", "control", "selectivity"} <= set(header)
    assert not {"n_train", "baseline_majority", "shuffled_low"} & set(header)
    refused(call("train", "parity", "gru", "--out", out_folder), "exists already")
    (out_folder / "cell.json").write_text("{}")
    (out_folder / "model.safetensors").unlink()
    refused(call("probe", "parity", out_folder), "left out", "delete this folder", "causegrid run")


def test_dropped_words_are_named_in_the_output(call, small_lm, tmp_path):
    """Case 10: a word the tokenizer does not know is left out, and said so."""
    from transformers import AutoTokenizer

    from causegrid.tasks.words import NAMES

    folder = tmp_path / "fewer"
    import shutil

    shutil.copytree(small_lm, folder)
    file = folder / "tokenizer.json"
    content = json.loads(file.read_text())
    lost = NAMES[3]
    content["model"]["vocab"]["zzz-" + lost] = content["model"]["vocab"].pop(lost)
    file.write_text(json.dumps(content))
    assert AutoTokenizer.from_pretrained(folder).unk_token_id is not None
    code, out, err = call("ablate", "ioi", folder, "--heads", "L0H1", "--n", "12", "--json")
    assert code == 0
    assert any(lost in line for line in json.loads(out)["dropped"])
    assert lost in err


def test_interrupting_says_how_to_go_on(call, monkeypatch):
    import causegrid.verbs

    def stop(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(causegrid.verbs, "train", stop)
    code, _, err = call("train", "parity", "gru")
    assert code == 130
    assert "interrupted" in err


def test_verdict_table_for_people_has_reasons_below(call, small_lm, tmp_path):
    file = tmp_path / "groups.json"
    file.write_text(json.dumps({"a": ["L0H1", "L1H2"]}))
    code, out, err = call("verdict", "ioi", small_lm, "--groups", file, "--n-null", "5", "--n", "32")
    assert code == 0
    assert "a, logit_diff:" in out
    assert "BOS none" in err


def test_a_training_that_diverges_is_one_line_and_exit_code_1(monkeypatch, capsys):
    from causegrid import verbs
    from causegrid.models.training import TrainingDiverged

    def diverge(*args, **kwargs):
        raise TrainingDiverged(7, float("nan"), 5, None)

    monkeypatch.setattr(verbs, "fit", diverge)
    assert main(["train", "parity", "gru", "--steps", "9"]) == 1
    said = capsys.readouterr().err.strip().splitlines()
    assert said[-1].startswith("causegrid: the loss became nan at step 7") and "Traceback" not in " ".join(
        said
    )
