"""Memory limits of control groups, read from folders laid out as the kernel's."""

from __future__ import annotations

import pytest
import torch

from causegrid.models import control_group, memory
from causegrid.models.control_group import left_bytes

GIB = 1 << 30


@pytest.fixture
def group(tmp_path):
    """group(path of the folder, file=text ...) writes one group; group() reads what is left to `line`'s process."""

    def write(path, **files):
        (tmp_path / "groups" / path).mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (tmp_path / "groups" / path / f"memory.{name}").write_text(f"{text}\n")

    def left(*lines):
        (tmp_path / "membership").write_text("".join(f"{line}\n" for line in lines))
        return left_bytes(tmp_path / "groups", tmp_path / "membership")

    return write, left


def test_the_tightest_limit_above_counts(group):
    write, left = group
    write(".", current=7 * GIB)  # the root has no limit file
    write("slice", max=8 * GIB, current=5 * GIB)
    write("slice/job", max="max", current=4 * GIB)
    assert left("0::/slice/job") == 3 * GIB
    write("slice/job", max=5 * GIB, current=4 * GIB)
    assert left("0::/slice/job") == GIB


def test_a_container_sees_its_own_group_as_the_root(group):
    write, left = group
    write(".", max=6 * GIB, current=2 * GIB)
    for path in ("/", "/docker/0123", "/../../other"):
        assert left(f"0::{path}") == 4 * GIB


def test_version_1(group):
    write, left = group
    write("memory", limit_in_bytes=9223372036854771712, usage_in_bytes=9 * GIB)
    write("memory/job", limit_in_bytes=4 * GIB, usage_in_bytes=GIB)
    write("cpu/job", limit_in_bytes=1, usage_in_bytes=1)
    assert left("3:cpu,cpuacct:/job", "7:memory:/job", "0::/") == 3 * GIB


def test_file_pages_that_can_be_dropped_are_free(group):
    write, left = group
    write(".", max=6 * GIB, current=5 * GIB, stat=f"anon {GIB}\ninactive_file {4 * GIB}")
    assert left("0::/") == 5 * GIB
    write("memory", limit_in_bytes=6 * GIB, usage_in_bytes=5 * GIB, stat=f"total_inactive_file {GIB}")
    assert left("7:memory:/") == 2 * GIB


def test_nothing_is_left_of_a_limit_that_is_passed(group):
    write, left = group
    write(".", max=GIB, current=2 * GIB)
    assert left("0::/") == 0


def test_without_a_limit_there_is_none(group, tmp_path):
    write, left = group
    assert left() is None and left("0::/nowhere") is None
    write(".", max="max", current=GIB)
    assert left("0::/") is None
    assert left_bytes(tmp_path / "no", tmp_path / "such") is None


def test_available_memory_is_no_more_than_the_limit_leaves(monkeypatch):
    cpu = torch.device("cpu")
    monkeypatch.setattr(control_group, "left_bytes", lambda: None)
    system = memory.available_bytes(cpu)
    monkeypatch.setattr(control_group, "left_bytes", lambda: 12345)
    assert memory.available_bytes(cpu) == 12345
    monkeypatch.setattr(control_group, "left_bytes", lambda: 1 << 60)
    found = memory.available_bytes(cpu)
    assert found == (1 << 60 if system is None else pytest.approx(system, rel=0.5))
