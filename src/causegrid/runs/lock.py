"""One worker to a cell: a lock file that outlives no worker.

The file holds pid, a digest of the host's name, and the process' own start time.  On the same host a lock
is stale when that process is gone (or is a zombie, or its number was given to another process); elsewhere
when nobody has touched it for `STALE_S`: the holder touches it every `BEAT_S`.  Takers on one machine queue
at the folder (flock), so of those who find a stale lock one wins.  Takers on different machines cannot queue
on every file system: there a stale lock is renamed first, and put back if it turned out to be a fresh one.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import platform
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

BEAT_S = 20.0
STALE_S = 300.0
UNREADABLE_S = 10.0  # a lock without content is one being written, or its writer died
CANNOT_QUEUE = (errno.EBADF, errno.EINVAL, errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)  # as NFS answers


def _host() -> str:
    return hashlib.sha256(platform.node().encode()).hexdigest()[:12]


def _born(pid: int) -> str | None:
    """The process' start time as the kernel counts it; "" where unknown; None when no such process runs."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        fields = []
    if fields:
        return None if fields[0] in "ZX" else fields[19]
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        return ""
    return "" if not Path("/proc/self/stat").exists() else None


@contextmanager
def _queue(folder: Path) -> Iterator[None]:
    """One at a time on this machine, where the file system can lock a folder."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
        except OSError as error:
            if error.errno not in CANNOT_QUEUE:
                raise
        yield
    finally:
        os.close(handle)


def holder(path: Path) -> str:
    """Who holds the lock ("process 123"), or "" when it is free or stale."""
    try:
        text, age = path.read_text(encoding="utf-8"), time.time() - path.stat().st_mtime
    except OSError:
        return ""
    return "" if _stale(text, age) else _who(text)


def _who(text: str) -> str:
    try:
        found = json.loads(text)
        return f"process {int(found['pid'])}" + ("" if found["host"] == _host() else " on another machine")
    except (ValueError, KeyError, TypeError):
        return "another process"


def _stale(text: str, age_s: float) -> bool:
    try:
        found = json.loads(text)
        pid, host, born = int(found["pid"]), str(found["host"]), str(found["born"])
    except (ValueError, KeyError, TypeError):
        return age_s > UNREADABLE_S
    if host != _host():
        return age_s > STALE_S
    now = _born(pid)
    return now is None or bool(now and born and now != born)


class Lock:
    """`if lock.acquire(): ... finally lock.release()`; beats while it is held."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._mine = json.dumps({"pid": os.getpid(), "host": _host(), "born": _born(os.getpid()) or ""})
        self._stop = threading.Event()
        self._beat: threading.Thread | None = None

    def acquire(self, *, wait_s: float = 0.0) -> bool:
        """Take the lock, waiting at most `wait_s` seconds; False when somebody alive holds it."""
        until = time.monotonic() + wait_s
        while not self._take():
            if time.monotonic() >= until:
                return False
            time.sleep(0.05)
        self._beat = threading.Thread(target=self._keep_fresh, daemon=True)
        self._beat.start()
        return True

    def release(self) -> None:
        """Give the lock back, if it is still ours."""
        self._stop.set()
        try:
            if self.path.read_text(encoding="utf-8") == self._mine:
                self.path.unlink()
        except FileNotFoundError:
            return

    def _take(self) -> bool:
        with _queue(self.path.parent):
            return self._create() or (self._clear_stale() and self._create())

    def _create(self) -> bool:
        try:
            handle = os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
        except FileExistsError:
            return False
        try:
            os.write(handle, self._mine.encode())
        except OSError:
            self.path.unlink(missing_ok=True)
            raise
        finally:
            os.close(handle)
        return True

    def _clear_stale(self) -> bool:
        aside = self.path.with_name(f"{self.path.name}.{os.getpid()}.{time.monotonic_ns()}")
        try:
            text, age = self.path.read_text(encoding="utf-8"), time.time() - self.path.stat().st_mtime
            if not _stale(text, age):
                return False
            os.rename(self.path, aside)
        except FileNotFoundError:
            return True
        if aside.read_text(encoding="utf-8") == text:
            aside.unlink()
            return True
        if not self.path.exists():
            os.rename(aside, self.path)
        return False

    def _keep_fresh(self) -> None:
        while not self._stop.wait(BEAT_S):
            try:
                os.utime(self.path)
            except FileNotFoundError:
                return
