"""OLMo (pre-norm without parameters) and OLMoE (mixture of experts): Llama's module names.

OLMoE's `mlp` is the whole sparse block (router and experts).  Its experts are fused three-dimensional
tensors with no module each: `sites/experts.py` ablates one by its combine weight; nor have their gates one.
"""

from dataclasses import replace

from causegrid.sites.families.llama import TABLE
from causegrid.sites.table import families

families.register("hf:olmo")(TABLE)
families.register("hf:olmoe")(replace(TABLE, router="mlp.gate", gates={}))
