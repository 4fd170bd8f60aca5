"""Everything that should run on a GPU, run on the pretended device and held against the CPU: a script, in a
process of its own, that prints one JSON object (what was run -> difference, or the error).

`gpu.py` is that script itself; the rest is what it does not touch.  The arguments name what to run.
"""

from __future__ import annotations

import json
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parent)]

import causegrid as cg  # noqa: E402
import pretend  # noqa: E402
import tiny  # noqa: E402
from benchmarks import gpu, steps  # noqa: E402
from causegrid import sites  # noqa: E402
from causegrid.interventions.convolution import conv_means  # noqa: E402
from causegrid.interventions.erasure import erased_behaviour  # noqa: E402
from causegrid.interventions.heads import Ablator  # noqa: E402
from causegrid.interventions.patching import patch_recovery  # noqa: E402
from causegrid.interventions.subspaces import erase_from, inlp, leace, principal  # noqa: E402
from causegrid.models import untrained, wrap  # noqa: E402
from causegrid.models.forward import fingerprint, last_logits, noise_floor  # noqa: E402
from causegrid.models.saved import load, save  # noqa: E402
from causegrid.models.training import train  # noqa: E402

pretend.register()
DEVICE = torch.device(pretend.NAME)
FAMILIES = steps.FAMILIES
CHECKS: dict[str, Callable[[], float]] = {}
Check = Callable[..., float]


def check(*names: str) -> Callable[[Check], Check]:
    """Register a check, once per name it is given (none: its own name alone)."""

    def add(fn: Check) -> Check:
        for name in names:
            CHECKS[f"{fn.__name__} {name}"] = lambda name=name: fn(name)
        if not names:
            CHECKS[fn.__name__] = fn
        return fn

    return add


def own(family: str) -> Any:
    return gpu._twins(lambda: steps.build(family, d_model=16, n_layers=2), DEVICE)


def hf(kind: str) -> Any:
    return gpu._twins(lambda: wrap(tiny.hf(kind), name=kind), DEVICE)


def ids(model: Any, rows: int = 6, length: int = 9) -> torch.Tensor:
    return torch.randint(3, model.n_tokens, (rows, length), generator=torch.Generator().manual_seed(1))


def moved(model: Any) -> float:
    """How many parameters and buffers are not on the device any more."""
    tensors = [*model.module.parameters(), *model.module.buffers()]
    return float(sum(t.device.type != pretend.NAME for t in tensors))


@check("gpt2", "gpt_neox", "llama_gqa", "olmo2", "olmoe", "mamba", "mamba2")
def self_checks(kind: str) -> float:
    """Capture, empty edits, rows, heads, restoring, lens, prefix reuse, noise floor."""
    table = sites.check(hf(kind)[1])
    return float((table["result"] == "fail").sum())


@check(*FAMILIES)
def own_self_checks(family: str) -> float:
    return float((sites.check(own(family)[1])["result"] == "fail").sum())


@check(*FAMILIES)
def trained(family: str) -> float:
    """Three steps of `cg.train` and its evaluation: the losses."""
    task = cg.task("parity")
    pair = gpu._twins(lambda: cg.model(family, task=task, seed=0, d_model=16, n_layers=2), DEVICE)
    sizes = dict(steps=3, batch=4, length=6, eval_lengths=(6, 8), n_eval=6, schedule="fixed")
    here, there = (train(model, task, **sizes) for model in pair)
    return gpu.off(there.history["loss"], here.history["loss"]) + moved(pair[1])


@check("gpt_neox", "mamba")
def forwards(kind: str) -> float:
    """Ragged prompts, left padding, fingerprint, noise floor, from tokens of either device."""
    here, there = hf(kind)
    tokens = ids(here)
    ragged = [tokens[0, :5], tokens[1], tokens[2, :5]]
    mask = torch.ones_like(tokens)
    mask[0, :3] = 0
    worst = [
        gpu.off(last_logits(there, [r.to(DEVICE) for r in ragged]), last_logits(here, ragged)),
        gpu.off(last_logits(there, ragged), last_logits(here, ragged)),
        gpu.off(fingerprint(there), fingerprint(here)),
        float(noise_floor(there, ragged).max() - noise_floor(here, ragged).max()),
    ]
    for to in (DEVICE, torch.device("cpu")):
        found = cg.capture(there, tokens.to(to), "L1.resid_post", mask=mask.to(to))["L1.resid_post"]
        wanted = cg.capture(here, tokens, "L1.resid_post", mask=mask)["L1.resid_post"]
        worst.append(gpu.off(found[:, 3:], wanted[:, 3:]))
    return max(worst)


@check(*FAMILIES)
def edits(family: str) -> float:
    """Values given on the CPU, and states edited where there are any."""
    here, there = own(family)
    tokens = ids(here)
    basis = np.linalg.qr(np.random.default_rng(0).standard_normal((16, 2)))[0]
    every = [
        cg.mean("L0.resid_post", np.full(16, 0.3)),
        cg.erase("L1.resid_pre", basis, np.full(16, 0.1)),
        cg.replace("L1.resid_post@2", torch.ones(6, 16)),
    ]
    if "state" not in [k for k, why in sites.supported(here, "edit").items() if why]:
        every.append(cg.zero("L0.state@3"))
    out = []
    for model in (here, there):
        with cg.edit(model, every):
            out.append(model(tokens))
    stored = cg.capture(here, tokens, "L1.resid_pre")["L1.resid_pre"]  # on the CPU, for either model
    for model in (here, there):
        with sites.skip_blocks(model, 1, stored):
            out.append(model(tokens))
    lens = [sites.readout(model, stored) for model in (here, there)]
    return max(gpu.off(out[1], out[0]), gpu.off(out[3], out[2]), gpu.off(lens[1], lens[0]))


@check("gru", "transformer")
def subspaces(family: str) -> float:
    """Bases, LEACE, INLP and erased behaviour, with labels and bases on the device."""
    here, there = own(family)
    tokens, labels = steps.batch(12, 10)
    labels = tokens.cumsum(1) % 3
    results = []
    for model, to in ((here, "cpu"), (there, DEVICE)):
        x = cg.capture(model, tokens, "L1.resid_post")["L1.resid_post"]
        y, rows = labels.to(to), x.flatten(0, 1)
        basis = principal(x, 2).to(to)
        eraser = leace(rows, y.flatten())
        probed = inlp(rows, y.flatten(), _fit, max_iter=1)
        kept = erase_from(rows.cpu().numpy(), basis, rows.mean(0))
        right = erased_behaviour(
            model, tokens.to(to), y, "L1.resid_post", [basis, eraser, None], rows.mean(0)
        )
        results.append((kept, eraser(x), probed.basis @ probed.basis.T, right))
    return max(gpu.off(b, a) for a, b in zip(*results, strict=True))


def _fit(x: Any, y: Any) -> Any:
    from causegrid.signatures.probes import Probe

    probe = Probe().fit(x, y)
    probe.accuracy, probe.at_baseline = 1.0, False  # type: ignore[method-assign,assignment,attr-defined]
    return probe


@check("mamba", "mamba2", "hf mamba", "hf mamba2")
def convolutions(name: str) -> float:
    pair = hf(name.removeprefix("hf ")) if name.startswith("hf ") else own(name)
    tokens = ids(pair[0])
    out = []
    for model, to in zip(pair, ("cpu", DEVICE), strict=True):
        with cg.remove_conv(model, mode="mean", tokens=tokens.to(to)):
            removed = model(tokens)
        out.append((removed, conv_means(model, tokens.to(to))[0], model(tokens)))
    return max(gpu.off(b, a) for a, b in zip(*out, strict=True)) + moved(pair[1])


@check("gpt_neox", "llama_gqa")
def patching(kind: str) -> float:
    pair = hf(kind)
    clean, corrupt = ids(pair[0], 8), ids(pair[0], 8)
    corrupt[:, 3] = (corrupt[:, 3] + 11) % 97
    scores = pair[0](clean)[:, -1] - pair[0](corrupt)[:, -1]
    first, second = scores.argmax(-1), scores.argmin(-1)  # pairs that the corruption moves far
    out = [
        patch_recovery(
            m, clean.to(to), corrupt.to(to), ["L0.resid_post@3", "L1.z[1]"], first.to(to), second.to(to)
        )
        for m, to in zip(pair, ("cpu", DEVICE), strict=True)
    ]
    return max(gpu.off(out[1][c], out[0][c]) for c in ("recovery", "low", "high"))


@check("gpt_neox", "olmoe")
def ablations(kind: str) -> float:
    """Every mode of head ablation, several lengths of prompts, stacked and one by one."""
    pair = hf(kind)
    prompts, reference = (gpu.random_prompts(97, n=6, length=7, seed=s) for s in (0, 1))
    worst = 0.0
    for mode in ("zero", "mean", "resample"):
        for stack in (1, 3):
            found = [
                Ablator(m, prompts, reference=reference, stack=stack).table(
                    [["L0H1"], ["L1H2", "L0H3"]], mode
                )
                for m in pair
            ]
            worst = max(worst, gpu.off(*(np.stack(t["values"]) for t in reversed(found))))
    return worst


@check()
def signatures() -> float:
    """Screens' attention, the generic classes, the spectrum, the lens and a probe profile."""
    from causegrid.signatures.generic import generic_classes
    from causegrid.signatures.lens import logit_lens

    pair, trained_on = hf("gpt_neox"), cg.task("s3")
    small = gpu._twins(lambda: cg.model("mamba", task=trained_on, d_model=16, n_layers=2), DEVICE)
    tokens = ids(pair[0], 8)
    tables = []
    for model, formal in zip(pair, small, strict=True):
        profile = cg.probe_profile(formal, trained_on, length=8, n_train=30, n_test=20, labels=["state"])
        tables.append(
            [
                generic_classes(model, n=8, length=32)["target_mass"],
                cg.spectrum(model, tokens)["pr"],
                logit_lens(model, tokens),
                profile["accuracy"],
            ]
        )
    return max(gpu.off(b, a) for a, b in zip(*tables, strict=True))


@check("olmoe", "mixtral")
def mixtures(kind: str) -> float:
    """Routes, their use, their changes under an edit, and every expert alone."""
    from causegrid.signatures.routing import changed, prompt_routes, routing
    from causegrid.studies.pattern.experts import expert_effects

    prompts = gpu.random_prompts(97, n=6, length=7, seed=0)
    found = []
    for model in hf(kind):
        routes = prompt_routes(model, prompts)
        cut = prompt_routes(model, prompts, edits=lambda index: [sites.zero("L0.z[1]")])
        use = routing(routes)
        effects = expert_effects(model, prompts, use)
        found.append(
            [
                use[["share", "weight"]].to_numpy(),
                np.array([one["all"] for one in changed(routes, cut).values()]),
                np.stack(effects["values"]),
            ]
        )
    return max(gpu.off(b, a) for a, b in zip(*found, strict=True))


@check("gru", "hf gpt_neox")
def saving(name: str) -> float:
    """Saved from the device, loaded onto it; the untrained twin is there too."""
    here, there = hf(name.removeprefix("hf ")) if name.startswith("hf ") else own(name)
    tokens = ids(here)
    with tempfile.TemporaryDirectory() as folder:
        save(there, folder)
        again = load(folder, device=DEVICE)
    fresh = [untrained(model, seed=3) for model in (here, there)]
    differences = [gpu.off(again(tokens), here(tokens)), gpu.off(fresh[1](tokens), fresh[0](tokens))]
    return max(differences) + moved(again) + moved(fresh[1])


@check()
def random_state() -> float:
    """`untrained` seeds the CPU's generator alone: a GPU's own stream goes on."""
    model = hf("gpt2")[0]
    before = pretend.counts.seeded
    untrained(model, seed=5)
    return float(pretend.counts.seeded - before)


def script() -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "gpu.json"
        code = gpu.main(["--device", pretend.NAME, "--quick", "--budget", "600", "--out", str(out)])
        return {"code": code, **json.loads(out.read_text())}


def main(words: list[str]) -> None:
    """Run the checks whose names begin with one of the words (`gpu.py` is the script)."""
    found: dict[str, Any] = {}
    with pretend.pretending():
        if "gpu.py" in words:
            found["gpu.py"] = script()
        for name, one in CHECKS.items():
            if name.split()[0] not in words:
                continue
            try:
                found[name] = one()
            except Exception:
                found[name] = traceback.format_exc(limit=-8)
    print(json.dumps(found))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(sys.argv[1:])
