"""The stages of one pattern-selectivity cell: prompts, signatures, effects, null, verdicts.

Heads are chosen on the first half of the prompts; effects are measured on the second, and the first half is
the reference of mean ablation.  What the stages share in memory can always be rebuilt from the cell's config
and its tables, so a cell goes on at its first unfinished stage in a new process.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from causegrid.errors import InputError
from causegrid.evidence import task_floor, verdict
from causegrid.interventions.heads import Ablator
from causegrid.interventions.metrics import METRICS
from causegrid.models import fingerprint, model
from causegrid.models.record import Model
from causegrid.signatures.attention import attention
from causegrid.signatures.generic import generic_classes
from causegrid.signatures.patterns import fitting, generic_table, prompts_of, score_screen
from causegrid.signatures.screens.base import GenericScreen, screens
from causegrid.signatures.spectrum import spectrum
from causegrid.studies.base import CellContext
from causegrid.studies.pattern.head_groups import default_names, disjoint, pattern_scores
from causegrid.studies.pattern.matched_null import matched_null, no_draws
from causegrid.tasks import PromptSet, task

if TYPE_CHECKING:
    from causegrid.studies.pattern_selectivity import PatternCell

UNION = "all groups"


class PatternStages:
    """The stages of one cell."""

    def __init__(self, cell: PatternCell) -> None:
        self.cell = cell

    @cached_property
    def model(self) -> Model:
        """The cell's model, loaded once a process."""
        return model(self.cell.model)

    @cached_property
    def halves(self) -> tuple[PromptSet, PromptSet]:
        """(prompts on which heads are chosen, prompts on which effects are measured)."""
        c = self.cell
        return prompts_of(self.model, task(c.task), n=c.n_prompts, seed=c.seed, bos=c.bos).halves()

    @cached_property
    def ablator(self) -> Ablator:
        """Ablations on the evaluated half; the other half is the reference."""
        chosen, evaluated = self.halves
        return Ablator(self.model, evaluated, reference=chosen, seed=self.cell.seed)

    def prompts(self, context: CellContext) -> None:
        """Draw the prompts, run the untouched model on the evaluated half, and say what was dropped."""
        chosen, evaluated = self.halves
        clean = self.ablator.planner.clean  # (n, 5)
        words = self.model.tokenizer
        tables = []
        for half, part in (("chosen on", chosen), ("measured on", evaluated)):
            values = clean if half == "measured on" else np.full((len(part), len(METRICS)), np.nan)
            tables.append(
                pd.DataFrame(
                    {
                        "half": half,
                        "text": list(part.texts),
                        "variant": list(part.variant),
                        "n_tokens": part.lengths,
                        "answer": [_words(words, ids) for ids in part.answers],
                        "foil": [_words(words, ids) for ids in part.foils],
                        **{name: values[:, i] for i, name in enumerate(METRICS)},
                    }
                )
            )
        noise = dict(zip(METRICS, self.ablator.planner.noise_floor, strict=True))
        context.save_table("prompts", pd.concat(tables, ignore_index=True))
        context.save_table("dropped", pd.DataFrame({"dropped": list(evaluated.dropped)}, dtype=object))
        context.save_table(
            "noise_floor", pd.DataFrame({"metric": list(noise), "noise": [float(v) for v in noise.values()]})
        )
        context.note(
            n_chosen_on=len(chosen),
            n_measured_on=len(evaluated),
            bos=evaluated.bos,
            n_bos=evaluated.n_bos,
            n_dropped=len(evaluated.dropped),
            n_layers=self.model.n_layers,
            n_heads=self.model.n_heads,
            family=self.model.family,
            n_params=self.model.n_params,
            fingerprint=fingerprint(self.model),
        )

    def signatures(self, context: CellContext) -> None:
        """Participation ratio, generic classes and task screens; then the groups that compete."""
        c = self.cell
        chosen, _ = self.halves
        names = list(c.groups or default_names(list(chosen.positions)))
        context.progress(0, 4, "signatures")
        context.save_table("spectrum", spectrum(self.model, chosen, n_subsamples=c.n_subsamples, seed=c.seed))
        context.progress(1, 4, "signatures")
        classes = generic_classes(
            self.model, n=c.generic.n, length=c.generic.length, seed=c.seed, rules=c.rules
        )
        context.save_table("classes", classes)
        context.progress(2, 4, "signatures")
        rows = attention(self.model, chosen)
        generic = [n for n in names if isinstance(screens.get(n), GenericScreen)]
        wanted = list(dict.fromkeys([*fitting(chosen.positions), *(n for n in names if n not in generic)]))
        scored = [score_screen(rows, name, rules=c.rules) for name in wanted]
        scored += [generic_table(classes, name) for name in generic]
        table = pd.concat(scored, ignore_index=True)
        context.save_table("screens", table)
        context.progress(3, 4, "signatures")
        groups = pattern_scores(
            self.model, disjoint(table, names), rows, length=c.generic.length, seed=c.seed
        )
        context.save_table("groups", groups)
        context.progress(4, 4, "signatures")

    def effects(self, context: CellContext) -> None:
        """Every group, their union and single heads, ablated on prompts the screens did not see."""
        c = self.cell
        groups = competing(context.table("groups"))
        if not groups:
            raise InputError(
                f"no screen picked a head on task {c.task!r} with model {c.model!r}: there is nothing to ablate; "
                "name other groups in the study, or use rules: paper"
            )
        together = [h for heads in groups.values() for h in heads]
        listed = {**groups, UNION: together} if len(groups) > 1 else dict(groups)
        members = together if c.singles == "groups" else self._all_heads()
        jobs = [(mode, listed) for mode in c.modes]
        singles = {h: [h] for h in members}
        total = sum(len(g) for _, g in jobs) + len(singles)
        done = 0
        tables = []
        for mode, wanted in jobs:
            tables.append(self.ablator.table(wanted, mode))
            done += len(wanted)
            context.progress(done, total, "ablating groups")
        alone = self.ablator.table(
            singles, c.modes[0], progress=lambda n, _: context.progress(done + n, total, "ablating heads")
        )
        context.save_table("effects", pd.concat(tables, ignore_index=True))
        context.save_table("singles", alone)
        texts = [self.ablator.text_loss(listed, mode) for mode in c.modes if mode != "resample"]
        context.save_table("text", pd.concat(texts, ignore_index=True) if texts else pd.DataFrame())

    def null(self, context: CellContext) -> None:
        """Matched-random draws of every competing group, on a seeded subset of the evaluated prompts."""
        c = self.cell
        groups = competing(context.table("groups"))
        effects = context.table("effects")
        failed = task_floor(effects, mode=c.modes[0]) if c.rules == "strict" else ""
        if failed:  # no group can be judged, so no draw is worth its forward passes
            empty, notes = no_draws(groups, failed)
            context.save_table("nulls", empty)
            context.save_table("null_notes", notes)
            return
        chosen, evaluated = self.halves
        pick = subset(len(evaluated), c.matched_null.n_prompts, c.seed)
        ablator = Ablator(self.model, evaluated.subset(pick), reference=chosen, seed=c.seed)
        table, notes = matched_null(
            ablator,
            groups,
            effects[effects["mode"] == c.modes[0]],
            prompts=pick,
            mode=c.modes[0],
            n=c.matched_null.n,
            per_group=c.matched_null.per_group,
            early_stop=c.matched_null.early_stop,
            seed=c.seed,
            progress=context.progress,
        )
        context.save_table("nulls", table)
        context.save_table("null_notes", notes)

    def verdicts(self, context: CellContext) -> None:
        """What each group is, with the reasons."""
        c = self.cell
        effects = context.table("effects")
        text = context.table("text")
        patterns = context.table("groups")
        patterns = patterns[patterns["pattern"].notna() & patterns["group"].isin(effects["group"])]
        table = verdict(
            effects,
            context.table("nulls"),
            rules=c.rules,
            mode=c.modes[0],
            singles=context.table("singles"),
            patterns={
                str(r["group"]): {"score": r["pattern_score"], "p99": r["pattern_p99"]}
                for r in patterns.to_dict("records")
            },
            text=text if len(text) else None,
            heads_per_layer=self.model.n_heads,
        )
        context.save_table("verdicts", table)

    def _all_heads(self) -> list[str]:
        return [f"L{x}H{h}" for x in range(self.model.n_layers) for h in range(self.model.n_heads)]


def competing(groups: pd.DataFrame) -> dict[str, list[str]]:
    """The groups of a cell's table that have heads: name -> heads."""
    return {
        str(name): [str(h) for h in heads]
        for name, heads in zip(groups["group"], groups["heads"], strict=True)
        if len(heads)
    }


def subset(n: int, most: int, seed: int) -> list[int]:
    """A seeded subset of `n` prompts, at most `most`, ascending."""
    if n <= most:
        return list(range(n))
    return sorted(int(i) for i in np.random.default_rng([seed, n, most]).permutation(n)[:most])


def _words(tokenizer: Any, ids: Any) -> str:
    """Token ids as text, at most a few of them."""
    shown = [tokenizer.decode([int(i)]) for i in list(ids)[:4]]
    return " | ".join(shown) + (f" | ... ({len(ids)})" if len(ids) > 4 else "")
