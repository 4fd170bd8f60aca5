"""Sizes that a family is built with, refused before torch makes an empty or a nonsensical model of them."""

from __future__ import annotations

from causegrid.errors import InputError


def require_sizes(name: str, **sizes: object) -> None:
    """Raises InputError, naming the option, unless every size is a whole number of at least 1."""
    for option, value in sizes.items():
        if type(value) is not int or value < 1:
            raise InputError(f"model {name!r}: {option} must be a whole number of at least 1, not {value!r}")
