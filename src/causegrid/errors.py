"""The ways causegrid says no.

`InputError` is the user's to mend (bad name, bad file, bad head): the command line prints its one line
and exits with 2.  `InterventionError` is an experiment that did not happen as asked (a hook that never
fired, a wrong number of modules): never a result, always an error.  Everything else is a bug and keeps
its traceback.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class InputError(ValueError):
    """Something the user gave cannot be used; the message is one line that names the value and the mend."""


class InterventionError(RuntimeError):
    """An intervention did not fire, or fired on the wrong number of modules."""


class RunFailed(RuntimeError):
    """A computation ended badly; the message is one line that says where and what is left of it."""


def nearest(value: str, allowed: Iterable[str]) -> str | None:
    """The allowed name closest to `value`, or None when nothing is near."""
    by_lower = {name.lower(): name for name in allowed}
    match = difflib.get_close_matches(str(value).lower(), list(by_lower), n=1, cutoff=0.5)
    return by_lower[match[0]] if match else None


def unknown(kind: str, value: object, allowed: Iterable[str], hint: str = "") -> InputError:
    """An `InputError` that names the value, what is allowed, and the nearest match."""
    names = list(allowed)
    message = f"unknown {kind} {value!r}: allowed are {', '.join(names) if names else '(none)'}"
    match = nearest(str(value), names)
    if match is not None:
        message += f"; did you mean {match!r}?"
    if hint:
        message += f" ({hint})"
    return InputError(message)


def one_line(error: BaseException, limit: int = 200) -> str:
    """The message of an error on one line, cut at `limit` characters."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= limit else text[: limit - 4] + " ..."
