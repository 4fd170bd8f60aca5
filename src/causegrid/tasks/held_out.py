"""The part of a prompt task that training text never holds: `held-out-ioi`, `held-out-greater-than`, ...

For models trained on `training_text` (the tiny zoo), every prompt of these is a new combination.  A prompt is
drawn by the task itself and kept when its text is held out, so positions, twins and variants are the task's own;
on any other model the names mean the same prompts, a random three quarters of the task's.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from causegrid.errors import InputError
from causegrid.tasks.base import PromptSet, PromptTask, tasks
from causegrid.tasks.drafting import check_count
from causegrid.tasks.training_text import held_out

PREFIX = "held-out-"
TASKS = ("ioi", "greater-than", "successor", "variable-binding")


class HeldOut(PromptTask):
    """The held-out prompts of `whole`."""

    def __init__(self, name: str, whole: PromptTask) -> None:
        self.name = name
        self.whole = whole
        self.targets = whole.targets
        self.note = f"{whole.note} (prompts that training text never holds)"

    def prompts(self, tokenizer: Any, n: int, *, seed: int = 0, bos: str = "none") -> PromptSet:
        """Up to `n` distinct held-out prompts, a function of (tokenizer, seed).

        Raises InputError where the task does, and when no prompt it can make is held out.
        """
        check_count(self.name, n)
        drawn = self.whole.prompts(tokenizer, 3 * n // 2 + 32, seed=seed, bos=bos)
        pick = [i for i, text in enumerate(drawn.texts) if held_out(text)][:n]
        if not pick:
            raise InputError(
                f"task {self.name!r}: none of {len(drawn)} prompts is held out; give it more words"
            )
        return replace(drawn.subset(pick), task=self.name)


@tasks.register("held-out-<task>", pattern=rf"{PREFIX}({'|'.join(TASKS)})")
def made(name: str, **options: Any) -> PromptTask:
    """The prompts of a task that the zoo's training text never holds: held-out-ioi, held-out-successor, ..."""
    from causegrid.tasks import task

    whole = task(name.removeprefix(PREFIX), **options)
    assert isinstance(whole, PromptTask)
    return HeldOut(name, whole)
