"""Code-Depth: how deep in brackets a token of real Python source stands (MEASURES 1.3).

Windows of one file, each starting where the depth is 0 so that its state starts at 0; the label at t is the
number of brackets open after token t, clipped at `max_depth` (with `indentation=True` the indentation of the
block is added).  Depth 0 is most of real code: read balanced accuracy, and the majority baseline beside.

Split by file: a file belongs to one split by a hash of its tokens, and a window whose token classes also
occur in another split's file (tables, licence headers) goes to one of the two, by the hash of the window.

Twins for patching are edits, not real code: no two windows of real files differ in one token alone and in every
later depth.  A bracket becomes an operator or an operator a bracket (`f(a, b` <-> `f.a, b`; a closing one fits what
is open), where up to the window's end no line ends and nothing that was open closes.  So brackets and lines stay
those of legal Python and every later depth differs by 1 (unless clipped).  The window edited is one of the split's
files; its twin is nobody's.  Such places are rare far behind the position: expect fewer pairs than asked for.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from causegrid.errors import InputError
from causegrid.tasks import source_code
from causegrid.tasks.base import MAX_CLASSES, Ints, Split, StateBatch, StateTask, tasks
from causegrid.tasks.source_code import CLASSES, DEDENT, INDENT, LINES, OPEN, OPERATOR
from causegrid.tasks.splits import EIGHTHS, SPLITS, draw


class CodeDepthTask(StateTask):
    """Token classes of Python source; label `depth` (0 .. max_depth, the last meaning "that or deeper")."""

    edited_twins = True

    def __init__(self, name: str, *, corpus: str, max_depth: int, indentation: bool) -> None:
        if isinstance(max_depth, bool) or not isinstance(max_depth, int) or max_depth < 1:
            raise InputError(f"task {name!r}: max_depth must be an integer >= 1, not {max_depth!r}")
        if max_depth >= MAX_CLASSES:
            raise InputError(
                f"task {name!r}: max_depth={max_depth} makes more than {MAX_CLASSES} classes; take at most "
                f"{MAX_CLASSES - 1}"
            )
        self.name = name
        self.corpus = corpus
        self.max_depth = max_depth
        self.indentation = indentation
        self.n_tokens = len(CLASSES)
        self.labels = {"depth": max_depth + 1}
        self._starts: dict[tuple[int, Split], Ints] = {}
        what = "brackets and indentation" if indentation else "brackets"
        self.note = f"depth in {what}, 0..{max_depth}, at each token of real Python source"

    @property
    def digest(self) -> str:
        """Names the tokens the task draws from: part of a cell's identity."""
        return source_code.read(self.corpus).digest

    @property
    def files_skipped(self) -> int:
        """Files of the corpus that did not tokenise."""
        return source_code.read(self.corpus).skipped

    def sample(self, n: int, length: int, *, seed: int | Sequence[int], split: Split) -> StateBatch:
        """`n` windows (n, L), a function of (corpus, seed, split, n, length).

        Raises InputError: bad size or seed, or no file of the corpus has a window of this length.
        """
        codes = source_code.read(self.corpus).codes

        def propose(rng: np.random.Generator, m: int) -> Ints:
            starts = self._places(length, split)
            if not len(starts):
                raise InputError(
                    f"task {self.name!r}: no {split} file of corpus {self.corpus!r} has {length} tokens after a "
                    "place of depth 0: use shorter lengths or a larger corpus"
                )
            rows: Ints = codes[starts[rng.integers(len(starts), size=m)][:, None] + np.arange(length)]
            return rows

        tokens = draw(propose, n, length, seed=seed, split=split, task=self.name)
        return StateBatch(tokens=tokens, labels=self.labels_of(tokens))

    def labels_of(self, tokens: Ints) -> dict[str, Ints]:
        """`depth` after every token of windows that start at depth 0, (B, L)."""
        return {"depth": np.minimum(_depth(tokens, self.indentation), self.max_depth)}

    def twins(self, tokens: Ints, position: int, rng: np.random.Generator) -> Ints:
        """An opening bracket made an operator at `position`, or the other way; see the module."""
        now, rest = tokens[:, position], tokens[:, position + 1 :]
        fits = np.logical_and(_depth(rest, False) >= 0, ~np.isin(rest, LINES)).all(axis=1, keepdims=True)
        opening = rng.integers(len(OPEN), size=len(tokens))
        closing = _innermost(tokens[:, :position])
        closes = (rng.random(len(tokens)) < 0.5) & (closing >= 0)
        bracket = np.where(closes, closing + len(OPEN), opening)
        changed = tokens.copy()
        changed[:, position] = np.where(
            now < 2 * len(OPEN), OPERATOR, np.where(now == OPERATOR, bracket, now)
        )
        return np.where(fits, changed, tokens)

    def _places(self, length: int, split: Split) -> Ints:
        """Where a window of `length` tokens may start in the corpus, for this split."""
        if (length, split) not in self._starts:
            corpus = source_code.read(self.corpus)
            first = np.concatenate([[0], corpus.ends[:-1]])
            edges = np.cumsum([EIGHTHS[s] for s in SPLITS])
            of_file = np.searchsorted(edges, (corpus.digests >> np.uint64(61)).astype(np.int64), side="right")
            found = []
            for begin, end, owner in zip(first.tolist(), corpus.ends.tolist(), of_file.tolist(), strict=True):
                if SPLITS[owner] != split or end - begin < length:
                    continue
                depth = _depth(corpus.codes[None, begin:end], self.indentation)[0]
                before = np.concatenate([[0], depth[:-1]])[: end - begin - length + 1]
                found.append(begin + np.flatnonzero(before == 0))
            self._starts[length, split] = np.concatenate(found) if found else np.empty(0, dtype=np.int64)
        return self._starts[length, split]


def _depth(codes: Ints, indentation: bool) -> Ints:
    """Depth after each token, from 0 before the first: codes (..., T) -> (..., T)."""
    step = np.where(codes < 3, 1, np.where(codes < 6, -1, 0))
    if indentation:
        step = step + np.where(codes == INDENT, 1, np.where(codes == DEDENT, -1, 0))
    depth: Ints = np.cumsum(step, axis=-1)
    return depth


def _innermost(codes: Ints) -> Ints:
    """The kind of the innermost bracket still open after codes (B, T), -1 for none: (B,)."""
    depth = np.concatenate([np.zeros_like(codes[:, :1]), _depth(codes, False)], axis=1)  # (B, T + 1)
    opens = (codes < len(OPEN)) & (depth[:, 1:] == depth[:, -1:])
    if not codes.shape[1]:
        return np.full(len(codes), -1)
    last = codes.shape[1] - 1 - opens[:, ::-1].argmax(axis=1)
    return np.where(depth[:, -1] > 0, np.take_along_axis(codes, last[:, None], axis=1)[:, 0], -1)


@tasks.register("code-depth")
def code_depth(
    name: str, *, corpus: str = "stdlib", max_depth: int = 10, indentation: bool = False
) -> StateTask:
    """Bracket depth at each token of real Python source (the standard library unless told otherwise)."""
    return CodeDepthTask(name, corpus=corpus, max_depth=max_depth, indentation=indentation)
