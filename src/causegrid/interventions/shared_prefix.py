"""Conditions arranged as a tree, so that what two of them have in common is computed once.

A condition is a path of steps, one for each block where some of its edits begin to act, in order of depth.
Two conditions that take the same first steps are the same model up to where they part: a single head of
block 3, and every null draw that starts with that head.  A chain without a fork is one node, so the model is
stopped and started again only where conditions part.

Which steps are equal is told by their keys (`Condition.keys`); a step without a key equals no other.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from causegrid.sites.address import Site
from causegrid.sites.edit import Edit


@dataclass(frozen=True)
class Step:
    """Edits that begin to act in block `start`, or at the output of the one below; equal `key`: the same edits."""

    start: int
    edits: tuple[Edit, ...]
    key: Hashable


@dataclass(eq=False)
class Node:
    """A run of the model from block `start` to block `stop`, with `edits` in force.

    `ends`: conditions whose last step this is (their run goes on to the logits).  `children` begin at blocks
    above `start`.
    """

    start: int
    edits: tuple[Edit, ...]
    children: list[Node] = field(default_factory=list)
    ends: list[Hashable] = field(default_factory=list)

    @property
    def sites(self) -> tuple[Site, ...]:
        """The edited sites, in order: nodes with equal sites can be stacked."""
        return tuple(one.site for one in self.edits)

    @property
    def stop(self) -> int | None:
        """The block before which the run may end; None: it goes on to the logits."""
        return None if self.ends else max(child.start for child in self.children)


def steps(edits: Sequence[Edit], keys: Sequence[Hashable], n_layers: int) -> list[Step]:
    """The edits of one condition by the block they begin to act in, ascending.

    An edit of block l's output begins in block l + 1, except at the last block.  `keys`: one per edit, or none.
    """
    by_start: dict[int, list[int]] = {}
    for i, one in enumerate(edits):
        by_start.setdefault(_start(one, n_layers), []).append(i)
    found = []
    for start, members in sorted(by_start.items()):
        mine = tuple(edits[i] for i in members)
        key = tuple((edits[i].site, keys[i]) for i in members) if keys else object()
        found.append(Step(start, mine, key))
    return found


def tree(paths: Iterable[tuple[Hashable, Sequence[Step]]]) -> list[Node]:
    """(name, steps) of conditions -> the nodes that start from the clean model."""
    base = Node(0, ())  # the clean model
    known: dict[tuple[int, Hashable], Node] = {}
    for name, path in paths:
        at = base
        for step in path:
            node = known.get((id(at), step.key))
            if node is None:
                node = known[id(at), step.key] = Node(step.start, step.edits)
                at.children.append(node)
            at = node
        at.ends.append(name)
    for root in base.children:
        _join(root)
    return base.children


def alike(paths: list[tuple[Hashable, list[Step]]], size: int) -> Iterator[list[tuple[Hashable, list[Step]]]]:
    """Conditions in parts of at most `size`, those with the same first steps together."""
    if len(paths) > size:
        rank: dict[Hashable, int] = {}  # keys in order of first appearance
        for _, path in paths:
            for step in path:
                rank.setdefault(step.key, len(rank))
        paths = sorted(paths, key=lambda p: [(step.start, rank[step.key]) for step in p[1]])
    for s in range(0, len(paths), size):
        yield paths[s : s + size]


def _join(node: Node) -> None:
    """Make chains without a fork one node, from here upwards."""
    while not node.ends and len(node.children) == 1:
        (only,) = node.children
        node.edits += only.edits
        node.children, node.ends = only.children, only.ends
    for child in node.children:
        _join(child)


def _start(one: Edit, n_layers: int) -> int:
    """First block that must run for this edit to act."""
    after = one.site.kind == "resid_post" and one.site.layer < n_layers - 1
    return one.site.layer + 1 if after else max(one.site.layer, 0)
