"""What a model is asked: state tasks (tokens with a state at every position) and prompt tasks."""

from __future__ import annotations

import inspect
from typing import Any

from causegrid.errors import InputError, unknown
from causegrid.tasks.base import PromptSet, PromptTask, StateBatch, StateTask, Task, tasks

__all__ = ["PromptSet", "PromptTask", "StateBatch", "StateTask", "Task", "task", "tasks"]


def task(name: str, **options: Any) -> Task:
    """A registered task by name (`parity`, `s3`, `z12`, `dyck`, `ioi`, ...), or `prompts:FILE.jsonl`.

    Registered factories are called as `factory(name, **options)`.
    Raises InputError for an unknown name, an unknown option or a missing one.
    """
    if not isinstance(name, str):
        raise unknown("task", name, tasks.names())
    if name.startswith("prompts:"):
        if "file" in options:
            raise InputError(f"task {name!r} already names its file: leave out file={options['file']!r}")
        name, options = "prompts", {"file": name.removeprefix("prompts:"), **options}
    factory = tasks.get(name)
    _check_options(name, factory, options)
    made: Task = factory(name, **options)
    return made


def _check_options(name: str, factory: Any, options: dict[str, Any]) -> None:
    parameters = list(inspect.signature(factory).parameters.values())[1:]  # the first is the name
    if not any(p.kind is p.VAR_KEYWORD for p in parameters):
        allowed = [p.name for p in parameters]
        for option in options:
            if option not in allowed:
                raise unknown(f"option of task {name!r}:", option, allowed)
    for parameter in parameters:
        required = parameter.default is parameter.empty and parameter.kind is parameter.KEYWORD_ONLY
        if required and parameter.name not in options:
            example = '; as in cg.task("prompts", file="mine.jsonl") or prompts:mine.jsonl'
            raise InputError(
                f"task {name!r} needs the option {parameter.name!r}{example if name == 'prompts' else ''}"
            )
