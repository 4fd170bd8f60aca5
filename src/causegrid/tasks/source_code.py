"""Real Python source as token classes: what `code-depth` is made of.

Files are read by the interpreter's own `tokenize`, so brackets inside strings and comments are no brackets.
Classes are few (brackets by kind, keyword, name, number, string, operator, newline, indent, dedent, comment):
names and values would be a vocabulary of their own and say nothing about depth.  An f-string is one string,
also in interpreters that tokenise its inside.  Line breaks inside brackets (`NL`) are layout and left out.

Corpora: `stdlib`, the standard library of the running interpreter without its tests; `installed`, that and
the installed packages; a folder or file of `.py`; a Parquet file with CodeSearchNet's columns, one function a row;
`code-search-net`, the first functions of the real thing, through the `code` extra.  Functions of one file of one
repository are one file here, so that no file is in two splits.  What cannot be read or does not tokenise is
counted, never fatal.  Token streams differ between interpreter versions, so a corpus has a digest of its tokens;
the tokens are kept on disk (`source_cache`).
"""

from __future__ import annotations

import hashlib
import io
import keyword
import sys
import sysconfig
import tokenize
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np

from causegrid.errors import InputError, unknown
from causegrid.tasks import source_cache
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
REPOSITORY = ("repository_name", "repo")
PATH = ("func_path_in_repository", "path")
NAMED = ("stdlib", "installed", "code-search-net")
HUB, REVISION = "claudios/code_search_net", "a4ee8053e119ef04ee3d491ffef05bcf2725ae82"
FUNCTIONS = 50_000  # of the hub's corpus: about 7 million tokens
RULES = 1  # of the tokens: another number where the same source gives other ones
_LEFT_OUT = {"test", "tests", "idlelib", "lib2to3", "turtledemo", "__pycache__", "site-packages"}

Source = tuple[str, str | None]  # the file it comes from, and its text, None where it cannot be read


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
    facts, sources = _sources(name)
    key = hashlib.sha256(
        "\n".join([str(RULES), sys.version, *CLASSES, *facts]).encode(errors="replace")
    ).hexdigest()[:32]
    kept = source_cache.load(key)
    if kept is None:
        kept = _tokenised(name, sources())
        source_cache.save(key, kept)
    whole = hashlib.sha256()
    for digest in sorted(kept["digests"].tolist()):
        whole.update(digest.to_bytes(8, "big"))
    return Corpus(
        name=name,
        codes=kept["codes"].astype(np.int64),
        ends=kept["ends"],
        digests=kept["digests"],
        skipped=int(kept["skipped"]),
        digest=whole.hexdigest()[:16],
    )


def _tokenised(name: str, sources: Iterable[Source]) -> dict[str, Any]:
    """The arrays of a corpus.  Raises InputError when nothing in it tokenises."""
    files: dict[str, bytearray] = {}
    skipped = 0
    for file, text in sources:
        try:
            if not isinstance(text, str):
                raise ValueError("no text")
            files.setdefault(file, bytearray()).extend(token_classes(text))
        except ValueError:
            skipped += 1
    parts: dict[int, bytearray] = {}  # by digest: a file that is there twice counts once
    for codes in files.values():
        if codes:
            parts.setdefault(int.from_bytes(hashlib.sha256(codes).digest()[:8], "big"), codes)
    if not parts:
        raise InputError(f"corpus {name!r} holds no Python source that tokenises ({skipped} skipped)")
    return {
        "codes": np.frombuffer(b"".join(parts.values()), dtype=np.int8),
        "ends": np.cumsum([len(codes) for codes in parts.values()]),
        "digests": np.array(list(parts), dtype=np.uint64),
        "skipped": skipped,
    }


def _sources(name: str) -> tuple[list[str], Callable[[], Iterator[Source]]]:
    """What decides the corpus's tokens, and how to get its sources."""
    path = Path(name)
    if name == "code-search-net":
        return [HUB, REVISION, str(FUNCTIONS)], _code_search_net
    if name in ("stdlib", "installed"):
        paths = sysconfig.get_paths()
        folders = [Path(paths["stdlib"])] + ([Path(paths["purelib"])] if name == "installed" else [])
        files = [p for folder in folders for p in _python_files(folder)]
        return [name, *map(_stamp, files)], partial(_texts, files)
    try:
        is_folder, is_file = path.is_dir(), path.is_file()
    except (OSError, ValueError) as error:
        raise InputError(f"corpus {name[:80]!r} cannot be looked up: {error.__class__.__name__}") from None
    if path.suffix == ".parquet":
        return ["parquet", _stamp(path)], partial(_parquet, path)
    if is_folder:
        files = sorted(path.rglob("*.py"))
        return ["folder", *map(_stamp, files)], partial(_texts, files)
    if path.suffix == ".py" and is_file:
        return ["file", _stamp(path)], partial(_texts, [path])
    if path.suffix or "/" in name:
        raise InputError(f"corpus {name!r} is no folder, .py or .parquet file that is there")
    raise unknown("corpus", name, NAMED)


def _stamp(path: Path) -> str:
    try:
        stat = path.stat()
    except OSError:
        return str(path)
    return f"{path.absolute()}\0{stat.st_size}\0{stat.st_mtime_ns}"


def _python_files(folder: Path) -> list[Path]:
    found = []
    for path in folder.rglob("*.py"):
        if not _LEFT_OUT & set(path.relative_to(folder).parts[:-1]):
            found.append(path)
    return sorted(found)


def _texts(paths: Iterable[Path]) -> Iterator[Source]:
    for path in paths:
        try:
            with tokenize.open(path) as file:
                yield str(path), file.read()
        except (OSError, SyntaxError, LookupError, ValueError):  # a cookie may name no text encoding
            yield str(path), None


def _parquet(path: Path) -> Iterator[Source]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(path)
        names = file.schema_arrow.names
        if not set(COLUMNS) & set(names):
            raise InputError(
                f"corpus {str(path)!r} has no column of source: it has {', '.join(names[:8])}; "
                f"needed is one of {', '.join(COLUMNS)}"
            )
        wanted = [c for c in (*COLUMNS, *REPOSITORY, *PATH, "language") if c in names]
        batches = file.iter_batches(batch_size=2000, columns=wanted)
        yield from _functions((row for batch in batches for row in batch.to_pylist()), wanted)
    except (OSError, pa.ArrowException) as error:
        raise InputError(
            f"corpus {str(path)!r} cannot be read as Parquet: {str(error).splitlines()[0]}"
        ) from None


def _functions(rows: Iterable[Mapping[str, Any]], names: Sequence[str]) -> Iterator[Source]:
    """Rows with CodeSearchNet's columns -> Python functions with the file each comes from."""
    code = next(c for c in COLUMNS if c in names)
    repository, path = (next((c for c in some if c in names), "") for some in (REPOSITORY, PATH))
    for i, row in enumerate(rows):
        if row.get("language") in (None, "python"):
            where = row[path] if path else None
            yield str(i) if where is None else f"{row.get(repository)}\0{where}", row[code]


def _code_search_net() -> Iterator[Source]:
    try:
        from datasets import load_dataset
    except ImportError:
        raise InputError(
            "corpus 'code-search-net' needs the extra: pip install 'causegrid[code]'; or give a Parquet file of "
            "it, or use 'stdlib'"
        ) from None
    try:
        rows = iter(load_dataset(HUB, "python", revision=REVISION, split="train", streaming=True))
        first = next(rows)
        if not set(COLUMNS) & set(first):
            raise InputError(f"corpus 'code-search-net' has no column of source among {', '.join(COLUMNS)}")
        yield from _functions(chain([first], islice(rows, FUNCTIONS - 1)), list(first))
    except InputError:
        raise
    except Exception as error:
        raise InputError(
            f"corpus 'code-search-net' ({HUB}) cannot be reached: {type(error).__name__}; give a Parquet file of "
            "it, or use 'stdlib'"
        ) from error
