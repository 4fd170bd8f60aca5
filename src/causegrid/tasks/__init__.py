"""What a model is asked: state tasks (tokens with a state at every position) and prompt tasks."""

from __future__ import annotations

from typing import Any

from causegrid.tasks.base import PromptSet, PromptTask, StateBatch, StateTask, Task, tasks

__all__ = ["PromptSet", "PromptTask", "StateBatch", "StateTask", "Task", "task", "tasks"]


def task(name: str, **options: Any) -> Task:
    """A registered task by name (`parity`, `s3`, `z12`, `dyck`, `ioi`, ...), or `prompts:FILE.jsonl`.

    Registered factories are called as `factory(name, **options)`.
    Raises InputError for an unknown name or option.
    """
    if name.startswith("prompts:"):
        name, options = "prompts", {"file": name.removeprefix("prompts:"), **options}
    made: Task = tasks.get(name)(name, **options)
    return made
