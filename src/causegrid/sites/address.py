"""A Site is a value: where to look and where to touch, printable and parseable.

`L5.resid_post`, `L5.z[3]` (head 3), `L0.conv`, `L2.state@17` (position 17), `L-1.resid_post` (the
embedding output).  Kinds use the field's names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from causegrid.errors import InputError, nearest, unknown

KINDS: tuple[str, ...] = (
    "resid_pre",
    "resid_post",
    "attn_out",
    "mlp_out",
    "z",
    "pattern",
    "conv",
    "ssm_input",
    "state",
)
HEADED = ("z", "pattern")
_SITE = re.compile(r"L(-?\d+)\.([A-Za-z_]+)(?:\[(-?\d+)\])?(?:@(-?\d+))?")


@dataclass(frozen=True, order=True)
class Site:
    """`layer` counts blocks from 0 (-1 = embedding output); `head` only for `z` and `pattern`; `position`
    restricts to one position, negative counting from the end."""

    layer: int
    kind: str
    head: int | None = None
    position: int | None = None

    def __post_init__(self) -> None:
        if self.kind in ("expert", "experts"):
            raise InputError(
                f"site kind {self.kind!r} does not exist: experts are slices of fused tensors, no module per "
                "expert to hook; use sites.experts.ablate_expert(model, layer, expert)"
            )
        if self.kind not in KINDS:
            raise unknown("site kind", self.kind, KINDS)
        if self.head is not None and self.kind not in HEADED:
            raise InputError(f"site kind {self.kind!r} has no heads: only {' and '.join(HEADED)} take [head]")

    def __str__(self) -> str:
        head = "" if self.head is None else f"[{self.head}]"
        position = "" if self.position is None else f"@{self.position}"
        return f"L{self.layer}.{self.kind}{head}{position}"


def site(text: str | Site) -> Site:
    """Parse `L5.z[3]@-1`.  Raises InputError with the form and the nearest kind."""
    if isinstance(text, Site):
        return text
    match = _SITE.fullmatch(str(text).strip())
    if match is None:
        hint = nearest(str(text).split(".")[-1], KINDS)
        guess = f"; did you mean kind {hint!r}?" if hint else ""
        raise InputError(
            f"not a site: {text!r}; write L<layer>.<kind>, as in L5.resid_post or L5.z[3]{guess}"
        )
    layer, kind, head, position = match.groups()
    return Site(
        int(layer), kind, None if head is None else int(head), None if position is None else int(position)
    )


def sites(given: str | Site | Iterable[str | Site]) -> list[Site]:
    """A string, a Site, or any iterable of them -> a list of Sites (never silently ignored)."""
    if isinstance(given, (str, Site)):
        return [site(given)]
    return [site(s) for s in given]
