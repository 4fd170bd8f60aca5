"""Heads are written `L3H1` everywhere: in Python, on the command line, in files."""

from __future__ import annotations

import re
from collections.abc import Iterable

from causegrid.errors import InputError

_HEAD = re.compile(r"L(\d{1,9})H(\d{1,9})")


def head(text: str | tuple[int, int]) -> tuple[int, int]:
    """`L3H1` -> (3, 1).  Raises InputError when it is not written so."""
    if isinstance(text, tuple):
        return int(text[0]), int(text[1])
    match = _HEAD.fullmatch(str(text).strip())
    if match is None:
        raise InputError(f"not a head: {text!r}; write L<layer>H<head>, as in L3H1")
    return int(match.group(1)), int(match.group(2))


def head_name(layer: int, index: int) -> str:
    """(3, 1) -> `L3H1`."""
    return f"L{layer}H{index}"


def heads(given: str | Iterable[str | tuple[int, int]]) -> list[tuple[int, int]]:
    """`"L3H1,L5H2"` or an iterable of heads -> a list of (layer, head), duplicates removed, order kept."""
    parts = [p for p in given.split(",") if p.strip()] if isinstance(given, str) else list(given)
    return list(dict.fromkeys(head(p) for p in parts))
