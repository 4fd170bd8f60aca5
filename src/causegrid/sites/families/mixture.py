"""Mixtures of experts beside OLMoE: Mixtral, and Qwen's, where a dense MLP may stand in some layers and a shared
expert beside the routed ones.

`mlp` is the whole sparse block, so the parts add up as in a dense model; the router is `mlp.gate` in all of
them, and a layer without one has no experts.  Qwen's shared expert takes every token: no router weighs it, and it
is no expert here.
"""

from dataclasses import replace

from causegrid.sites.families.llama import TABLE
from causegrid.sites.table import families

for model_type in ("mixtral", "qwen2_moe", "qwen3_moe"):
    families.register(f"hf:{model_type}")(replace(TABLE, router="mlp.gate", gates={}))
