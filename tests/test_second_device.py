"""The same code on another device: everything is run on `pretend` (see `pretend.py`) and equals the CPU.

In processes of their own, since registering a device is for good.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
TOLERANCE = 1e-5
WORDS = {
    "script": ["gpu.py"],
    "self-checks": ["self_checks", "own_self_checks"],
    "models": ["trained", "forwards", "saving", "random_state"],
    "sites": ["edits", "convolutions", "subspaces", "patching"],
    "sweeps and signatures": ["ablations", "signatures", "mixtures"],
}

RULES = """
import numpy as np, torch, pretend

def refused(call):
    try:
        call()
    except RuntimeError:
        return True
    return False

with pretend.pretending() as counts:
    here, there = torch.ones(2, 3), torch.ones(2, 3, device="pretend")
    mixed = [
        lambda: there + here, lambda: here @ there.T, lambda: torch.cat([here, there]), lambda: here.add_(there),
        lambda: torch.where(there > 0, there, here), lambda: there.gather(1, torch.zeros(2, 1, dtype=torch.long)),
        lambda: torch.nn.functional.embedding(torch.tensor([0]), there), lambda: torch.equal(here, there),
        lambda: here[torch.tensor([0], device="pretend")],
        lambda: there.__setitem__((slice(None), [0, 1]), torch.ones(2, 2)),
        lambda: there.numpy(), lambda: np.asarray(there),
        lambda: torch.randn(2, device="pretend", generator=torch.Generator()),
    ]
    assert all(refused(call) for call in mixed), [i for i, call in enumerate(mixed) if not refused(call)]
    counts.__init__()
    assert (there + torch.tensor(1.0)).device.type == "pretend"  # a CPU number is no mistake
    assert there[torch.tensor([1])].device.type == "pretend"  # nor are CPU indices
    assert (counts.to_host, counts.to_device) == (0, 0)
    assert float(there.sum()) == 6 and there.cpu().numpy().sum() == 6 and there.tolist() == [[1.0] * 3] * 2
    assert counts.to_host == 3, counts
    there[:] = here.to("pretend") * 2
    assert counts.to_device == 1 and there.sum().item() == 12
    torch.manual_seed(0)
    assert counts.seeded == 1
"""


def python(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, cwd=HERE, env=_environment()
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def _environment() -> dict[str, str]:
    import os

    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(HERE)}


def test_the_pretended_device_refuses_what_a_gpu_refuses() -> None:
    python("-c", RULES)


@pytest.mark.parametrize("what", WORDS)
def test_it_runs_on_another_device_and_equals_the_cpu(what: str) -> None:
    found: dict[str, Any] = json.loads(python("pretend_checks.py", *WORDS[what]).splitlines()[-1])
    assert found and {name.split()[0] for name in found} == set(WORDS[what])
    if what == "script":
        one = found["gpu.py"]
        assert one["code"] == 0 and one["machine"]["device"] == "pretend", one["unequal"]
        assert 0 < max(row["difference"] for row in one["equal"]) < TOLERANCE  # really another way round
        assert not one["left_out"] and len(one["times"]) == 11
        return
    wrong = {name: value for name, value in found.items() if isinstance(value, str) or not value <= TOLERANCE}
    assert not wrong, "\n".join(f"{name}: {value}" for name, value in wrong.items())
