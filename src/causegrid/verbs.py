"""The small verbs of the command line as functions: one measure, one model, one task.

They do what the studies' stages do, on the same prompts and with the same rules, for a user who wants one
number now.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd

from causegrid import headnames
from causegrid.errors import InputError, unknown
from causegrid.evidence import verdict as judge
from causegrid.evidence.family import family
from causegrid.evidence.verdicts import RULES
from causegrid.interventions.groups import read_groups
from causegrid.interventions.heads import Ablator
from causegrid.interventions.reference import MODES, Mode
from causegrid.models import model, save
from causegrid.models.record import Model
from causegrid.models.training import train as fit
from causegrid.signatures import patterns
from causegrid.signatures.attention import attention
from causegrid.signatures.profile import probe_profile
from causegrid.signatures.screens.base import screens
from causegrid.studies.names import require_family
from causegrid.studies.pattern.head_groups import HeadGroup, default_names, disjoint, pattern_scores
from causegrid.studies.pattern.matched_null import matched_null
from causegrid.tasks import PromptSet, PromptTask, StateTask, task

Progress = Callable[[int, int, str], None]
SEQUENCES, LENGTH = 256, 128  # synthetic batch of the verbs: enough for every threshold, seconds on a laptop
SHOWN = ("top1", "logit_diff")
VERDICT_SHOWN = [
    *("group", "kind", "metric", "n", "effect", "low", "high"),
    *("null_mean", "null_sd", "n_null", "p", "p_holm", "verdict"),
]
Tell = Callable[[str], None]
MODE_OF = {"strict": "mean", "paper": "zero"}  # the deciding mode of each rule set (MEASURES 3.1)


def train(
    task_name: str,
    family: str,
    *,
    steps: int,
    length: int,
    schedule: str,
    seed: int,
    out: Path | None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Train a family on a state task -> {"behaviour": rows, "learned_length", "steps", "solved", "n_params"}.

    Raises InputError before training when `out` exists and is not an empty folder.
    """
    if out is not None and out.exists() and (out.is_file() or any(out.iterdir())):
        raise InputError(f"{str(out)!r} exists already: name a new folder for the trained model")
    require_family(family)
    state_task(task_name)
    if out is not None:
        try:
            out.mkdir(
                parents=True, exist_ok=True
            )  # before training: a path that cannot be written costs no model
        except OSError as error:
            raise InputError(
                f"cannot write a model to {str(out)!r}: {(error.strerror or str(error)).lower()}"
            ) from None
    made = model(family, task=state_task(task_name), seed=seed)
    lengths = tuple(sorted({length, *(n for n in (40, 60, 80, 100, 120) if n >= length)}))

    def tell(step: int, total: int, facts: dict[str, float]) -> None:
        if progress is not None:
            progress(step, total, f"training {family} on {task_name}")

    result = fit(
        made,
        state_task(task_name),
        steps=steps,
        length=length,
        schedule=schedule,  # type: ignore[arg-type]
        seed=seed,
        eval_lengths=lengths,
        progress=tell,
    )
    if out is not None:
        save(made, out)
    return {
        "task": task_name,
        "family": family,
        "n_params": made.n_params,
        "steps": result.steps,
        "solved": result.solved,
        "learned_length": result.learned_length,
        "behaviour": result.behaviour.to_dict("records"),
        "folder": str(out) if out else None,
    }


def probe(task_name: str, model_name: str, *, length: int, seed: int) -> pd.DataFrame:
    """The probe profile of a model on a state task: see `signatures.probe_profile`."""
    chosen = state_task(task_name)
    return probe_profile(model(model_name, task=chosen, seed=seed), chosen, length=length, seed=seed)


def screen(
    task_name: str,
    model_name: str,
    name: str,
    *,
    rules: str,
    n: int,
    bos: str,
    seed: int,
    tell: Tell | None = None,
) -> pd.DataFrame:
    """One screen over all heads: see `signatures.screen`."""
    _rules(rules)
    screens.get(name)
    chosen = prompt_task(task_name)
    loaded = model(model_name)
    prompts = patterns.prompts_of(loaded, chosen, n=n, seed=seed, bos=bos)
    half = prompts.halves()[0] if rules == "strict" and len(prompts) > 1 else prompts
    table = patterns.screen(
        loaded,
        half,
        name,
        rules=rules,  # type: ignore[arg-type]
        seed=seed,
        n_sequences=SEQUENCES,
        sequence_length=LENGTH,
    )
    _tell(tell, half, f"scored on {len(half)} of {len(prompts)} prompts")
    return table


def ablate(
    task_name: str,
    model_name: str,
    heads: str,
    *,
    mode: str,
    n: int,
    bos: str,
    seed: int,
    tell: Tell | None = None,
) -> dict[str, Any]:
    """Ablate one group -> {"n", "baseline", "ablated", "effect", "low", "high", ...} by metric, and the table."""
    chosen_mode = _mode(mode)
    chosen = prompt_task(task_name)
    ablator = _ablator(model(model_name), chosen, n=n, bos=bos, seed=seed)
    table = ablator.table({"heads": heads}, chosen_mode)
    by_metric = {str(r["metric"]): r for r in table.to_dict("records")}
    shown = [m for m in SHOWN if m in by_metric]
    fields = ("baseline", "ablated", "effect", "low", "high")
    columns = ["metric", "n", *fields, "noise", "flag"]
    _tell(tell, ablator.prompts, f"measured on {len(ablator.prompts)} prompts")
    return {
        "n": len(ablator.prompts),
        **{f: {m: (by_metric[m][f] if m in by_metric else None) for m in SHOWN} for f in fields},
        "task": task_name,
        "model": model_name,
        "heads": list(table["heads"].iloc[0]),
        "mode": mode,
        "bos": ablator.prompts.bos,
        "n_bos": ablator.prompts.n_bos,
        "dropped": list(ablator.prompts.dropped),
        "flags": {m: by_metric[m]["flag"] for m in shown if by_metric[m]["flag"]},
        "table": table[columns].to_dict("records"),
    }


def verdict(
    task_name: str,
    model_name: str,
    *,
    groups: Path | None,
    n_null: int,
    mode: str | None,
    rules: str,
    n: int,
    bos: str,
    seed: int,
    force: bool = False,
    progress: Progress | None = None,
    tell: Tell | None = None,
) -> pd.DataFrame:
    """Judge groups of heads (a file's, or those the task's screens pick): see `evidence.verdict`.

    Heads are chosen on the first half of the prompts and measured on the second.  `mode` None: mean under
    strict rules, zero under the paper's.
    """
    _rules(rules)
    mode = _mode(mode or MODE_OF[rules])
    chosen_mode: Mode = mode
    chosen = prompt_task(task_name)
    loaded = model(model_name)
    listed = _given(groups, loaded, force) if groups is not None else None
    first, _ = patterns.prompts_of(loaded, chosen, n=n, seed=seed, bos=bos).halves()
    ablator = _ablator(loaded, chosen, n=n, bos=bos, seed=seed)
    if listed is None:
        names = default_names(list(first.positions))
        table = patterns.screens(
            loaded,
            first,
            names,
            rules=rules,  # type: ignore[arg-type]
            n_sequences=SEQUENCES,
            sequence_length=LENGTH,
            seed=seed,
        )
        listed = [g for g in disjoint(table, names) if g.heads]
        if not listed:
            raise InputError(
                f"no screen picked a head on task {task_name!r} with model {model_name!r}; give --groups FILE.json"
            )
    heads = {g.name: list(g.heads) for g in listed}
    wanted = [m for m in MODES if m in (mode, "mean", "zero")]
    effects = pd.concat([ablator.table(heads, m) for m in wanted])
    singles = ablator.table({h: [h] for group in heads.values() for h in group}, chosen_mode)
    scores = pattern_scores(loaded, listed, attention(loaded, first), length=LENGTH, seed=seed)
    sets = {name: tuple(sorted(headnames.heads(h))) for name, h in heads.items()}
    competing = [name for name, member in family(sets, loaded.n_heads).items() if member.competes]
    null, notes = matched_null(
        ablator,
        heads,
        effects[effects["mode"] == mode],
        competing=competing,
        prompts=range(len(ablator.prompts)),
        mode=mode,
        n=n_null,
        own=rules == "strict",
        seed=seed,
        progress=progress,
    )
    found = judge(
        effects,
        null,
        rules=rules,
        mode=mode,
        singles=singles,
        patterns={
            str(r["group"]): {"score": r["pattern_score"], "p99": r["pattern_p99"]}
            for r in scores.to_dict("records")
            if r["pattern"] is not None
        },
        text=ablator.text_loss(heads, chosen_mode) if mode != "resample" else None,
        heads_per_layer=loaded.n_heads,
    )
    _tell(tell, ablator.prompts, f"chosen on {len(first)} prompts, measured on {len(ablator.prompts)}")
    why = dict(zip(notes["group"], notes["why"], strict=True))
    found["null_note"] = [why.get(group, "") for group in found["group"]]
    return found


def state_task(name: str) -> StateTask:
    """A state task by name.  Raises InputError when the task has prompts instead."""
    made = task(name)
    if not isinstance(made, StateTask):
        raise InputError(
            f"task {name!r} is made of prompts: this verb takes a state task, such as parity or s3"
        )
    return made


def prompt_task(name: str) -> PromptTask:
    """A prompt task by name.  Raises InputError when the task has states instead."""
    made = task(name)
    if not isinstance(made, PromptTask):
        raise InputError(
            f"task {name!r} has states, not prompts: this verb takes a prompt task, such as ioi or prompts:FILE.jsonl"
        )
    return made


def _ablator(loaded: Model, chosen: PromptTask, *, n: int, bos: str, seed: int) -> Ablator:
    first, second = patterns.prompts_of(loaded, chosen, n=n, seed=seed, bos=bos).halves()
    if not len(second):
        raise InputError(
            f"task {chosen.name!r} leaves no second half: {len(first)} usable prompts, and no template variant "
            "occurs twice (two of a variant are needed, one a half)"
        )
    return Ablator(loaded, second, reference=first, seed=seed)


def _tell(tell: Tell | None, prompts: PromptSet, how: str) -> None:
    """Say what the numbers stand on: how many prompts, the BOS policy, and every word or prompt left out."""
    if tell is None:
        return
    dropped = f"; dropped: {'; '.join(prompts.dropped)}" if prompts.dropped else "; nothing dropped"
    front = f"{prompts.n_bos} token in front" if prompts.n_bos else "no token in front"
    tell(f"{prompts.task}: {how}; BOS {prompts.bos} ({front}){dropped}")


def _given(file: Path, loaded: Model, force: bool) -> list[HeadGroup]:
    read = read_groups(file, loaded, force=force)
    return [HeadGroup(name=g.name, heads=g.heads, target=g.target) for g in read.values()]


def _rules(rules: str) -> None:
    if rules not in RULES:
        raise unknown("rules", rules, RULES)


def _mode(mode: str) -> Mode:
    if mode not in MODES:
        raise unknown("ablation mode", mode, MODES)
    return mode
