"""One prepared script for a machine with a GPU: is the device equal to the CPU, and how fast is it?

    python benchmarks/gpu.py [--device cuda] [--out FILE.json] [--budget 280] [--quick]

First equality, with TF32 off everywhere: logits and gradients of the five families, the planner's head
ablations, query rows, erasure bases and probes, and the self-checks of `causegrid check` on the device.  Each
figure is the largest difference from the CPU over the largest CPU value, and may be at most 1e-3.  Then
times, with torch's own precision settings: one training step per family at its natural size, and every
single head of a GPT-NeoX of Pythia-160M's size against a loop of plain hooks with full logits, interleaved,
the device waited for.  Models have random weights: speed and equality do not depend on their values.

It needs torch, transformers, numba and pandas beside this checkout, no network and no installation.  Parts
that do not fit what is left of the budget (seconds) are left out by name.  Exit 0 equal, 1 not equal, 2 bad
input or no such device.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from benchmarks import steps  # noqa: E402
from benchmarks.competitors.plain import Plain  # noqa: E402
from benchmarks.prompts import random_prompts  # noqa: E402
from benchmarks.timing import interleaved, ratio  # noqa: E402
from causegrid.errors import InputError  # noqa: E402
from causegrid.headnames import head  # noqa: E402
from causegrid.interventions.erasure import erased_behaviour  # noqa: E402
from causegrid.interventions.heads import Ablator  # noqa: E402
from causegrid.interventions.metrics import METRICS  # noqa: E402
from causegrid.interventions.subspaces import principal, probe_directions  # noqa: E402
from causegrid.models.pretrained import as_device, wrap  # noqa: E402
from causegrid.models.record import Model  # noqa: E402
from causegrid.signatures.probes import Probe  # noqa: E402
from causegrid.sites import capture, check, query_rows  # noqa: E402
from causegrid.tasks import PromptSet  # noqa: E402

TOLERANCE = 1e-3
SMALL = dict(layers=2, heads=4, width=64, vocabulary=211)
PYTHIA_160M = dict(layers=12, heads=12, width=768, vocabulary=50_304)
KERNELS = ("mamba-ssm", "causal-conv1d")
Row = dict[str, Any]
Pair = tuple[Model, Model]  # the same weights on the CPU and on the device


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda", help="cuda, cuda:1, cpu, ...")
    parser.add_argument("--out", type=Path, default=None, help="write the results here as JSON")
    parser.add_argument("--budget", type=float, default=280.0, help="seconds for everything")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that the script works")
    given = parser.parse_args(arguments)
    start = time.perf_counter()
    try:
        device = as_device(given.device)
    except InputError as error:
        print(f"gpu.py: {error}", file=sys.stderr)
        return 2
    if given.budget <= 0:
        print(f"gpu.py: a budget of {given.budget} s leaves no time: give more than 0", file=sys.stderr)
        return 2

    def left() -> float:
        return given.budget - (time.perf_counter() - start)

    about = machine(device)
    print("  ".join(f"{name}: {value}" for name, value in about.items()), flush=True)
    equal, late = equalities(device, left)
    timed, later = times(device, left, quick=given.quick)
    bad = [row["name"] for row in equal if not row["equal"]]
    found = {
        "machine": about,
        "quick": given.quick,
        "seconds": round(time.perf_counter() - start, 2),
        "equal": equal,
        "times": timed,
        "left_out": late + later,
        "unequal": bad,
    }
    if given.out is not None:
        given.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    show(found)
    return 1 if bad else 0


def machine(device: torch.device) -> dict[str, Any]:
    """The device by name, versions, and which of the fast kernels are installed."""

    def version(package: str) -> str:
        try:
            return importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            return "not installed"

    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    packages = ("torch", "transformers", *KERNELS)
    return {
        "device": str(device),
        "name": name,
        "cuda": torch.version.cuda,
        **{p: version(p) for p in packages},
    }


# --- equality ------------------------------------------------------------------------------------------


def equalities(device: torch.device, left: Callable[[], float]) -> tuple[list[Row], list[str]]:
    """Every comparison with the CPU, and the names of those the budget left out."""
    parts: dict[str, Callable[[torch.device], Iterator[tuple[str, float]]]] = {
        **{family: lambda d, family=family: _family(family, d) for family in steps.FAMILIES},
        **{kind: lambda d, kind=kind: _language_model(kind, d) for kind in ("gpt_neox", "llama")},
        "readings": _readings,
    }
    precise = (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    rows: list[Row] = []
    late: list[str] = []
    try:
        for name, part in parts.items():
            if left() <= 0:
                late.append(f"equality of {name}")
                continue
            for what, difference in part(device):
                within = bool(difference <= TOLERANCE)  # False for NaN
                rows.append({"name": what, "difference": difference, "tolerance": TOLERANCE, "equal": within})
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = precise
    return rows, late


def off(found: Any, wanted: Any) -> float:
    """Largest difference over the largest wanted value; tensors of any device, or arrays."""
    a, b = (
        np.asarray(v.detach().cpu() if isinstance(v, torch.Tensor) else v, dtype=float)
        for v in (found, wanted)
    )
    if a.shape != b.shape:
        raise ValueError(f"results of shapes {a.shape} and {b.shape} cannot be compared")
    return float(np.abs(a - b).max() / max(np.abs(b).max(), 1e-30))


def _family(family: str, device: torch.device) -> Iterator[tuple[str, float]]:
    """Logits, and gradients of the loss in training mode, of a small model of the family."""
    here, there = _twins(lambda: steps.build(family, d_model=64, n_layers=2), device)
    tokens, labels = steps.batch(8, 40)
    yield f"{family}: logits", off(there(tokens), here(tokens))
    wanted = steps.gradients(here.module, tokens, labels)
    found = steps.gradients(there.module, tokens.to(device), labels.to(device))
    yield f"{family}: gradients", steps.furthest({name: g.cpu() for name, g in found.items()}, wanted)


def _language_model(kind: str, device: torch.device) -> Iterator[tuple[str, float]]:
    """Effects of every single head in two modes, query rows, and the self-checks."""
    pair = _twins(lambda: language_model(kind, **SMALL), device)
    prompts, reference = (random_prompts(SMALL["vocabulary"], n=12, length=9, seed=s) for s in (0, 1))
    singles = [[f"L{x}H{h}"] for x in range(SMALL["layers"]) for h in range(SMALL["heads"])]
    for mode in ("zero", "mean"):
        wanted, found = (_effects(model, prompts, reference, singles, mode) for model in pair)
        yield f"{kind}: effects of single heads, {mode}", off(found, wanted)
    tokens = np.stack(prompts.tokens)
    rows = [query_rows(model, tokens) for model in pair]
    yield f"{kind}: query rows", off(rows[1], rows[0])
    table = check(pair[1], tokens)
    for test in table[table["result"] == "fail"].to_dict("records"):
        print(f"  {kind}: self-check {test['test']!r} fails on the device: {test['detail']}")
    yield f"{kind}: self-checks that fail", float((table["result"] == "fail").sum())


def _effects(model: Model, prompts: PromptSet, reference: PromptSet, groups: Any, mode: Any) -> Any:
    """Ablated - clean of the smooth metrics, (groups, prompts, 2); ranks may flip where two logits tie."""
    ablator = Ablator(model, prompts, reference=reference)
    clean = ablator.planner.clean
    smooth = [METRICS.index(name) for name in ("logit_diff", "answer_prob")]
    runs = ablator.planner.run(ablator.conditions(groups, mode))
    return np.stack([(values - clean)[:, smooth] for _, values in runs])


def _readings(device: torch.device) -> Iterator[tuple[str, float]]:
    """Block outputs, what is read from them, and behaviour with the leading components erased."""
    pair = _twins(lambda: steps.build("mamba", d_model=32, n_layers=2), device)
    tokens, _ = steps.batch(24, 20)
    labels = tokens.cumsum(1) % 3
    acts = [capture(model, tokens, "L1.resid_post")["L1.resid_post"] for model in pair]  # (B, L, d) each
    yield "block outputs", off(acts[1], acts[0])
    bases = [principal(x, 2) for x in acts]
    yield "principal components", off(bases[1] @ bases[1].T, bases[0] @ bases[0].T)
    probes = [Probe().fit(x.flatten(0, 1), labels.flatten()) for x in acts]
    yield "probe scores", off(*(p.scores(acts[0].flatten(0, 1)) for p in reversed(probes)))
    spans = [probe_directions(p.weight, 2) for p in probes]
    yield "probe directions", off(spans[1] @ spans[1].T, spans[0] @ spans[0].T)
    wanted, found = (
        erased_behaviour(m, tokens, labels, "L1.resid_post", [q], x.flatten(0, 1).mean(0))
        for m, q, x in zip(pair, bases, acts, strict=True)
    )
    yield "accuracy with components erased", float(np.abs(found.mean() - wanted.mean()))


# --- times ---------------------------------------------------------------------------------------------


def times(device: torch.device, left: Callable[[], float], *, quick: bool) -> tuple[list[Row], list[str]]:
    """Seconds of training steps and of the head sweep, and the names of what the budget left out."""
    rows: list[Row] = []
    late: list[str] = []

    def measured(name: str, rounds: int, make: Callable[[], tuple[Row, list[Callable[[], Any]]]]) -> None:
        if left() <= 0:
            late.append(name)
            return
        facts, calls = make()
        before = time.perf_counter()
        for call in calls:  # warm-up, and what a round costs
            call()
        cost = time.perf_counter() - before
        fit = min(rounds, int(left() / cost))
        if fit < 1:
            late.append(f"{name} (one round takes {cost:.1f} s)")
            return
        seconds = interleaved(*calls, rounds=fit, warmup=0)
        row = {"name": name, "rounds": fit, "seconds": float(np.median(seconds[0])), **facts}
        if len(seconds) > 1:
            middle, low, high = ratio(seconds[1], seconds[0])
            row |= {
                "other_seconds": float(np.median(seconds[1])),
                "speedup": middle,
                "low": low,
                "high": high,
            }
        rows.append(row)

    sizes = dict(d_model=16, n_layers=1) if quick else {}
    for batch in (4, 8) if quick else (64, 1024):
        for family in steps.FAMILIES:
            name = f"training step, {family}, {batch} x 40"
            measured(name, 2 if quick else 15, lambda f=family, b=batch: _step(f, b, device, sizes))
    measured(
        "every single head against plain hooks with full logits",
        2 if quick else 5,
        lambda: _sweep(device, SMALL if quick else PYTHIA_160M, quick=quick),
    )
    return rows, late


def _step(
    family: str, batch: int, device: torch.device, sizes: dict[str, int]
) -> tuple[Row, list[Callable[[], Any]]]:
    model = steps.build(family, **sizes)
    tokens, labels = (t.to(device) for t in steps.batch(batch, 40))
    step = steps.training_step(model.module.to(device), tokens, labels)
    return {"parameters": model.n_params, "tokens": tokens.numel()}, [_waited(step, device)]


def _sweep(
    device: torch.device, sizes: dict[str, int], *, quick: bool
) -> tuple[Row, list[Callable[[], Any]]]:
    model = language_model("gpt_neox", **sizes)
    model.module.to(device)
    prompts = random_prompts(sizes["vocabulary"], n=8 if quick else 64, length=14)
    heads = [f"L{x}H{h}" for x in range(sizes["layers"]) for h in range(sizes["heads"])]
    plain = Plain(model.module, torch.from_numpy(np.stack(prompts.tokens)).to(device))

    def ours() -> None:
        ablator = Ablator(model, prompts)  # its own planner: nothing is remembered between rounds
        for _ in ablator.planner.run(ablator.conditions([[h] for h in heads], "zero")):
            pass

    def loop() -> None:
        for name in heads:
            layer, index = head(name)
            plain.last_logits({layer: [index]}).float().log_softmax(-1).cpu()

    facts = {"heads": len(heads), "prompts": len(prompts), "parameters": model.n_params}
    return facts, [_waited(ours, device), _waited(loop, device)]


def _waited(call: Callable[[], Any], device: torch.device) -> Callable[[], None]:
    """The call with the device idle before and after it."""

    def run() -> None:
        _wait(device)
        call()
        _wait(device)

    return run


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


# --- models and prompts --------------------------------------------------------------------------------


def _twins(build: Callable[[], Model], device: torch.device) -> Pair:
    here, there = build(), build()
    there.module.load_state_dict(here.module.state_dict())
    there.module.to(device)
    return here, there


def language_model(kind: str, *, layers: int, heads: int, width: int, vocabulary: int) -> Model:
    """A transformers model of these sizes with random weights (Llama with half as many key-value heads)."""
    from transformers import AutoConfig, AutoModelForCausalLM

    grouped = {"num_key_value_heads": heads // 2} if kind == "llama" else {}
    config = AutoConfig.for_model(
        kind,
        vocab_size=vocabulary,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=4 * width,
        max_position_embeddings=128,
        bos_token_id=0,
        eos_token_id=0,
        **grouped,
    )
    return wrap(AutoModelForCausalLM.from_config(config).eval(), name=f"random {kind}")


def show(found: dict[str, Any]) -> None:
    """A small table of both halves."""
    print(f"\n{'equal to the CPU':<58}{'difference':>12}  (limit {TOLERANCE:g})")
    for row in found["equal"]:
        print(f"{row['name']:<58}{row['difference']:>12.1e}  {'' if row['equal'] else 'NOT EQUAL'}")
    print(f"\n{'times':<58}{'ms':>12}")
    for row in found["times"]:
        extra = f"  {row['speedup']:.2f} x faster" if "speedup" in row else ""
        print(f"{row['name']:<58}{1e3 * row['seconds']:>12.2f}{extra}")
    for name in found["left_out"]:
        print(f"left out, the budget is used up: {name}")
    if found["unequal"]:
        print(f"NOT EQUAL: {', '.join(found['unequal'])}")
    print(f"{found['seconds']:.0f} s in all")


if __name__ == "__main__":
    sys.exit(main())
