"""One tool in its own process: requests and answers are lines of JSON on standard input and output.

    {"do": "load", "tool": NAME, "folder": PATH, "tokens": [[...]], "threads": N}   -> {"version": "0.1.8"}
    {"do": "run", "conditions": [{"2": [3], ...}, ...], "keep": PATH or null}       -> {"seconds": [...]}

`run` times each condition alone, from its head set to the last position's logits; `keep` names a .npy file
for those logits (K, B, V), written outside the timing.  What the libraries print goes to standard error.
"""

from __future__ import annotations

import gc
import importlib
import json
import sys
import time
from importlib import metadata
from typing import Any

import numpy as np
import torch


def load(request: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The tool, and the answer."""
    torch.set_num_threads(request["threads"])
    module = importlib.import_module(f"benchmarks.competitors.{request['tool']}")
    tool = module.Tool(request["folder"], torch.tensor(request["tokens"]))
    return tool, {"version": metadata.version(module.PACKAGE)}


def run(tool: Any, request: dict[str, Any]) -> dict[str, Any]:
    """Seconds per condition."""
    seconds, kept = [], []
    for given in request["conditions"]:
        heads = {int(layer): list(members) for layer, members in given.items()}
        gc.collect()
        start = time.perf_counter()
        logits = tool.last_logits(heads)
        seconds.append(time.perf_counter() - start)
        if request["keep"]:
            kept.append(logits.detach().float().numpy().copy())
    if request["keep"]:
        np.save(request["keep"], np.stack(kept))
    return {"seconds": seconds}


def main() -> None:
    """Answer until standard input closes."""
    answers, sys.stdout = sys.stdout, sys.stderr
    tool: Any = None
    for line in sys.stdin:
        request = json.loads(line)
        if request["do"] == "load":
            tool, answer = load(request)
        else:
            answer = run(tool, request)
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
