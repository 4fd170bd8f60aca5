"""The stages of one pattern-selectivity cell: prompts, signatures, effects, null, verdicts.

Which prompts choose and which measure is in `prompt_sets`; the measured ones pass through the untouched model
once, and every ablation, of the null too, starts from what that pass left.  What the stages share in memory can
always be rebuilt from the cell's config and its tables, so a cell goes on at its first unfinished stage in a
new process.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import pandas as pd

from causegrid.evidence import task_floor
from causegrid.interventions.heads import Ablator
from causegrid.interventions.metrics import METRICS
from causegrid.interventions.narrowed import narrowed
from causegrid.models import fingerprint
from causegrid.models.heads import require_attention
from causegrid.models.record import Model
from causegrid.signatures.attention import attention
from causegrid.signatures.generic import generic_classes
from causegrid.signatures.patterns import fitting, generic_table, score_screen
from causegrid.signatures.screens.base import GenericScreen, screens
from causegrid.signatures.spectrum import spectrum
from causegrid.studies.base import CellContext
from causegrid.studies.pattern import bos
from causegrid.studies.pattern.checkpoints import require_checkpoints, save_checkpoints
from causegrid.studies.pattern.conditions import GROUP, KEEP, conditions, kinds_of, with_roles
from causegrid.studies.pattern.head_groups import disjoint, pattern_scores
from causegrid.studies.pattern.matched_null import matched_null, no_draws
from causegrid.studies.pattern.prompt_sets import MEASURED, PromptParts, prompt_parts, prompt_rows, subset
from causegrid.studies.pattern.refusals import require_groups
from causegrid.studies.pattern.routing import save_routing
from causegrid.studies.pattern.ruled import foreign_text, verdicts
from causegrid.studies.pattern.variants import JUDGED, by_variant
from causegrid.studies.placement import placed
from causegrid.tasks import task

if TYPE_CHECKING:
    from causegrid.studies.pattern_selectivity import PatternCell

__all__ = ["PatternStages", "competing", "subset"]


class PatternStages:
    """The stages of one cell."""

    def __init__(self, cell: PatternCell) -> None:
        self.cell = cell

    @cached_property
    def model(self) -> Model:
        """The cell's model, loaded once a process."""
        loaded = placed(self.cell.model, dtype=self.cell.dtype)
        require_attention(loaded)
        return loaded

    @cached_property
    def parts(self) -> PromptParts:
        """The prompts heads are chosen on, those they are measured on, and the reference."""
        c = self.cell
        return prompt_parts(
            self.model, task(c.task), n=c.n_prompts, seed=c.seed, bos=c.bos, rules=c.rules, modes=c.modes
        )

    @cached_property
    def ablator(self) -> Ablator:
        """Ablations on the measured prompts."""
        return Ablator(self.model, self.parts.measured, reference=self.parts.reference, seed=self.cell.seed)

    def prompts(self, context: CellContext) -> None:
        """Draw the prompts, run the untouched model on the measured ones, and say what was dropped."""
        require_checkpoints(self.model, self.cell.model, self.cell.checkpoints)
        parts, planner = self.parts, self.ablator.planner
        measured = parts.measured
        noise = dict(zip(METRICS, planner.noise_floor, strict=True))
        context.save_table("prompts", prompt_rows(parts, planner.clean, self.model.tokenizer))
        context.save_table("dropped", pd.DataFrame({"dropped": list(measured.dropped)}, dtype=object))
        context.save_table(
            "noise_floor", pd.DataFrame({"metric": list(noise), "noise": [float(v) for v in noise.values()]})
        )
        context.note(
            n_chosen_on=len(parts.chosen),
            n_measured_on=len(measured),
            n_reference=0 if parts.reference is None else len(parts.reference),
            chosen_on_measured=parts.same,
            bos=measured.bos,
            n_bos=measured.n_bos,
            n_dropped=len(measured.dropped),
            n_layers=self.model.n_layers,
            n_heads=self.model.n_heads,
            family=self.model.family,
            n_params=self.model.n_params,
            fingerprint=fingerprint(self.model),
        )

    def signatures(self, context: CellContext) -> None:
        """Participation ratio, generic classes and task screens; then the groups that compete."""
        c = self.cell
        chosen = self.parts.chosen
        names = list(c.groups)
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
        context.save_table("picked_again", bos.picked_again(rows, competing(groups), classes, rules=c.rules))
        context.progress(4, 4, "signatures")

    def effects(self, context: CellContext) -> None:
        """Every group, what describes it, and single heads, ablated on the measured prompts."""
        c = self.cell
        groups = competing(context.table("groups"))
        require_groups(
            groups, c.task, c.model, tried=c.groups, positions=self.parts.chosen.positions, rules=c.rules
        )
        listed = conditions(
            self.model, groups, unions=c.unions, picked_again=competing(context.table("picked_again"))
        )
        members = self._all_heads() if c.singles == "all" else [h for heads in groups.values() for h in heads]
        singles = {h: [h] for h in members}
        total = len(c.modes) * len(listed) + len(singles)
        done = 0
        tables = []
        for mode in c.modes:
            tables.append(self.ablator.table({a.name: a.heads for a in listed}, mode))
            done += len(listed)
            context.progress(done, total, "ablating groups")
        kinds = kinds_of(groups, self.model.n_heads)
        effects = with_roles(pd.concat(tables, ignore_index=True), listed, kinds)
        alone = self.ablator.table(
            singles, c.modes[0], progress=lambda n, _: context.progress(done + n, total, "ablating heads")
        )
        context.save_table("effects", effects)
        context.save_table("singles", alone)
        prompts = context.table("prompts")
        variants = list(prompts.loc[prompts["half"] == MEASURED, "variant"])
        context.save_table("by_variant", by_variant(effects, variants))
        kept = {
            a.name: a.heads for a in listed if a.role != KEEP
        }  # without most heads no text is left to break
        texts = [self.ablator.text_loss(kept, mode) for mode in c.modes if mode != "resample"]
        context.save_table("text", pd.concat(texts, ignore_index=True) if texts else pd.DataFrame())
        context.note(floor=task_floor(_groups_alone(effects), mode=c.modes[0]))

    def null(self, context: CellContext) -> None:
        """Matched-random draws of every competing group, on a seeded subset of the measured prompts."""
        c = self.cell
        groups = competing(context.table("groups"))
        effects = _groups_alone(context.table("effects"))
        floor = self._floor(effects)
        if floor:  # no group can be judged, so no draw is worth its forward passes
            empty, notes = no_draws(groups, floor)
            context.save_table("nulls", empty)
            context.save_table("null_notes", notes)
            return
        pick = subset(len(self.parts.measured), c.matched_null.n_prompts, c.seed)
        planner = narrowed(self.ablator.planner, pick)
        ablator = Ablator(
            self.model, planner.prompts, reference=self.parts.reference, planner=planner, seed=c.seed
        )
        kinds = kinds_of(groups, self.model.n_heads)
        table, notes = matched_null(
            ablator,
            groups,
            effects[effects["mode"] == c.modes[0]],
            competing=[g for g in groups if kinds[g] == "competing"],
            prompts=pick,
            mode=c.modes[0],
            n=c.matched_null.n,
            per_group=c.matched_null.per_group,
            early_stop=c.matched_null.early_stop,
            own=c.rules == "strict",
            seed=c.seed,
            progress=context.progress,
        )
        context.save_table("nulls", table)
        context.save_table("null_notes", notes)

    def verdicts(self, context: CellContext) -> None:
        """What each group is under both rule sets, with the reasons, and the BOS diagnostic."""
        c = self.cell
        effects, singles, text = (context.table(n) for n in ("effects", "singles", "text"))
        groups = context.table("groups")
        heads = bos.bos_table(competing(groups), context.table("classes"), singles, JUDGED)
        context.save_table("bos", heads)
        context.save_table(
            "bos_groups", bos.bos_groups(heads, effects, context.table("picked_again"), mode=c.modes[0])
        )
        foreign = foreign_text(text, self.model.n_tokens)
        context.note(text_control=foreign)
        found = verdicts(
            effects,
            context.table("nulls"),
            context.table("null_notes"),
            rules=c.rules,
            mode=c.modes[0],
            floor=self._floor(_groups_alone(effects)),
            singles=singles,
            groups=groups,
            text=text if len(text) and not foreign else None,
            heads_per_layer=self.model.n_heads,
        )
        context.save_table("verdicts", found)

    def routing(self, context: CellContext) -> None:
        """Mixtures of experts: which experts are used, what each does, and whether ablating a group changes that."""
        save_routing(self, context)

    def checkpoints(self, context: CellContext) -> None:
        """Participation ratio over the training checkpoints the study names."""
        save_checkpoints(self, context)

    def release(self) -> None:
        """Let go of the model and what holds it; who asks again loads it again."""
        for name in ("model", "ablator"):
            vars(self).pop(name, None)

    def _floor(self, effects: pd.DataFrame) -> str:
        """Why no group of this cell can be judged, by either rule set; else ""."""
        return task_floor(effects, mode=self.cell.modes[0])

    def _all_heads(self) -> list[str]:
        return [f"L{x}H{h}" for x in range(self.model.n_layers) for h in range(self.model.n_heads)]


def competing(groups: pd.DataFrame) -> dict[str, list[str]]:
    """The groups of a cell's table that have heads: name -> heads."""
    return {
        str(name): [str(h) for h in heads]
        for name, heads in zip(groups["group"], groups["heads"], strict=True)
        if len(heads)
    }


def _groups_alone(effects: pd.DataFrame) -> Any:
    """The rows of the groups themselves, without what describes them."""
    return effects[effects["role"] == GROUP]
