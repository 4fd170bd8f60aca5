"""What a model is asked: state tasks (tokens with a state at every position) and prompt tasks."""

from __future__ import annotations

import inspect
from typing import Any

from causegrid.errors import InputError, unknown
from causegrid.spec import joined, require_types, split
from causegrid.tasks.base import MAX_CLASSES, PromptSet, PromptTask, StateBatch, StateTask, Task, tasks

__all__ = ["PromptSet", "PromptTask", "StateBatch", "StateTask", "Task", "task", "tasks"]


def task(name: str, **options: Any) -> Task:
    """A registered task by name (`parity`, `s3`, `z12`, `dyck`, `ioi`, ...), with options in the name
    (`dyck:k=8`) or beside it, or `prompts:FILE.jsonl`.

    Registered factories are called as `factory(name, **options)`; the task is called what the name says.
    Raises InputError for an unknown name, an unknown option or a missing one.
    """
    if not isinstance(name, str):
        raise unknown("task", name, tasks.names())
    if name.startswith("prompts:"):
        if "file" in options:
            raise InputError(f"task {name!r} already names its file: leave out file={options['file']!r}")
        name, options = "prompts", {"file": name.removeprefix("prompts:"), **options}
    elif ":" in name:
        name, named = split(name)
        for option in set(named) & set(options):
            raise InputError(f"task {name!r}: the option {option!r} is given in the name and beside it")
        options = {**named, **options}
        made: Task = _made(name, options)
        made.name = joined(name, named)
        return made
    return _made(name, options)


def _made(name: str, options: dict[str, Any]) -> Task:
    factory = tasks.get(name)
    _check_options(name, factory, options)
    made: Task = factory(name, **options)
    for label, n in getattr(made, "labels", {}).items():
        if n > MAX_CLASSES:
            raise InputError(
                f"task {name!r}: its label {label!r} has {n} classes; take at most {MAX_CLASSES}, more could neither "
                "be probed nor filled with examples"
            )
    return made


def _check_options(name: str, factory: Any, options: dict[str, Any]) -> None:
    parameters = list(inspect.signature(factory).parameters.values())[1:]  # the first is the name
    if not any(p.kind is p.VAR_KEYWORD for p in parameters):
        allowed = [p.name for p in parameters]
        for option in options:
            if option not in allowed:
                raise unknown(f"option of task {name!r}:", option, allowed)
    require_types(f"task {name!r}", {p.name: p for p in parameters}, options)
    for parameter in parameters:
        required = parameter.default is parameter.empty and parameter.kind is parameter.KEYWORD_ONLY
        if required and parameter.name not in options:
            example = '; as in cg.task("prompts", file="mine.jsonl") or prompts:mine.jsonl'
            raise InputError(
                f"task {name!r} needs the option {parameter.name!r}{example if name == 'prompts' else ''}"
            )
