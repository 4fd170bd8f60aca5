"""GPT-NeoX (Pythia): rotary, fused query-key-value, parallel residual (attention and MLP read the same input)
or sequential; in both the two parts add up to the block's output."""

from causegrid.sites.table import RESIDUAL, FamilyTable, Place, families

TABLE = families.register("hf:gpt_neox")(
    FamilyTable(
        blocks="gpt_neox.layers",
        norm="gpt_neox.final_layer_norm",
        head="lm_head",
        places={
            **RESIDUAL,
            "attn_out": Place(path="attention"),
            "mlp_out": Place(path="mlp"),
            "z": Place(path="attention.dense", side="input", heads=True),
        },
        parts=("attn_out", "mlp_out"),
        attention="attention",
        rows="interface",
    )
)
