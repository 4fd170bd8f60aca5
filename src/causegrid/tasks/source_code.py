"""Real Python source as token classes: what `code-depth` is made of.

Files are read by the interpreter's own `tokenize`, so brackets inside strings and comments are no brackets.
Classes are few (brackets by kind, keyword, name, number, string, operator, newline, indent, dedent, comment):
names and values would be a vocabulary of their own and say nothing about depth.  An f-string is one string,
also in interpreters that tokenise its inside.  Line breaks inside brackets (`NL`) are layout and left out.

Corpora: `stdlib`, the standard library of the running interpreter without its tests; `installed`, that and
the installed packages; a folder or file of `.py`; a Parquet file with CodeSearchNet's columns;
`code-search-net`, the real thing through the `code` extra.  A file that does not tokenise is counted, never
fatal.  Token streams differ between interpreter versions, so a corpus has a digest of its tokens.
"""

from __future__ import annotations

import hashlib
import io
import keyword
import sysconfig
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from causegrid.errors import InputError, unknown
from causegrid.tasks.base import Ints

OPEN, CLOSE = "([{", ")]}"
CLASSES = (*OPEN, *CLOSE, "keyword", "name", "number", "string", "operator", "newline", "indent", "dedent",
           "comment")  # fmt: skip
_CODE = {name: i for i, name in enumerate(CLASSES)}
INDENT, DEDENT, OPERATOR = _CODE["indent"], _CODE["dedent"], _CODE["operator"]
LINES = (_CODE["newline"], INDENT, DEDENT)  # never inside brackets
COLUMNS = (
    "func_code_string",
    "whole_func_string",
    "original_string",
    "code",
)  # CodeSearchNet and its mirrors
NAMED = ("stdlib", "installed", "code-search-net")
HUB, REVISION = "claudios/code_search_net", "a4ee8053e119ef04ee3d491ffef05bcf2725ae82"
_LEFT_OUT = {"test", "tests", "idlelib", "lib2to3", "turtledemo", "__pycache__", "site-packages"}


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """Token classes of many files, end to end: `codes` (T,), `ends` (F,) the end of each file in it,
    `digests` (F,) 64 bits of each file's tokens, `skipped` files that did not tokenise, `digest` of it all."""

    name: str
    codes: Ints
    ends: Ints
    digests: np.ndarray[tuple[int, ...], np.dtype[np.uint64]]
    skipped: int
    digest: str


def token_classes(source: str) -> list[int]:
    """The classes (indices into `CLASSES`) of one file.

    Raises ValueError when it is no Python that this interpreter can tokenise, or its brackets do not match.
    """
    found: list[int] = []
    open_now: list[int] = []
    inside = 0  # of f-strings
    try:
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            kind = tokenize.tok_name[token.type]
            if kind.endswith("STRING_START"):
                inside += 1
            elif kind.endswith("STRING_END"):
                inside -= 1
                if not inside:
                    found.append(_CODE["string"])
            elif inside or kind in ("NL", "ENCODING", "ENDMARKER", "TYPE_COMMENT"):
                continue
            elif kind == "ERRORTOKEN":
                raise ValueError(f"not a token: {token.string!r}")
            else:
                code = _class(kind, token.string)
                found.append(code)
                if code < 3:
                    open_now.append(code)
                elif code < 6 and (not open_now or open_now.pop() != code - 3):
                    raise ValueError(f"unmatched {token.string!r}")
    except (tokenize.TokenError, SyntaxError) as error:
        raise ValueError(str(error)) from error
    if open_now:
        raise ValueError("a bracket is never closed")
    return found


def _class(kind: str, text: str) -> int:
    if kind == "OP":
        return _CODE.get(text, _CODE["operator"])
    if kind == "NAME":
        return _CODE["keyword" if keyword.iskeyword(text) else "name"]
    return _CODE[kind.lower()]


def read(name: str) -> Corpus:
    """The corpus of this name (see the module), tokenised; kept in memory for the process.

    Raises InputError for an unknown name, a file that cannot be read, a Parquet without source in it, a
    corpus without a single usable file, and `code-search-net` where it cannot be had.
    """
    return _read(name)


@lru_cache(maxsize=4)
def _read(name: str) -> Corpus:
    parts: dict[int, list[int]] = {}  # by digest: a file that is there twice counts once
    skipped = 0
    for source in _sources(name):
        try:
            codes = token_classes(source)
        except ValueError:
            skipped += 1
            continue
        if codes:
            digest = hashlib.sha256(bytes(codes)).digest()
            parts.setdefault(int.from_bytes(digest[:8], "big"), codes)
    if not parts:
        raise InputError(f"corpus {name!r} holds no Python source that tokenises ({skipped} skipped)")
    joined = np.concatenate([np.array(codes, dtype=np.int64) for codes in parts.values()])
    whole = hashlib.sha256()
    for digest64 in sorted(parts):
        whole.update(digest64.to_bytes(8, "big"))
    return Corpus(
        name=name,
        codes=joined,
        ends=np.cumsum([len(codes) for codes in parts.values()]),
        digests=np.array(list(parts), dtype=np.uint64),
        skipped=skipped,
        digest=whole.hexdigest()[:16],
    )


def _sources(name: str) -> Iterator[str]:
    path = Path(name)
    if name == "code-search-net":
        return _code_search_net()
    if name in ("stdlib", "installed"):
        paths = sysconfig.get_paths()
        folders = [Path(paths["stdlib"])] + ([Path(paths["purelib"])] if name == "installed" else [])
        return _texts(p for folder in folders for p in _python_files(folder))
    if path.suffix == ".parquet":
        return _parquet(path)
    if path.is_dir():
        return _texts(sorted(path.rglob("*.py")))
    if path.suffix == ".py" and path.is_file():
        return _texts([path])
    if path.suffix or "/" in name:
        raise InputError(f"corpus {name!r} is no folder, .py or .parquet file that is there")
    raise unknown("corpus", name, NAMED)


def _python_files(folder: Path) -> list[Path]:
    found = []
    for path in folder.rglob("*.py"):
        if not _LEFT_OUT & set(path.relative_to(folder).parts[:-1]):
            found.append(path)
    return sorted(found)


def _texts(paths: Iterable[Path]) -> Iterator[str]:
    for path in paths:
        try:
            with tokenize.open(path) as file:
                yield file.read()
        except (OSError, SyntaxError, UnicodeDecodeError):
            yield "("  # does not tokenise: counted among the skipped


def _parquet(path: Path) -> Iterator[str]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(path)
    except (OSError, pa.ArrowException) as error:
        raise InputError(
            f"corpus {str(path)!r} cannot be read as Parquet: {str(error).splitlines()[0]}"
        ) from None
    names = file.schema_arrow.names
    column = next((c for c in COLUMNS if c in names), None)
    if column is None:
        raise InputError(
            f"corpus {str(path)!r} has no column of source: it has {', '.join(names[:8])}; "
            f"needed is one of {', '.join(COLUMNS)}"
        )
    return _rows(file, column, "language" if "language" in names else None)


def _rows(file: object, column: str, language: str | None) -> Iterator[str]:
    columns = [column] + ([language] if language else [])
    for batch in file.iter_batches(batch_size=2000, columns=columns):  # type: ignore[attr-defined]
        data = batch.to_pydict()
        kinds = data[language] if language else ["python"] * len(data[column])
        yield from (s for s, kind in zip(data[column], kinds, strict=True) if s and kind == "python")


def _code_search_net() -> Iterator[str]:
    try:
        from datasets import load_dataset
    except ImportError:
        raise InputError(
            "corpus 'code-search-net' needs the extra: pip install 'causegrid[code]'; or give a Parquet file of "
            "it, or use 'stdlib'"
        ) from None
    try:
        data = load_dataset(HUB, "python", revision=REVISION, split="train", streaming=True)
        first = next(iter(data))
    except Exception as error:
        raise InputError(
            f"corpus 'code-search-net' ({HUB}) cannot be reached: {type(error).__name__}; give a Parquet file of "
            "it, or use 'stdlib'"
        ) from error
    column = next((c for c in COLUMNS if c in first), None)
    if column is None:
        raise InputError(f"corpus 'code-search-net' has no column of source among {', '.join(COLUMNS)}")
    return (row[column] for row in data)
