"""A process for every cell, N at a time, on this machine.

Why a process each and not a pool: loky and concurrent.futures lose all pending cells when one worker is
killed; here that cell fails, with the signal's name, and the grid goes on.  Workers come from a fork server
that has loaded torch once (spawn where there is none).  Threads are pinned in each worker: two OpenMP pools
on the same cores run several times slower than one.  A worker ends with its parent, ignores Ctrl-C (the
parent tells it) and takes SIGTERM as an interrupt, so its cell stays resumable.
The caller's script is not imported by workers: it needs no `if __name__ == "__main__"`.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
import types
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from causegrid.errors import InputError
from causegrid.runs.engines.base import Engine, Finished, Options, Report, engines
from causegrid.runs.execute import execute, give_up

START_S = 300.0  # a worker that has not started by then, beyond its timeout, never will
GRACE_S = 10.0  # from SIGTERM to SIGKILL when the run is interrupted
TELL_EVERY_S = 0.1
PRELOAD = ("torch", "pandas", "causegrid.runs.execute")  # loaded once, for all workers
POOLS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")


@engines.register("local")
class Local(Engine):
    """a process for every cell, N at a time, threads pinned, on this machine"""

    def check(self, options: Options) -> None:
        module, _, name = options.code.partition(":")
        if module == "__main__" or "<locals>" in name:
            raise InputError(
                f"workers cannot import the study {options.code!r}: move it to a module, "
                "or use engine 'inline'"
            )

    def fill(
        self, folder: Path, ids: Sequence[str], options: Options, report: Report
    ) -> Generator[Finished, None, None]:
        slots = max(1, min(options.workers, len(ids)))
        threads = options.threads or max(1, _cores() // slots)
        methods = multiprocessing.get_all_start_methods()
        mp = multiprocessing.get_context("forkserver" if "forkserver" in methods else "spawn")
        mp.set_forkserver_preload([*PRELOAD, options.code.partition(":")[0]])
        waiting, active = deque(ids), list[_Slot]()
        try:
            while waiting or active:
                while waiting and len(active) < slots:
                    active.append(_start(mp, folder, waiting.popleft(), options, threads))
                _listen(active, report)
                for slot in [s for s in active if s.over]:
                    finished = _close(slot, folder, options)  # first: an interrupt must find it in `active`
                    active.remove(slot)
                    yield finished
        finally:
            _end_all(active, folder)


@dataclass(kw_only=True)
class _Slot:
    id: str
    process: Any
    pipe: Connection
    timeout: float
    deadline: float  # on the clock of time.monotonic()
    open: bool = True
    finished: Finished | None = None
    late: bool = False

    @property
    def over(self) -> bool:
        return self.late or not self.process.is_alive()


def _start(mp: Any, folder: Path, id: str, options: Options, threads: int) -> _Slot:
    ours, theirs = mp.Pipe()
    process = mp.Process(target=_work, args=(theirs, folder, id, options, threads), name=f"cell {id}")
    with _pools(threads), _without_main():
        process.start()
    theirs.close()
    timeout = options.timeout or float("inf")
    return _Slot(
        id=id, process=process, pipe=ours, timeout=timeout, deadline=time.monotonic() + START_S + timeout
    )


def _listen(active: Sequence[_Slot], report: Report) -> None:
    """Wait for news: messages, ended workers, or the next deadline."""
    pipes = {slot.pipe: slot for slot in active if slot.open}
    left = min(slot.deadline for slot in active) - time.monotonic()
    ready = wait([*pipes, *(s.process.sentinel for s in active)], timeout=min(max(left, 0.0), 60.0))
    for pipe in ready:
        if isinstance(pipe, Connection):
            _read(pipes[pipe], report)
    for slot in active:
        slot.late = time.monotonic() >= slot.deadline


def _read(slot: _Slot, report: Report | None) -> None:
    try:
        while slot.open and slot.pipe.poll():
            message = slot.pipe.recv()
            if message is None:
                slot.deadline = time.monotonic() + slot.timeout
            elif isinstance(message, Finished):
                slot.finished = message
                slot.deadline = time.monotonic() + GRACE_S  # to leave
            elif report is not None:
                report(slot.id, *message)
    except (EOFError, OSError):
        slot.open = False


def _close(slot: _Slot, folder: Path, options: Options) -> Finished:
    if slot.late and slot.process.is_alive():
        slot.process.kill()
    slot.process.join()
    _read(slot, None)
    slot.pipe.close()
    slot.open = False
    if slot.finished is not None:
        return slot.finished
    why = f"timed out after {options.timeout:g} s" if slot.late else _reason(slot.process.exitcode)
    return give_up(folder, slot.id, "failed", why, since=options.started)


def _reason(code: int | None) -> str:
    if code is not None and code < 0:
        name = signal.Signals(-code).name
        memory = "; the machine may have run out of memory" if name == "SIGKILL" else ""
        return f"the worker was killed by {name}{memory}"
    return f"the worker ended without a result (exit code {code})"


def _end_all(active: Sequence[_Slot], folder: Path) -> None:
    """The run was interrupted: ask, wait, kill; cells stay resumable."""
    for slot in active:
        slot.process.terminate()
    until = time.monotonic() + GRACE_S
    for slot in active:
        slot.process.join(max(0.0, until - time.monotonic()))
        if slot.process.is_alive():
            slot.process.kill()
            slot.process.join()
        _read(slot, None)
        if slot.finished is None:
            give_up(folder, slot.id, "interrupted", "interrupted")


# --- in the worker -------------------------------------------------------------------------------------


def _work(pipe: Connection, folder: Path, id: str, options: Options, threads: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _interrupt)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.dup2(2, 1)  # stdout belongs to the parent's result
    _pin(threads)
    pipe.send(None)  # the cell's time starts now, not while the fork server loads torch
    told = 0.0

    def report(_: str, done: int, total: int, what: str) -> None:
        nonlocal told
        if done < total and what and time.monotonic() - told < TELL_EVERY_S:
            return
        told = time.monotonic() if what else 0.0  # a new stage is always heard
        pipe.send((done, total, what))

    try:
        finished = execute(folder, id, options, report)
    except KeyboardInterrupt:
        finished = Finished(id=id, how="interrupted", line="interrupted")
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with suppress(
        BrokenPipeError
    ):  # the run was interrupted and is gone: the cell's folder says how it ended
        pipe.send(finished)
    pipe.close()


def _interrupt(signum: int, frame: object) -> None:
    raise KeyboardInterrupt


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _pin(threads: int) -> None:
    """`threads` for every pool: by environment for libraries not loaded yet, by call for those that are."""
    os.environ.update({name: str(threads) for name in POOLS})
    torch, numba = sys.modules.get("torch"), sys.modules.get("numba")
    if torch is not None:
        torch.set_num_threads(threads)
    if numba is not None:
        numba.set_num_threads(min(threads, numba.config.NUMBA_NUM_THREADS))
    if "numpy" in sys.modules:
        from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

        threadpool_limits(threads)


# --- around the start of a worker ------------------------------------------------------------------------


@contextmanager
def _pools(threads: int) -> Iterator[None]:
    """The pools' environment, for a fork server or worker that starts now."""
    before = {name: os.environ.get(name) for name in POOLS}
    os.environ.update({name: str(threads) for name in POOLS})
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def _without_main() -> Iterator[None]:
    """multiprocessing imports the caller's script in every worker; ours need only their study."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
