"""Memory that this process's control group leaves it: a container's or a batch system's limit, which the system's
own figure of available memory does not know.

Version 2 has `memory.max` and `memory.current`, version 1 `memory.limit_in_bytes` and `memory.usage_in_bytes`.  A
limit of any group above counts too.  Where a container shows its own group as the root, the path that the process is
told is not there, but one of its ancestors is.  File pages that can be dropped (`inactive_file`) count as free, as
the system counts them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

GROUPS, MEMBERSHIP = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
FILES = {  # version -> limit, use, and what of the use can be dropped, by its name in memory.stat
    2: ("memory.max", "memory.current", "inactive_file"),
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}


def left_bytes(groups: Path = GROUPS, membership: Path = MEMBERSHIP) -> int | None:
    """Bytes this process may still take under the tightest limit of its groups; None where none has one."""
    found = [
        left
        for folder, version in _folders(groups, membership)
        if (left := _left(folder, version)) is not None
    ]
    return min(found, default=None)


def _folders(groups: Path, membership: Path) -> Iterator[tuple[Path, int]]:
    """(folder, version) of the groups that may limit this process's memory, itself first."""
    for line in _text(membership).splitlines():
        number, controllers, path = [*line.split(":", 2), "", ""][:3]
        if number == "0" and not controllers:
            root, version = groups, 2
        elif "memory" in controllers.split(","):
            root, version = groups / "memory", 1
        else:
            continue
        own = PurePosixPath("/", *(part for part in PurePosixPath(path).parts if part not in ("/", "..")))
        for place in (own, *own.parents):
            yield root / place.relative_to("/"), version


def _left(folder: Path, version: int) -> int | None:
    limit, use, droppable = FILES[version]
    most, used = _text(folder / limit).strip(), _text(folder / use).strip()
    if not (most.isdigit() and used.isdigit()):  # no such group, or no limit: "max"
        return None
    counts = dict(line.split(" ", 1) for line in _text(folder / "memory.stat").splitlines() if " " in line)
    cache = counts.get(droppable, "0").strip()
    return max(0, int(most) - int(used) + min(int(used), int(cache) if cache.isdigit() else 0))


def _text(file: Path) -> str:
    """The file's text, "" where there is none to read: outside Linux there are no such files."""
    try:
        return file.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
