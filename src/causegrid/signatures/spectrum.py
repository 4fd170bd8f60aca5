"""Participation ratio of a head's output: how many directions it writes at the query position.

Entropy effective rank of the *uncentred* matrix of outputs (MEASURES 2.2; arXiv 2605.24059).  The shares
p_i = s_i^2 / sum s^2 are the eigenvalues of the Gram matrix, taken in float64: exact to about 1e-12 for
float32 data, where a float32 SVD is exact to about 1e-6, and several times cheaper on tall matrices.
It ranks how specialised heads are in general; it is not task-specific and gates nothing.

Over training checkpoints the same prompts and the same halves of them are used at each one, so that a half has an
integral of its own and the integral's interval is the halves' spread, as the ratio's is.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from causegrid.errors import InputError, unknown
from causegrid.models.heads import require_attention
from causegrid.models.record import Model
from causegrid.signatures.batches import Prompts, equal_length_batches, token_lists

Kind = Literal["entropy", "moment"]
KINDS = ("entropy", "moment")


def energy_shares(m: Any) -> Tensor:
    """m (..., N, d) -> p (..., min(N, d)), float64 on the CPU: squared singular values over their sum.

    NaN where the matrix is all zero.  Raises InputError when a value is not finite or an axis is empty.
    """
    given = torch.as_tensor(m).detach().to("cpu", torch.float64)
    if given.dim() < 2 or 0 in given.shape:
        raise InputError(f"participation ratio of shape {tuple(given.shape)}: a matrix (N, d) is needed")
    if not bool(torch.isfinite(given).all()):
        raise InputError("participation ratio of a matrix with values that are not finite")
    given = given / given.abs().amax(dim=(-2, -1), keepdim=True).clamp(min=1e-300)
    tall = given.shape[-2] >= given.shape[-1]
    gram = given.mT @ given if tall else given @ given.mT  # (..., k, k), k = min(N, d)
    squared = torch.linalg.eigvalsh(gram).clamp(min=0)
    shares: Tensor = squared / squared.sum(dim=-1, keepdim=True)
    return shares


def from_shares(p: Tensor, kind: Kind) -> Tensor:
    """p (..., k) -> participation ratio (...)."""
    if kind == "moment":
        return 1 / p.square().sum(dim=-1)
    entropy: Tensor = torch.special.entr(p).sum(dim=-1)
    return entropy.exp()


def participation_ratio(m: Any, kind: Kind = "entropy") -> Any:
    """Participation ratio of m (N, d): a float; of (..., N, d): an array (...).

    `entropy`: exp(-sum p ln p); `moment`: (sum s^2)^2 / sum s^4; p = s^2 / sum s^2, not centred.
    1 <= PR <= min(N, d); NaN for an all-zero matrix.  Raises InputError for bad kinds and non-finite values.
    """
    if kind not in KINDS:
        raise unknown("participation ratio kind", kind, KINDS)
    ratio = from_shares(energy_shares(m), kind)
    return float(ratio) if ratio.dim() == 0 else ratio.numpy()


def head_outputs(model: Model, prompts: Prompts, *, batch_size: int = 32) -> NDArray[np.float32]:
    """Every head's output z at each prompt's query position: (n_layers, B, H, d_h), float32.

    Raises InputError when the model has no attention heads.
    """
    require_attention(model)
    from causegrid.sites.capture import capture

    lists = token_lists(prompts)
    where = [f"L{layer}.z@-1" for layer in range(model.n_layers)]
    outputs: NDArray[np.float32] | None = None
    for index, tokens in equal_length_batches(lists, batch_size):
        found = capture(model, tokens, where)
        got = torch.stack([found[site] for site in where]).float().cpu().numpy()  # (n_layers, b, H, d_h)
        if outputs is None:
            outputs = np.empty((got.shape[0], len(lists), *got.shape[2:]), dtype=np.float32)
        outputs[:, index] = got
    assert outputs is not None
    return outputs


def spectrum(
    model: Model, prompts: Prompts, *, n_subsamples: int = 20, seed: int = 0, batch_size: int = 32
) -> pd.DataFrame:
    """Participation ratio of every head over the prompts, at the query position (MEASURES 2.2).

    Columns `layer, head, pr, low, high, moment, mean, n`.  `mean` is over `n_subsamples` random halves of
    the prompts (drawn without replacement; fewer prompts give a smaller ratio); `low`, `high` are the 2.5 and
    97.5 percentiles of the halves' spread around their own mean, set about `pr`.
    Raises InputError for a model without heads, fewer than 4 prompts, or fewer than 2 sub-samples.
    """
    table = _with_halves(model, prompts, n_subsamples=n_subsamples, seed=seed, batch_size=batch_size)
    return table.drop(columns="halves")


def _with_halves(
    model: Model, prompts: Prompts, *, n_subsamples: int, seed: int, batch_size: int = 32
) -> pd.DataFrame:
    """`spectrum` with `halves`, the list of every sub-sample's ratio."""
    if n_subsamples < 2:
        raise InputError(f"n_subsamples is {n_subsamples}: at least 2 are needed for a spread")
    z = head_outputs(model, prompts, batch_size=batch_size)  # (n_layers, B, H, d_h)
    n_layers, n, n_heads, width = z.shape
    if n < 4:
        raise InputError(f"{n} prompts: at least 4 are needed for a spread over halves")
    rng = np.random.default_rng(seed)
    halves = [np.sort(rng.permutation(n)[: n // 2]) for _ in range(n_subsamples)]
    tables = []
    for layer in range(n_layers):
        heads = torch.from_numpy(np.ascontiguousarray(z[layer].transpose(1, 0, 2)))  # (H, B, d_h)
        shares = energy_shares(heads)
        pr = from_shares(shares, "entropy").numpy()
        spread = np.stack([from_shares(energy_shares(heads[:, h]), "entropy").numpy() for h in halves])
        low, high = _about(pr, spread)
        ceiling = min(n, width)
        columns = {
            "layer": layer,
            "head": np.arange(n_heads),
            "pr": pr,
            "low": np.clip(low, 1, ceiling),
            "high": np.clip(high, 1, ceiling),
            "moment": from_shares(shares, "moment").numpy(),
            "mean": spread.mean(axis=0),
            "halves": spread.T.tolist(),
            "n": n,
        }
        tables.append(pd.DataFrame(columns))
    return pd.concat(tables, ignore_index=True)


def _about(value: Any, spread: NDArray[np.float64]) -> tuple[Any, Any]:
    """The 2.5 and 97.5 percentiles of sub-samples (S, ...) around their own mean, set about `value` (...)."""
    centred = spread - spread.mean(axis=0)
    return value + np.quantile(centred, 0.025, axis=0), value + np.quantile(centred, 0.975, axis=0)


def pr_over_checkpoints(
    checkpoints: Iterable[tuple[str, float, Model]],
    prompts: Prompts,
    *,
    n_subsamples: int = 20,
    seed: int = 0,
) -> pd.DataFrame:
    """Participation ratio of every head at every checkpoint: (its name, tokens seen, the model) each.

    Columns `revision, tokens, layer, head, pr, low, high, moment, mean, halves, n`; `halves` are the sub-samples'
    ratios, the same halves at each checkpoint.  The checkpoints are taken one by one: from a generator that loads
    them, one is in memory at a time.
    Raises InputError as `spectrum`, for no checkpoint, tokens out of order, and checkpoints of other sizes.
    """
    tables: list[pd.DataFrame] = []
    for revision, tokens, model in checkpoints:
        table = _with_halves(model, prompts, n_subsamples=n_subsamples, seed=seed)
        table.insert(0, "revision", revision)
        table.insert(1, "tokens", float(tokens))
        tables.append(table)
        del model  # before the generator loads the next one
    return joined_checkpoints(tables)


def joined_checkpoints(tables: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """One table of checkpoints.  InputError for none, tokens not ascending, and other numbers of heads."""
    if not tables:
        raise InputError("no checkpoints given: at least one is needed")
    for before, after in itertools.pairwise(tables):
        names = (before["revision"].iloc[0], after["revision"].iloc[0])
        if after["tokens"].iloc[0] <= before["tokens"].iloc[0]:
            raise InputError(
                f"checkpoints must be in ascending order of tokens seen: {names[1]!r} with "
                f"{after['tokens'].iloc[0]:g} follows {names[0]!r} with {before['tokens'].iloc[0]:g}"
            )
        if not before[["layer", "head"]].equals(after[["layer", "head"]]):
            raise InputError(f"checkpoints {names[0]!r} and {names[1]!r} have different numbers of heads")
    return pd.concat(tables, ignore_index=True)


def pr_integrals(table: pd.DataFrame) -> pd.DataFrame:
    """What a table of checkpoints comes to, head by head: `layer, head, integral, low, high, mean, spread,
    n_checkpoints`.

    `integral`: the trapezoid of max(PR - 1, 0) over ln(tokens), step 0 left out, with the spread of the
    sub-samples' own integrals about it; NaN where one checkpoint after step 0 is left.  `mean`, `spread`: mean
    and standard deviation of the last checkpoint's ratio over its sub-samples, which is all that one
    checkpoint can say.
    """
    rows = []
    for (layer, head), part in table.groupby(["layer", "head"], sort=True):
        seen = [float(t) for t in part["tokens"]]
        halves = np.stack([np.asarray(h, dtype=np.float64) for h in part["halves"]])  # (T, S)
        integral = low = high = np.nan
        n = sum(t > 0 for t in seen)
        if n > 1:
            integral = pr_integral(seen, part["pr"].to_numpy())
            low, high = _about(integral, np.asarray(pr_integral(seen, halves)))
            low = max(low, 0.0)
        rows.append((layer, head, integral, low, high, halves[-1].mean(), halves[-1].std(ddof=1), n))
    names = ["layer", "head", "integral", "low", "high", "mean", "spread", "n_checkpoints"]
    return pd.DataFrame(rows, columns=names)


def pr_integral(tokens_seen: Sequence[float], pr: Any) -> Any:
    """Trapezoid of max(PR - 1, 0) over ln(tokens seen): pr (T,) or (T, ...) -> a float or an array (...).

    Checkpoints at 0 tokens are left out.  Raises InputError with fewer than two others, or when they are not
    in ascending order.
    """
    seen = np.asarray(tokens_seen, dtype=np.float64)
    keep = seen > 0
    if keep.sum() < 2:
        raise InputError(f"{int(keep.sum())} checkpoints after step 0: at least 2 are needed for an integral")
    if np.any(np.diff(seen) <= 0):
        raise InputError("checkpoints must be in ascending order of tokens seen")
    excess = np.maximum(np.asarray(pr, dtype=np.float64)[keep] - 1, 0)
    area = np.trapezoid(excess, np.log(seen[keep]), axis=0)
    return float(area) if np.ndim(area) == 0 else area
