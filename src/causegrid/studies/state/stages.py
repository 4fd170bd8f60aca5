"""The stages of one state-encoding cell: train, probe, erase, beyond, components, patch.

What the stages share in memory can always be rebuilt from the cell's folder, so a cell goes on at its first
unfinished stage in a new process.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import pandas as pd

from causegrid.errors import InputError
from causegrid.models import fingerprint, load, model, save, untrained
from causegrid.models.record import Model
from causegrid.models.training import train
from causegrid.signatures.activations import Activations, collect
from causegrid.signatures.profile import profile_of, profile_summary
from causegrid.studies.base import CellContext
from causegrid.studies.placement import device
from causegrid.tasks import task

if TYPE_CHECKING:
    from causegrid.studies.state.fitted import Subspace
    from causegrid.studies.state_encoding import Erasing, StateCell

LEARNED_MINIMUM = 8  # below this learned length a cell is `not learned` (MEASURES 1.2)


def learned(length: int, trained: int) -> str:
    """The mark of a cell whose learned length is `length`: `learned`, `learned to L`, or `not learned`."""
    if length >= trained:
        return "learned"
    return f"learned to {length}" if length >= LEARNED_MINIMUM else "not learned"


class StateStages:
    """The stages of one cell."""

    def __init__(self, cell: StateCell) -> None:
        self.cell = cell
        self._model: Model | None = None
        self._activations: dict[int, Activations] = {}
        self._subspaces: dict[int, dict[int, list[Subspace]]] = {}

    @cached_property
    def task(self) -> Any:
        """The cell's task."""
        return task(self.cell.task)

    def model(self, context: CellContext) -> Model:
        """The trained model, from memory or from the cell's folder."""
        if self._model is None:
            self._model = load(context.find("model.json").parent, device=device())
        return self._model

    def lengths(self, context: CellContext) -> list[int]:
        """Lengths the analysis looks at: the trained one, and the learned one where it is shorter."""
        trained = self.cell.training.length
        reached = int(context.table("training_summary")["learned_length"].iloc[0])
        return [reached, trained] if LEARNED_MINIMUM <= reached < trained else [trained]

    def activations(self, context: CellContext, length: int) -> Activations:
        """Block outputs of the trained model at one length."""
        if length not in self._activations:
            p = self.cell.probing
            self._activations[length] = collect(
                self.model(context),
                self.task,
                length=length,
                n_train=p.n_train,
                n_test=p.n_test,
                seed=self.cell.seed,
            )
        return self._activations[length]

    def subspaces(self, context: CellContext, length: int) -> dict[int, list[Subspace]]:
        """What is erased at each layer, fitted once for both erasing stages."""
        from causegrid.studies.state.fitted import fit_subspaces

        if length not in self._subspaces:
            e = self._erasing
            self._subspaces[length] = fit_subspaces(
                self.activations(context, length),
                bases=e.bases,
                ranks=e.every_rank,
                progress=context.progress,
            )
        return self._subspaces[length]

    @property
    def _erasing(self) -> Erasing:
        assert self.cell.erasing is not None
        return self.cell.erasing

    def fine_tunable(self) -> Model:
        """The pretrained model, ready to learn the task.  Raises InputError as `require` does, and when a stage needs
        more memory than there is: before any weight is read, where the model's config is at hand."""
        from causegrid.models.finetuning import fine_tunable
        from causegrid.models.outline import outlined
        from causegrid.models.pretrained import as_device
        from causegrid.studies.state.footprint import require_room

        f, t = self.cell.fine_tuning, self.cell.training
        assert f is not None
        shapes = outlined(self.cell.model)
        if shapes is not None:
            require_room(self.cell, shapes, self.task, as_device(device()))

        def check(made: Model) -> None:
            if shapes is None:
                require_room(self.cell, made.module, self.task, made.device)
            self.require(made)

        return fine_tunable(
            self.cell.model,
            self.task,
            method=f.method,
            rank=f.rank,
            readout=f.readout,
            batch=t.batch,
            length=t.length,
            seed=self.cell.seed,
            device=device(),
            check=check,
        )

    def require(self, made: Model) -> None:
        """Raises InputError, before any training, for what a later stage would refuse of this model.

        It takes the model as it is after training, so without adapters: they wrap parts until they are merged.
        """
        from causegrid.studies.state.components import require_parts
        from causegrid.studies.state.patching import require_places

        e, c, p = self.cell.erasing, self.cell.components, self.cell.patching
        for rank in e.every_rank if e else ():
            if rank != "full" and rank > made.d_model:
                raise InputError(
                    f"rank {rank} does not exist: allowed are 1 to {made.d_model} (the width of {made.name!r}) "
                    "and 'full'"
                )
        if c:
            require_parts(made, c.kinds)
        if p:
            require_places(made, p.kinds)

    def train(self, context: CellContext) -> None:
        """Train from scratch and measure behaviour by length; a model that does not learn is a result."""
        cell, t = self.cell, self.cell.training
        scratch = cell.fine_tuning is None
        if scratch:
            made = model(cell.model, task=self.task, seed=cell.seed, device=device())
            self.require(made)
        else:
            made = self.fine_tunable()
        result = train(
            made,
            self.task,
            steps=t.steps,
            seed=cell.seed,
            batch=t.batch,
            lr=t.lr,
            schedule=t.schedule,
            length=t.length,
            eval_lengths=tuple(cell.eval_lengths),
            n_eval=cell.n_eval,
            checkpoint=context.scratch("training.safetensors"),
            progress=lambda step, steps, facts: context.progress(step, steps, "training"),
        )
        if not scratch:
            from causegrid.models.finetuning import merged

            made = merged(made)
        save(made, context.path("model.json").parent)
        self._model = made
        reached = int(result.learned_length)
        facts = {
            "family": made.family,
            "n_params": made.n_params,
            "steps": int(result.steps),
            "solved": bool(result.solved),
            "learned_length": reached,
            "learned": learned(reached, t.length),
            "schedule": t.schedule,
            "lr": float(result.settings["lr"]),
            "positions": str(made.config.get("positions", "")),
        }
        context.save_table("training", result.history)
        context.save_table("behaviour", result.behaviour)
        context.save_table("training_summary", pd.DataFrame([facts]))
        skipped = getattr(self.task, "files_skipped", None)  # of a task made from files
        context.note(
            **facts, fingerprint=fingerprint(made), **({} if skipped is None else {"files_skipped": skipped})
        )

    def probe(self, context: CellContext) -> None:
        """Probe every layer and label at every analysed length, with the baselines of MEASURES 2.1."""
        from causegrid.studies.state.readings import check_classes

        fresh_model = untrained(self.model(context), seed=self.cell.seed)  # this cell before its training
        p = self.cell.probing
        profiles = []
        lengths = self.lengths(context)
        for i, length in enumerate(lengths):
            found = self.activations(context, length)
            check_classes(found, self.task.label)
            fresh = None  # the last length's go first: these are large
            fresh = collect(
                fresh_model, self.task, length=length, n_train=p.n_train, n_test=p.n_test, seed=self.cell.seed
            )
            profiles.append(
                profile_of(
                    found,
                    list(self.task.labels),
                    untrained=fresh,
                    seed=self.cell.seed,
                    progress=lambda done, all_, i=i: context.progress(  # type: ignore[misc]
                        i * all_ + done, len(lengths) * all_, "probing"
                    ),
                )
            )
        profile = pd.concat(profiles, ignore_index=True)
        context.save_table("probes", profile)
        context.save_table("profile_summary", profile_summary(profile))

    def erase(self, context: CellContext) -> None:
        """Erase what is read of the trained label at every layer, refit the probe, beside random subspaces."""
        from causegrid.studies.state.erasure import erasure_table

        e = self._erasing
        tables = [
            erasure_table(
                self.model(context),
                self.task,
                activations=self.activations(context, length),
                subspaces=self.subspaces(context, length),
                bases=e.bases,
                ranks=e.ranks,
                n_random=e.n_random,
                n_random_refits=e.n_random_refits,
                seed=self.cell.seed,
                progress=context.progress,
            )
            for length in self.lengths(context)
        ]
        context.save_table("erasure", pd.concat(tables, ignore_index=True))

    def beyond(self, context: CellContext) -> None:
        """Apply the erasures fitted at the analysed lengths to longer sequences."""
        from causegrid.studies.state.beyond import beyond_table

        e = self._erasing
        assert e.beyond is not None
        tables = [
            beyond_table(
                self.model(context),
                self.task,
                activations=self.activations(context, length),
                subspaces=self.subspaces(context, length),
                bases=e.bases,
                ranks=e.beyond.ranks,
                lengths=e.beyond.lengths,
                n_test=e.beyond.n_test,
                n_random=e.beyond.n_random,
                seed=self.cell.seed,
                progress=context.progress,
            )
            for length in self.lengths(context)
        ]
        context.save_table("erasure_beyond", pd.concat(tables, ignore_index=True))

    def components(self, context: CellContext) -> None:
        """Remove parts of the trained model, one layer at a time and all, at every evaluated length."""
        from causegrid.studies.state.components import components_table

        c = self.cell.components
        assert c is not None
        table = components_table(
            self.model(context),
            self.task,
            kinds=c.kinds,
            lengths=tuple(dict.fromkeys((*self.lengths(context), *self.cell.eval_lengths))),
            n=c.n,
            seed=self.cell.seed,
            progress=context.progress,
        )
        context.save_table("components", table)

    def patch(self, context: CellContext) -> None:
        """Patch clean activations into corrupted runs at every analysed length."""
        from causegrid.studies.state.patching import patching_table

        p = self.cell.patching
        assert p is not None
        tables = [
            patching_table(
                self.model(context),
                self.task,
                length=length,
                kinds=p.kinds,
                n_pairs=p.n_pairs,
                grid=p.grid,
                unpaired="mark",
                seed=self.cell.seed,
                progress=context.progress,
            )
            for length in self.lengths(context)
        ]
        context.save_table("patching", pd.concat(tables, ignore_index=True))
