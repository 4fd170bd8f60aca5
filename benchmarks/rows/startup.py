"""How long the door takes to open: `causegrid --help`, and importing the package, in fresh processes.

The cost is against a budget of 0.3 s, and beside it the bare interpreter, which no program can beat.
Processor time would hide waiting for the disk, so these are seconds on the clock; on a busy machine the
smallest of the rounds is the honest one, and the note says it.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence

import numpy as np

from benchmarks import timing
from benchmarks.bench import Figure, Note, Result, Say, row

BUDGET = 0.3
CALLS = {
    "causegrid --help": "from causegrid.cli import main; main(['--help'])",
    "import causegrid": "import causegrid",
}
HEAVY = "import sys; print([m for m in ('torch', 'transformers', 'numba') if m in sys.modules])"


def process(code: str) -> Callable[[], str]:
    """A call that runs `code` in a new interpreter and gives what it printed."""
    return lambda: (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    )


@row("startup", title="Opening the door")
def run(quick: bool, say: Say) -> Sequence[Result]:
    """Seconds of `--help` and of the import, each round beside a bare interpreter."""
    rounds = 2 if quick else 15
    *ours, bare = timing.interleaved(*map(process, CALLS.values()), process("pass"), rounds=rounds)
    results: list[Result] = []
    for (name, code), seconds in zip(CALLS.items(), ours, strict=True):
        loaded = process(f"{code}\n{HEAVY}")().splitlines()[-1]
        low, middle, high = np.percentile(seconds, [25, 50, 75])
        say(f"{name}: {middle:.3f} s")
        results.append(
            Figure(
                name=name,
                against=f"a budget of {BUDGET} s",
                kind="cost",
                ratio=float(middle / BUDGET),
                low=float(low / BUDGET),
                high=float(high / BUDGET),
                rounds=rounds,
                ours_s=float(middle),
                other_s=BUDGET,
                threads=1,
                target=1.0,
                difference=0.0 if loaded == "[]" else 1.0,
                tolerance=0.0,
                note=f"fastest {seconds.min():.3f} s; heavy modules loaded: {loaded}",
            )
        )
    results.append(
        Note(
            title="The bare interpreter",
            text=f"`python -c pass` took {np.median(bare):.3f} s in the same rounds ({bare.min():.3f} s at best).",
        )
    )
    return results
