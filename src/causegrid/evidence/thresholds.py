"""The numbers the verdict rules turn on, in one place, with where each comes from (MEASURES 4).

`paper`: stated by arXiv 2606.05378.  `ours`: chosen here.  All are recorded with a verdict's table, in
`table.attrs["thresholds"]`, so a table says by which rules it was made.
"""

from __future__ import annotations

from dataclasses import dataclass

PATTERN_ROUNDING = 1e-6  # masses are sums of float32: a head that attends alike to all is not beyond its null


@dataclass(frozen=True, kw_only=True)
class Thresholds:
    """Every threshold of both rule sets; shares are of the removable part unless said otherwise."""

    level: float = 0.05  # Holm-corrected p (ours)
    min_prompts: int = 8  # with fewer prompts that have a value nothing is judged (ours)
    minimum_share: float = 0.05  # minimum effect of interest (ours)
    minimum_accuracy: float = 0.02  # the same, least for top-1: 2 pp (ours)
    specificity: float = 3.0  # |effect| over the null's (paper)
    specificity_floor: float = 0.005  # least denominator of the specificity (ours)
    apart: int = (
        10  # draws without the group's own heads below which the null is marked (ours; the paper's ten draws)
    )
    null_removes: float = 0.5  # a null whose draws remove more on average is unreliable (ours)
    null_spread: float = 0.25  # a null whose sd is wider is unreliable (ours)
    model_accuracy: float = 0.75  # answer-against-foil accuracy a model must reach (ours)
    singles_confirm: float = 0.5  # share of heads that must help alone (ours)
    mark_accuracy: float = 0.02  # margin-not-argmax: top-1 moves less than this (ours)
    mark_fall: float = 0.25  # margin-not-argmax: the margin falls by this share of its baseline (ours)
    redundant: float = 3.0  # group effect over the sum of single effects (ours)
    text_rise: float = 0.10  # ordinary text's loss rises by this share of the clean loss (ours)
    paper_large: float = 0.10  # 10 pp, or this share of a margin's baseline: secondary (paper, for top-1)
    paper_null_ratio: float = 2.0  # at most this specificity: null (paper)
    paper_null_sd: float = 1.0  # within this many sd of the null: null (paper)
    paper_infinite: float = 0.005  # a null mean nearer 0 than this gives an infinite ratio (paper, for top-1)
