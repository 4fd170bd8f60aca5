"""`NAME:option=value,...`: a registered thing with options, in one word.

`dyck:k=8`, `mamba:conv=false`, `transformer:positions=rope` mean the same in Python, in a study file and on the
command line, need no quotes there, and are what tables and reports call the thing.  Values are true, false, a
number, or text; whether an option exists is asked where the thing is made.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from causegrid.errors import InputError

Value = bool | int | float | str


def split(text: str) -> tuple[str, dict[str, Value]]:
    """(name, options).  Raises InputError for an option without a name or value, or named twice."""
    name, colon, rest = text.partition(":")
    options: dict[str, Value] = {}
    if not colon:
        return text, options
    for part in rest.split(","):
        option, equals, value = (p.strip() for p in part.partition("="))
        if not option or not equals or not value:
            raise InputError(f"{text!r}: {part!r} is no option; write {name}:option=value,option=value")
        if option in options:
            raise InputError(f"{text!r} gives the option {option!r} twice")
        options[option] = _value(value)
    return name, options


def require_types(what: str, parameters: Mapping[str, inspect.Parameter], options: Mapping[str, Any]) -> None:
    """Raises InputError for a value that is no true or false, or no whole number, where the option is annotated as
    one: `conv=no` is a text, and a text is true."""
    for option, value in options.items():
        kind = str(getattr(parameters.get(option), "annotation", ""))
        if kind == "bool" and not isinstance(value, bool):
            raise InputError(f"{what}: {option} must be true or false, not {value!r}")
        if kind == "int" and (isinstance(value, bool) or not isinstance(value, int)):
            raise InputError(f"{what}: {option} must be a whole number, not {value!r}")


def joined(name: str, options: dict[str, Any]) -> str:
    """The one spelling of a thing with these options: sorted, `true` and `false` in small letters."""
    if not options:
        return name
    return f"{name}:" + ",".join(f"{k}={_text(v)}" for k, v in sorted(options.items()))


def _value(text: str) -> Value:
    low = text.lower()
    if low in ("true", "false"):
        return low == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
