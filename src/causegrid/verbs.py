"""The small verbs of the command line as functions: one measure, one model, one task.

They do what the studies' stages do, on the same prompts and with the same rules, for a user who wants one
number now.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd

from causegrid.errors import InputError, unknown
from causegrid.evidence import task_floor
from causegrid.evidence.family import COMPETING
from causegrid.evidence.verdicts import RULES
from causegrid.interventions.groups import read_groups
from causegrid.interventions.heads import Ablator
from causegrid.interventions.narrowed import narrowed
from causegrid.interventions.reference import MODES, Mode
from causegrid.models import model, save
from causegrid.models.heads import require_attention
from causegrid.models.record import Model
from causegrid.models.training import train as fit
from causegrid.signatures import patterns
from causegrid.signatures.attention import attention
from causegrid.signatures.profile import probe_profile
from causegrid.signatures.screens.base import screens
from causegrid.studies.names import require_family, require_language_model
from causegrid.studies.pattern.conditions import GROUP, Ablated, kinds_of, with_roles
from causegrid.studies.pattern.head_groups import HeadGroup, default_names, disjoint, pattern_scores
from causegrid.studies.pattern.matched_null import matched_null, no_draws
from causegrid.studies.pattern.prompt_sets import PromptParts, prompt_parts, subset
from causegrid.studies.pattern.refusals import nothing_picked
from causegrid.studies.pattern.ruled import foreign_text, verdicts
from causegrid.studies.pattern_selectivity import Null
from causegrid.studies.state.stages import LEARNED_MINIMUM
from causegrid.tasks import PromptSet, PromptTask, StateTask, task

Progress = Callable[[int, int, str], None]
SEQUENCES, LENGTH = 256, 128  # synthetic batch of the verbs: enough for every threshold, seconds on a laptop
NULL = Null()  # the study's own: on how many prompts, how many draws a group
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

    `learned` beside it says the learned length in words (MEASURES 1.2).
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
        "learned": _learned(result.learned_length, length),
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
    loaded = _language_model(model_name)
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
    loaded = _language_model(model_name)
    parts = prompt_parts(loaded, chosen, n=n, bos=bos, seed=seed, rules="strict", modes=[chosen_mode])
    ablator = Ablator(loaded, parts.measured, reference=parts.reference, seed=seed)
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
    """Judge groups of heads (a file's, or those the task's screens pick), as a cell of the pattern study does.

    Of `n` prompts `strict` chooses heads on one half and measures on the other; `paper` chooses and measures on
    all of them, with others drawn beside as the reference.  The null is drawn on 64 of the measured ones.  `mode`
    None: mean under strict rules, zero under the paper's.
    Columns of the study's table `verdicts`, its rows of these rules, and `null_note` (why a group has no draws, or
    stopped early).
    """
    _rules(rules)
    chosen_mode = _mode(mode or MODE_OF[rules])
    modes: list[Mode] = [chosen_mode, *(m for m in ("mean", "zero") if m != chosen_mode)]
    chosen = prompt_task(task_name)
    loaded = _language_model(model_name)
    listed = _given(groups, loaded, force) if groups is not None else None
    parts = prompt_parts(loaded, chosen, n=n, bos=bos, seed=seed, rules=rules, modes=modes)
    ablator = Ablator(loaded, parts.measured, reference=parts.reference, seed=seed)
    if listed is None:
        listed = _picked(loaded, chosen, parts, rules=rules, seed=seed)
    heads = {g.name: list(g.heads) for g in listed}
    scored = pattern_scores(loaded, listed, attention(loaded, parts.chosen), length=LENGTH, seed=seed)
    kinds = kinds_of(heads, loaded.n_heads)
    alone = [Ablated(name=g, heads=tuple(h), role=GROUP, of=(g,)) for g, h in heads.items()]
    effects = pd.concat([ablator.table(heads, m) for m in modes], ignore_index=True)
    effects = with_roles(effects, alone, kinds)
    own = effects[effects["mode"] == chosen_mode]
    floor = task_floor(own, mode=chosen_mode)
    pick = subset(len(parts.measured), NULL.n_prompts, seed)
    if floor:  # no group can be judged, so no draw is worth its forward passes
        null, notes = no_draws(heads, floor)
    else:
        planner = narrowed(ablator.planner, pick)
        null, notes = matched_null(
            Ablator(loaded, planner.prompts, reference=parts.reference, planner=planner, seed=seed),
            heads,
            own,
            competing=[g for g in heads if kinds[g] == COMPETING],
            prompts=pick,
            mode=chosen_mode,
            n=n_null,
            per_group=NULL.per_group,
            own=rules == "strict",
            seed=seed,
            progress=progress,
        )
    text = ablator.text_loss(heads, chosen_mode) if chosen_mode != "resample" else pd.DataFrame()
    foreign = foreign_text(text, loaded.n_tokens)
    found = verdicts(
        effects,
        null,
        notes,
        rules=rules,
        mode=chosen_mode,
        floor=floor,
        singles=ablator.table({h: [h] for group in heads.values() for h in group}, chosen_mode),
        groups=scored,
        text=text if len(text) and not foreign else None,
        heads_per_layer=loaded.n_heads,
    )
    how = f"chosen on {len(parts.chosen)} prompts, measured on {len(parts.measured)}"
    if parts.same and parts.reference is not None:
        how = f"chosen and measured on {len(parts.measured)} prompts, reference {len(parts.reference)} others"
    _tell(tell, parts.measured, how + ("" if floor else f", null on {len(pick)}"))
    if foreign and tell is not None:
        tell(foreign)
    found = found[found["leads"]].reset_index(drop=True)
    why = dict(zip(notes["group"], notes["why"], strict=True))
    found["null_note"] = [why.get(group, "") for group in found["group"]]
    return found


def _learned(reached: int, trained: int) -> str:
    if reached >= min(trained, LEARNED_MINIMUM):
        return f"learned to length {reached}"
    return f"not learned (under {LEARNED_MINIMUM})"


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


def _language_model(name: str) -> Model:
    """A model with attention heads by name.  Raises InputError, with what can be run instead, for any other."""
    if not Path(name).expanduser().is_file():  # loading says what to give instead
        require_language_model(name)
    loaded = model(name)
    require_attention(loaded)
    return loaded


def _picked(
    loaded: Model, chosen: PromptTask, parts: PromptParts, *, rules: str, seed: int
) -> list[HeadGroup]:
    """The groups of the task's own screens and the generic ones that picked a head."""
    names = default_names(list(parts.chosen.positions))
    table = patterns.screens(
        loaded,
        parts.chosen,
        names,
        rules=rules,  # type: ignore[arg-type]
        n_sequences=SEQUENCES,
        sequence_length=LENGTH,
        seed=seed,
    )
    listed = [g for g in disjoint(table, names) if g.heads]
    if not listed:
        raise InputError(
            f"{nothing_picked(chosen.name, loaded.name, names, parts.chosen.positions)}; give --groups FILE.json"
        )
    return listed


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
