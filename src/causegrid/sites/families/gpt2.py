"""GPT-2: pre-norm, learned positions; the projections are `Conv1D` (weight transposed)."""

from causegrid.sites.table import RESIDUAL, FamilyTable, Place, families

TABLE = families.register("hf:gpt2")(
    FamilyTable(
        blocks="transformer.h",
        norm="transformer.ln_f",
        head="lm_head",
        places={
            **RESIDUAL,
            "attn_out": Place(path="attn"),
            "mlp_out": Place(path="mlp"),
            "z": Place(path="attn.c_proj", side="input", heads=True),
        },
        parts=("attn_out", "mlp_out"),
        attention="attn",
        rows="interface",
    )
)
