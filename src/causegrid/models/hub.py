"""The hub's part in a name: whether it can be asked now, when it need not be (`NAME@REVISION`, a mistyped folder),
and why an id or a folder could not be read.

huggingface_hub tries again for 20 s where nothing answers; a plan asks once, for a moment, and remembers.
"""

from __future__ import annotations

import functools
from pathlib import Path

from causegrid.errors import InputError, nearest, one_line

MOMENT = 2.0  # seconds


@functools.cache
def reachable() -> bool:
    """Whether the hub answers; asked once a process.  False in huggingface_hub's offline mode."""
    from huggingface_hub import constants, get_session

    if constants.HF_HUB_OFFLINE:
        return False
    try:
        get_session().head(constants.ENDPOINT, timeout=MOMENT)
    except Exception:  # of requests or httpx, whichever this huggingface_hub is built on
        return False
    return True


def refuse_revision(name: str) -> None:
    """Raises InputError for `org/name@revision`, saying where a revision goes."""
    plain, at, revision = name.partition("@")
    if at and not Path(name).expanduser().exists():
        raise InputError(
            f"model {name!r} holds an '@': a revision is no part of a name; give it beside {plain!r}, to cg.model as "
            f"revision={revision!r}, in a study as checkpoints: [{{revision: {revision}, tokens: ...}}]"
        )


def refuse_mistyped(name: str) -> None:
    """Raises InputError for `first/second` that is no folder though `first` is one, where `first` holds a folder
    of nearly that name or the hub cannot be reached: asking it would take 20 s where nothing answers.

    An id in the local cache is none of these.
    """
    first = Path(name).expanduser().parent
    if name.count("/") != 1 or not first.is_dir() or Path(name).expanduser().exists() or _cached(name):
        return
    near = did_you_mean(name)
    if near:
        why = f"{near} (to ask the hub for an id of that name, run where no folder {str(first)!r} stands)"
    elif reachable():
        return
    else:
        why = ", and the hub cannot be reached"
    raise InputError(f"unknown model {name!r}: the local folder {str(first)!r} holds none of that name{why}")


def _cached(name: str) -> bool:
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        return isinstance(try_to_load_from_cache(name, "config.json"), str)
    except HFValidationError:  # no id at all
        return False


def did_you_mean(name: str) -> str:
    """`, did you mean 'x/y'?` of the folder nearest to a mistyped path, beside it; "" when none is near."""
    path = Path(name).expanduser()
    try:
        beside = [entry.name for entry in path.parent.iterdir() if entry.is_dir()]
    except OSError:  # no folder, or a closed one: nothing to suggest
        return ""
    match = nearest(path.name, beside)
    return "" if match is None else f", did you mean {str(Path(name).parent / match)!r}?"


def unreachable(where: str, error: BaseException, revision: str | None = None) -> InputError:
    """Why a folder or an id could not be read, from the chain of errors underneath."""
    kinds: set[str] = set()
    at: BaseException | None = error
    while at is not None:
        kinds |= {kind.__name__ for kind in type(at).__mro__}
        at = at.__cause__ or at.__context__
    if Path(where).is_dir():
        return InputError(f"folder {where!r} cannot be read as a model: {one_line(error)}")
    if "GatedRepoError" in kinds:
        why = "it is gated: accept its terms on the hub and log in"
    elif "RevisionNotFoundError" in kinds:
        why = "it has no such revision"
    elif "RepositoryNotFoundError" in kinds:
        why = "the hub has no such model (or it is private)"
    elif kinds & {"LocalEntryNotFoundError", "OfflineModeIsEnabled", "ConnectError", "ConnectionError"}:
        why = "it is not in the local cache and the hub cannot be reached"
    else:
        why = one_line(error)
    if not kinds & {"GatedRepoError", "RevisionNotFoundError"}:
        why += _no_folder(where)
    which = repr(where) if revision is None else f"{where!r} at revision {revision!r}"
    return InputError(f"cannot load model {which}: {why} (a local folder or an id org/name is allowed)")


def _no_folder(where: str) -> str:
    """For a mistyped path: that its parent has no such folder, and the nearest one it has; else ""."""
    path = Path(where).expanduser()
    if path.parent == Path() or not path.parent.is_dir():
        return ""
    return f"; nor is there a local folder {where!r}{did_you_mean(where)}"
