"""Llama-like pre-norm decoders: the same module names in Llama, Mistral, Qwen 2 and 3.

Grouped queries change nothing here: `z` is split by query head.
"""

from causegrid.sites.table import RESIDUAL, FamilyTable, Gate, Place, families

TABLE = FamilyTable(
    blocks="model.layers",
    norm="model.norm",
    head="lm_head",
    places={
        **RESIDUAL,
        "attn_out": Place(path="self_attn"),
        "mlp_out": Place(path="mlp"),
        "z": Place(path="self_attn.o_proj", side="input", heads=True),
    },
    parts=("attn_out", "mlp_out"),
    attention="self_attn",
    rows="interface",
    gates={"mlp_gate": Gate(path="mlp.gate_proj", activation="mlp.act_fn")},
)

for model_type in ("llama", "mistral", "qwen2", "qwen3"):
    families.register(f"hf:{model_type}")(TABLE)
