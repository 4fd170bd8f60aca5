"""Files that are either the old ones or the new ones, whatever kills the process.

Everything is written aside in the same folder, flushed to the disk, then `os.replace`d.  JSON is strict:
numpy scalars become numbers, NaN and infinities become null (a browser cannot read them), anything else that
JSON does not know is an error that names the key.  Tables are Parquet through pandas, without an index.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from causegrid.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

CORRUPT = ".corrupt"
FULL = (errno.ENOSPC, errno.EDQUOT)


def plain(value: Any, where: str = "value") -> Any:
    """A JSON-able copy.  Raises TypeError naming the key (`where`) that JSON cannot hold."""
    if isinstance(value, Mapping):
        return {str(k): plain(v, f"{where}.{k}") for k, v in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        items = sorted(value, key=str) if isinstance(value, (set, frozenset)) else value
        return [plain(v, f"{where}[{i}]") for i, v in enumerate(items)]
    if hasattr(value, "tolist"):  # numpy scalars and arrays, torch tensors
        return plain(value.tolist(), where)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    raise TypeError(
        f"{where} is a {type(value).__name__}: JSON holds numbers, strings, lists and mappings only"
    )


def write_aside(path: Path, write: Callable[[Path], None]) -> None:
    """Call `write(temporary path)`, flush, and put that file in `path`'s place; a failure leaves nothing."""
    aside = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.tmp")
    try:
        write(aside)
        flush(aside)
        os.replace(aside, path)
        flush(path.parent)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise


def write_json(path: Path, value: Any) -> None:
    """Write strict JSON, atomically."""
    text = json.dumps(plain(value, path.stem), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    write_text(path, text)


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text, atomically."""

    def write(aside: Path) -> None:
        aside.write_text(text, encoding="utf-8")

    write_aside(path, write)


def write_table(path: Path, table: pd.DataFrame) -> None:
    """Write a tidy table as Parquet (zstd: learning curves are a third smaller than by the default), atomically."""
    write_aside(path, lambda aside: table.to_parquet(aside, index=False, compression="zstd"))


def read_json(path: Path) -> tuple[dict[str, Any] | None, str]:
    """(the mapping, "") or (None, why not); a missing file is (None, "")."""
    value, why = read_value(path)
    if value is None or isinstance(value, dict):
        return value, why
    return None, f"{path.name} is not a JSON mapping"


def read_value(path: Path) -> tuple[Any, str]:
    """(any JSON value, "") or (None, why not); a missing file is (None, "")."""
    try:
        return json.loads(path.read_text(encoding="utf-8")), ""
    except FileNotFoundError:
        return None, ""
    except (OSError, ValueError) as error:
        return None, f"{path.name} cannot be read ({first_line(error)})"


def flush(path: Path) -> None:
    """fsync a file or a folder."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (
            errno.EINVAL,
            errno.ENOTSUP,
            errno.EBADF,
        ):  # file systems that cannot flush folders
            raise
    finally:
        os.close(handle)


def fingerprint(path: Path) -> dict[str, Any]:
    """`bytes` and `sha256` of a file."""
    with path.open("rb") as file:
        return {"bytes": path.stat().st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}


def damage(path: Path, expected: Mapping[str, Any], *, verify: bool) -> str:
    """Why the file is not what was written, or "".  Size and Parquet footer; with `verify` every byte."""
    try:
        size = path.stat().st_size
    except OSError:
        return f"{path.name} is missing"
    if size != expected.get("bytes"):
        return f"{path.name} is damaged ({size} bytes, {expected.get('bytes')} were written)"
    if path.suffix == ".parquet":
        with path.open("rb") as file:
            head = file.read(4)
            file.seek(-4, os.SEEK_END)
            if head != b"PAR1" or file.read(4) != b"PAR1":
                return f"{path.name} is damaged (not a whole Parquet file)"
    if verify and fingerprint(path)["sha256"] != expected.get("sha256"):
        return f"{path.name} is damaged (its bytes changed since they were written)"
    return ""


def keep_corrupt(folder: Path, name: str) -> None:
    """Rename the damaged file `name` to `<name>.corrupt` in `folder`, if it is there."""
    if (folder / name).exists():
        os.replace(folder / name, folder / f"{name.replace('/', '-')}{CORRUPT}")


def is_full(error: BaseException) -> bool:
    """Whether the disk (or the quota) was full; some writers say so in words only."""
    if isinstance(error, OSError) and error.errno in FULL:
        return True
    return "No space left on device" in str(error)


def first_line(error: BaseException) -> str:
    """The error's first line, or its type when it says nothing."""
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__


def no_folder(path: Path, error: OSError) -> InputError:
    """The InputError for a folder that cannot be written, with the reason."""
    reason = "the disk is full" if is_full(error) else (error.strerror or first_line(error)).lower()
    return InputError(f"cannot write {str(path)!r}: {reason}; choose a folder you can write to with --out")
