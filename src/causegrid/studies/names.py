"""Whether a name in a study file means something, asked before anything runs."""

from __future__ import annotations

import functools
import hashlib
import inspect
from collections.abc import Sequence
from pathlib import Path

from causegrid.errors import InputError, unknown
from causegrid.spec import split
from causegrid.tasks import PromptTask, Task, task, tasks

GIVEN = ("n_tokens", "n_out", "seed")  # what a family is told by its task and cell
ELSE = "or a local folder, or a Hugging Face id org/name"
EDGE = 1 << 20  # bytes read at both ends of a weight file for its digest


def require_task(name: str, kind: str) -> Task:
    """The task.  Raises InputError unless `name` is one of this kind ("state" or "prompt")."""
    made = task(name)
    if made.kind != kind:
        known = ", ".join(tasks.names())
        raise InputError(f"task {name!r} is a {made.kind} task, this study takes {kind} tasks (of {known})")
    return made


def is_family(name: str) -> bool:
    """Whether `name`, options apart, is a family trained from scratch."""
    return split(name)[0] in _families()


def require_family(name: str) -> None:
    """Raises InputError unless `name` is a family that can be trained from scratch, with options it takes."""
    from causegrid.models import models

    families = _families()
    base, options = split(name)
    if base not in families:
        raise unknown("model family", base, families)
    taken = inspect.signature(models.get(base)).parameters
    allowed = sorted(k for k, p in taken.items() if p.kind is p.KEYWORD_ONLY and k not in GIVEN)
    for option in options:
        if option not in allowed:
            raise unknown(f"option of model {base!r}", option, allowed)


def require_state_model(name: str) -> None:
    """Raises InputError unless `name` is a family as `require_family` takes it, or may be a pretrained model to
    fine-tune: bundled, a folder with a config.json, or an `org/name` id."""
    from causegrid.models import models
    from causegrid.models.hub import refuse_mistyped, refuse_revision

    if is_family(name):
        require_family(name)
        return
    refuse_revision(name)
    refuse_mistyped(name)
    folder = Path(name).expanduser()
    if folder.is_dir() and not (folder / "config.json").is_file():
        raise InputError(f"folder {name!r} holds no pretrained model to fine-tune: it has no config.json")
    if name not in models and not folder.is_dir() and name.count("/") != 1:
        raise unknown("model", name, models.names(), ELSE)


def require_screens(names: Sequence[str], made: Task) -> None:
    """Raises InputError unless every name is a registered screen whose named positions the task has."""
    from causegrid.signatures.screens.base import TaskScreen, screens

    have = made.targets if isinstance(made, PromptTask) else ()
    twice = next((name for name in names if list(names).count(name) > 1), None)
    if twice is not None:
        raise InputError(f"the groups name screen {twice!r} twice: remove one")
    for name in names:
        found = screens.get(name)
        if isinstance(found, TaskScreen) and not set(found.needs) <= set(have):
            raise InputError(
                f"screen {name!r} needs the named positions {', '.join(found.needs)}; "
                f"task {made.name!r} has {', '.join(have) or 'none'}"
            )


def require_language_model(name: str) -> None:
    """Raises InputError when `name` can only be a mistake: no bundled model, no folder that holds a model with
    attention heads, no `org/name` id."""
    from causegrid.models import models
    from causegrid.models.heads import require_attention_in
    from causegrid.models.hub import refuse_mistyped, refuse_revision

    families = _families()
    base, options = split(name) if ":" in name and not Path(name).expanduser().is_dir() else (name, {})
    if base in families:
        known = [n for n in models.names() if n not in families]
        raise InputError(
            f"model {name!r} is a family trained on state tasks: prompts need a language model "
            f"({', '.join(known)}, {ELSE})"
        )
    if base in models:
        made = models.get(base)
        if hasattr(made, "require"):  # kept on this machine by a command of ours
            made.require(**options)
        elif options:
            raise unknown(f"option of model {base!r}", next(iter(options)), ())
        return
    refuse_revision(name)
    refuse_mistyped(name)
    if Path(name).expanduser().is_dir():
        require_attention_in(name)
        return
    if name.count("/") == 1:
        return
    known = [n for n in models.names() if n not in families]
    raise unknown("model", name, known, ELSE)


@functools.cache
def fresh_size(model_name: str, task_name: str) -> str:
    """Parameters of a family trained from scratch, of the model itself: it is made and counted."""
    from causegrid.models import model

    made = model(model_name, task=task(task_name))
    return f"{made.n_params:,} parameters"


def digests(task_name: str, model_name: str = "") -> dict[str, str]:
    """Digests of the files the names stand for: {"task": ...} of a prompt file or of a task made from files,
    {"model": ...} of a folder."""
    found = {}
    if task_name.startswith("prompts:"):
        found["task"] = hashlib.sha256(Path(task_name.removeprefix("prompts:")).read_bytes()).hexdigest()[:16]
    elif digest := getattr(task(task_name), "digest", ""):
        found["task"] = str(digest)
    folder = Path(model_name).expanduser()
    if model_name and folder.is_dir():
        found["model"] = _folder_digest(folder)
    elif kept := _kept_digest(model_name):
        found["model"] = kept
    return found


def _kept_digest(model_name: str) -> str:
    """Digest of a registered model that is kept on this machine, "" for any other name."""
    from causegrid.models import models

    base = model_name.partition(":")[0]
    if base not in models or not hasattr(models.get(base), "require"):
        return ""
    return str(models.get(base).digest(**split(model_name)[1]))


def _families() -> list[str]:
    from causegrid.models import models

    return [n for n, make in models.items() if getattr(make, "trainable", True)]


def _folder_digest(folder: Path) -> str:
    """Names, sizes and both ends of every file: enough to notice other weights, quick on large ones."""
    total = hashlib.sha256()
    for file in sorted(p for p in folder.iterdir() if p.is_file()):
        size = file.stat().st_size
        total.update(f"{file.name} {size}".encode())
        with file.open("rb") as data:
            total.update(data.read(EDGE))
            if size > 2 * EDGE:
                data.seek(-EDGE, 2)
                total.update(data.read(EDGE))
    return total.hexdigest()[:16]
