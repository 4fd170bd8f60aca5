"""Self-checks a user runs on their own model before believing any number from it (`causegrid check MODEL`).

Every check compares two ways to the same tensor, so a site table that points at the wrong module cannot
pass: parts against the residual, rows against full patterns, an empty edit against no edit, a skipped
prefix against the full run, the lens at the last block against the logits.  `unsupported` is an answer, with
the reason; a check that raises is a `fail` with the message.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from causegrid.models.forward import check_finite, logits, noise_floor
from causegrid.models.record import Model
from causegrid.sites.address import KINDS, Site
from causegrid.sites.capture import capture
from causegrid.sites.edit import Edit, edit, zero
from causegrid.sites.prefix import skip_blocks
from causegrid.sites.rows import full_patterns, query_rows
from causegrid.sites.table import readout, supported, table


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """`value` is the measured difference (NaN when there is none)."""

    result: str
    value: float = float("nan")
    detail: str = ""


Check = Callable[[Model, Tensor], Outcome]


def check(model: Model, tokens: Any = None) -> pd.DataFrame:
    """Run every check on `tokens` (B, L) (default: 4 random sequences of 12 tokens, seed 0).

    Columns `test, result, value, detail`; result is "ok", "fail" or "unsupported".  `value` is the largest
    difference the check measured (0 where it demands bit equality), NaN where there is none.

    Raises InputError for a family without a table and for tokens the model cannot take.
    """
    table(model)
    if tokens is None:
        generator = torch.Generator().manual_seed(0)
        tokens = torch.randint(model.n_tokens, (4, 12), generator=generator)
    ids = torch.as_tensor(tokens)
    logits(model, ids, last=True)
    rows = [("finite weights", _run(_finite, model, ids))]
    for kind, reason in supported(model).items():
        rows.append((f"capture {kind}", _captured(model, ids, kind, reason)))
    edits = supported(model, "edit")
    for kind in KINDS:
        rows.append((f"empty edit {kind}", _unchanged(model, ids, kind, edits[kind])))
    rows += [(name, _run(test, model, ids)) for name, test in _CHECKS.items()]
    return pd.DataFrame([{"test": name, **vars(outcome)} for name, outcome in rows])


def _run(test: Check, model: Model, ids: Tensor) -> Outcome:
    try:
        return test(model, ids)
    except Exception as error:
        return Outcome(result="fail", detail=f"{type(error).__name__}: {error}")


def _tolerance(model: Model, least: float) -> float:
    return max(least, 4 * torch.finfo(next(model.module.parameters()).dtype).eps)


def _within(value: float, limit: float, detail: str) -> Outcome:
    ok = value <= limit  # False for NaN
    return Outcome(result="ok" if ok else "fail", value=value, detail=f"{detail} (limit {limit:.1g})")


def _gap(a: Tensor, b: Tensor) -> float:
    return float((a.float() - b.float()).abs().max())


def _finite(model: Model, _ids: Tensor) -> Outcome:
    check_finite(model)
    return Outcome(result="ok", detail=f"{model.n_params:,} parameters")


def _captured(model: Model, ids: Tensor, kind: str, reason: str) -> Outcome:
    if reason:
        return Outcome(result="unsupported", detail=reason)

    def test(model: Model, ids: Tensor) -> Outcome:
        batch, length = ids.shape
        expected = {
            "resid_pre": (batch, length, model.d_model),
            "resid_post": (batch, length, model.d_model),
            "attn_out": (batch, length, model.d_model),
            "mlp_out": (batch, length, model.d_model),
            "pattern": (batch, model.n_heads, length),
        }.get(kind)
        found = capture(model, ids, [Site(layer, kind) for layer in range(model.n_layers)])
        for name, value in found.items():
            shape = tuple(value.shape)
            if not bool(torch.isfinite(value).all()):
                return Outcome(result="fail", detail=f"{name} is not finite")
            if shape[:2] != (batch, length) and kind != "pattern":
                return Outcome(result="fail", detail=f"{name} has shape {shape}")
            if expected is not None and shape != expected:
                return Outcome(result="fail", detail=f"{name} has shape {shape}, expected {expected}")
        return Outcome(result="ok", detail=f"{shape} in each of {model.n_layers} layers")

    return _run(test, model, ids)


def _unchanged(model: Model, ids: Tensor, kind: str, reason: str) -> Outcome:
    if reason:
        return Outcome(result="unsupported", detail=reason)

    def test(model: Model, ids: Tensor) -> Outcome:
        clean = logits(model, ids)
        spots = [_editable(layer, kind) for layer in range(model.n_layers)]
        with edit(model, [Edit(spot, lambda x: x, "nothing") for spot in spots]):
            inside = logits(model, ids)
        if kind == "state":
            scale = float(clean.abs().max())
            return _within(_gap(clean, inside) / scale, _tolerance(model, 1e-5), "run in steps, relative")
        return _same(model, ids, clean, inside, "an empty edit moved the logits", "bit for bit")

    return _run(test, model, ids)


def _same(model: Model, ids: Tensor, clean: Tensor, other: Tensor, wrong: str, right: str) -> Outcome:
    """Bit equality, on a device that has it: where two plain runs already differ (sums in no fixed order, as
    of experts on some GPUs) nothing can be equal, and no more than that difference is asked."""
    if torch.equal(clean, other):
        return Outcome(result="ok", value=0.0, detail=right)
    moved = _gap(clean, other)
    plain = max(_gap(clean, logits(model, ids)) for _ in range(4))
    if moved <= 2 * plain:
        return Outcome(result="ok", value=moved, detail=f"not bit for bit: plain runs differ by {plain:.1g}")
    return Outcome(result="fail", value=moved, detail=wrong)


def _editable(layer: int, kind: str) -> Site:
    """A state is edited at one position, everything else as a whole."""
    return Site(layer, kind, position=-2 if kind == "state" else None)


def _parts(model: Model, ids: Tensor) -> Outcome:
    parts = table(model).parts
    if not parts:
        return Outcome(
            result="unsupported", detail="the blocks of this family do not add parts to a residual"
        )
    kinds = ("resid_pre", *parts, "resid_post")
    acts = capture(model, ids, [Site(layer, k) for layer in range(model.n_layers) for k in kinds])
    worst = 0.0
    for layer in range(model.n_layers):
        total = torch.stack([acts[f"L{layer}.{k}"].float() for k in kinds[:-1]]).sum(0)
        post = acts[f"L{layer}.resid_post"].float()
        worst = max(worst, _gap(total, post) / float(post.abs().max()))
    return _within(worst, _tolerance(model, 1e-5), f"{' + '.join(kinds[:-1])} = resid_post, relative")


def _row_sums(model: Model, ids: Tensor) -> Outcome:
    if supported(model)["pattern"]:
        return Outcome(result="unsupported", detail=supported(model)["pattern"])
    rows = query_rows(model, ids)
    if bool((rows < 0).any()):
        return Outcome(result="fail", value=float(rows.min()), detail="a row has a negative entry")
    return _within(_gap(rows.sum(-1), torch.ones_like(rows[..., 0])), 1e-5, "pattern rows sum to 1")


def _row_equals_full(model: Model, ids: Tensor) -> Outcome:
    if supported(model)["pattern"]:
        return Outcome(result="unsupported", detail=supported(model)["pattern"])
    rows, full = query_rows(model, ids), full_patterns(model, ids)
    above = float(full.float().triu(1).abs().max())
    if above:
        return Outcome(result="fail", value=above, detail="a full pattern attends forwards")
    return _within(_gap(rows, full[..., -1, :]), _tolerance(model, 1e-5), "rows = last rows of full patterns")


def _zeroed(model: Model, ids: Tensor, spots: list[Site], kind: str) -> Outcome:
    """Zero the first of `spots` that the logits depend on: a head may truly write nothing."""
    reason = supported(model, "edit")[kind]
    if reason:
        return Outcome(result="unsupported", detail=reason)
    outcome = Outcome(result="fail", detail="no site to zero")
    for spot in spots:
        outcome = _zero_one(model, ids, spot)
        if outcome.result == "ok" or outcome.value:
            return outcome
    return outcome


def _zero_one(model: Model, ids: Tensor, spot: Site) -> Outcome:
    clean = logits(model, ids)
    with edit(model, zero(spot)) as log:
        ablated = logits(model, ids)
    if log.total != 1:
        return Outcome(result="fail", value=log.total, detail=f"{spot} fired {log.total} times in a forward")
    moved = _gap(clean, ablated)
    if not moved:
        return Outcome(result="fail", value=0.0, detail=f"zeroing {spot} changed no logit")
    return Outcome(result="ok", value=moved, detail=f"{spot}: one firing, logits moved")


def _zero_head(model: Model, ids: Tensor) -> Outcome:
    every = [Site(layer, "z", head) for layer in range(model.n_layers) for head in range(model.n_heads)]
    return _zeroed(model, ids, every, "z")


def _zero_mixer(model: Model, ids: Tensor) -> Outcome:
    return _zeroed(model, ids, [Site(layer, "attn_out") for layer in range(model.n_layers)], "attn_out")


def _zero_block(model: Model, ids: Tensor) -> Outcome:
    return _zeroed(model, ids, [Site(model.n_layers - 1, "resid_post")], "resid_post")


def _restored(model: Model, ids: Tensor) -> Outcome:
    clean = logits(model, ids)
    kinds = [kind for kind, reason in supported(model, "edit").items() if not reason]
    with edit(model, [zero(_editable(layer, kind)) for layer in range(model.n_layers) for kind in kinds]):
        logits(model, ids)
    after = logits(model, ids)
    detail = f"after zeroing {', '.join(kinds)}: bit for bit"
    return _same(model, ids, clean, after, "the edit left something behind", detail)


def _lens(model: Model, ids: Tensor) -> Outcome:
    last = Site(model.n_layers - 1, "resid_post")
    seen, clean = readout(model, capture(model, ids, last)[str(last)]), logits(model, ids)
    scale = float(clean.abs().max())
    return _within(
        _gap(seen, clean) / scale, _tolerance(model, 1e-5), "norm and head on the last residual, relative"
    )


def _prefix(model: Model, ids: Tensor) -> Outcome:
    clean = logits(model, ids)
    stored = capture(model, ids, [Site(layer, "resid_post") for layer in range(-1, model.n_layers)])
    for upto, residual in enumerate(stored.values()):
        with skip_blocks(model, upto, residual):
            reused = logits(model, ids)
        found = _same(model, ids, clean, reused, f"skipping up to block {upto}", "")
        if found.result == "fail" or found.value:
            return found
    return Outcome(result="ok", value=0.0, detail="every block boundary, bit for bit")


def _noise(model: Model, ids: Tensor) -> Outcome:
    floor = float(noise_floor(model, list(ids.cpu())).max())
    spread = float(logits(model, ids, last=True).std())
    return _within(
        floor / spread, max(1e-3, _tolerance(model, 0.0)), "batched against one by one, in logit sd"
    )


_CHECKS: dict[str, Check] = {
    "parts sum to residual": _parts,
    "rows sum to 1": _row_sums,
    "rows equal full patterns": _row_equals_full,
    "zero one head": _zero_head,
    "zero one mixer": _zero_mixer,
    "zero the last residual": _zero_block,
    "restored after edits": _restored,
    "lens at the last block": _lens,
    "prefix reuse": _prefix,
    "noise floor": _noise,
}
