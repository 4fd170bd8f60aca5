"""The head sets of a pattern-selectivity cell, and models and prompts to run them on.

`cell_jobs` lists what one cell ablates: each of the five competing groups, every union of two or more of
them, every single head, and matched-random draws for each group.  On SmolLM2 and IOI the groups are the ones
the study compares by default: the two task screens that fit (name-mover, s-inhibition), then induction,
previous-token and duplicate-token, chosen on one half of the prompts and made disjoint.  The tiny models have
random weights and random prompts; speed does not depend on the values.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from torch import Tensor

import causegrid as cg
from benchmarks.prompts import random_prompts
from causegrid.headnames import head
from causegrid.models import Model, wrap
from causegrid.signatures.attention import attention
from causegrid.signatures.generic import generic_classes
from causegrid.signatures.patterns import fitting, generic_table, prompts_of, score_screen
from causegrid.studies.pattern.head_groups import GENERIC_DEFAULT, default_names, disjoint
from causegrid.tasks import PromptSet

Groups = dict[str, list[str]]


@dataclass(frozen=True)
class Job:
    """One head set of the sweep; `kind`: group, union, single or draw."""

    kind: str
    name: str
    heads: tuple[str, ...]

    @property
    def layers(self) -> dict[int, list[int]]:
        """Layer -> heads, the form the other tools take."""
        found: dict[int, list[int]] = {}
        for layer, index in sorted(head(h) for h in self.heads):
            found.setdefault(layer, []).append(index)
        return found


@dataclass(frozen=True)
class Work:
    """A model, prompts of one length, and the groups that compete."""

    model: Model
    prompts: PromptSet
    groups: Groups

    @property
    def tokens(self) -> Tensor:
        """(B, L).  Raises ValueError when the prompts have several lengths."""
        if len(np.unique(self.prompts.lengths)) != 1:
            raise ValueError(f"prompts of lengths {np.unique(self.prompts.lengths)}: one length was wanted")
        return torch.from_numpy(np.stack([np.asarray(t, dtype=np.int64) for t in self.prompts.tokens]))

    @property
    def heads(self) -> list[str]:
        """All heads of the model."""
        return [f"L{x}H{h}" for x in range(self.model.n_layers) for h in range(self.model.n_heads)]


def unions(groups: Groups) -> Groups:
    """Every union of two or more groups."""
    names = list(groups)
    sets = [c for k in range(2, len(names) + 1) for c in itertools.combinations(names, k)]
    return {" + ".join(c): [h for name in c for h in groups[name]] for c in sets}


def cell_jobs(work: Work, *, draws: int, seed: int = 0) -> list[Job]:
    """The whole cell, `draws` matched-random draws a group, as `matched_null` draws them."""
    jobs = [Job("group", name, tuple(heads)) for name, heads in work.groups.items()]
    jobs += [Job("union", name, tuple(heads)) for name, heads in unions(work.groups).items()]
    jobs += [Job("single", name, (name,)) for name in work.heads]
    taken = [h for heads in work.groups.values() for h in heads]
    for name, heads in work.groups.items():
        found = cg.matched_random(heads, n_heads=work.model.n_heads, n=draws, seed=seed, exclude=taken)
        jobs += [Job("draw", f"{name} {i}", tuple(d)) for i, d in enumerate(found)]
    return jobs


def sample(jobs: Sequence[Job], n: int, *, seed: int = 0) -> list[Job]:
    """`n` jobs in random order, each kind by its share and at least once where `n` allows."""
    rng = np.random.default_rng(seed)
    kinds: dict[str, list[Job]] = {}
    for job in jobs:
        kinds.setdefault(job.kind, []).append(job)
    picked: list[Job] = []
    for members in kinds.values():
        many = max(1, round(n * len(members) / len(jobs)))
        picked += [members[i] for i in rng.choice(len(members), min(many, len(members)), replace=False)]
    while len(picked) < n:
        picked.append(jobs[int(rng.integers(len(jobs)))])
    return [picked[i] for i in rng.permutation(len(picked))[:n]]


def smollm2(say: Callable[[str], None], *, n_prompts: int = 64, seed: int = 0) -> Work:
    """The bundled model on IOI, with the groups its screens pick on the other half of the prompts."""
    model = cg.model("smollm2-135m")
    chosen, measured = prompts_of(model, cg.task("ioi"), n=2 * n_prompts, seed=seed, bos="none").halves()
    say("choosing the five competing groups")
    rows = attention(model, chosen)
    classes = generic_classes(model, n=32, length=48, seed=seed)
    names = default_names(list(chosen.positions))
    tables = [score_screen(rows, name) for name in fitting(chosen.positions)]
    tables += [generic_table(classes, name) for name in GENERIC_DEFAULT]
    picked = disjoint(pd.concat(tables, ignore_index=True), names)
    groups = {g.name: list(g.heads) for g in picked}
    if empty := [name for name, heads in groups.items() if not heads]:
        raise ValueError(f"no heads for {empty}: the sweep needs five groups")
    return Work(model, measured, groups)


def tiny(
    family: str = "gpt_neox",
    *,
    layers: int = 6,
    heads: int = 8,
    width: int = 256,
    vocabulary: int = 50_304,
    n_prompts: int = 64,
    length: int = 14,
    n_groups: int = 5,
    seed: int = 0,
) -> Work:
    """A random model of a transformers family with `n_groups` groups of two heads, drawn without overlap."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(
        family,
        vocab_size=vocabulary,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=4 * width,
        max_position_embeddings=max(128, length),
        bos_token_id=0,
        eos_token_id=0,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = AutoModelForCausalLM.from_config(config).eval()
    model = wrap(module, name=f"tiny {family}")
    rng = np.random.default_rng(seed)
    picks = rng.choice(layers * heads, 2 * n_groups, replace=False)
    names = [f"L{p // heads}H{p % heads}" for p in picks]
    groups = {f"group {i}": names[2 * i : 2 * i + 2] for i in range(n_groups)}
    return Work(model, random_prompts(vocabulary, n=n_prompts, length=length, seed=seed), groups)


def metric_oracle(logits: Tensor, prompts: PromptSet) -> Mapping[str, np.ndarray]:
    """Last-position logits (B, V) -> per-prompt metrics (B,), in float64 and without the planner's code."""
    rows = logits.double().numpy()
    top = rows.max(axis=1, keepdims=True)
    chance = np.exp(rows - top)
    chance /= chance.sum(axis=1, keepdims=True)
    pairs = list(zip(prompts.answers, prompts.foils, strict=True))
    return {
        "logit_diff": np.array([rows[i, a].mean() - rows[i, f].mean() for i, (a, f) in enumerate(pairs)]),
        "answer_prob": np.array([chance[i, a].sum() for i, (a, _) in enumerate(pairs)]),
    }
