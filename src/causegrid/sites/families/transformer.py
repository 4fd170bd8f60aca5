"""Our Transformer: pre-norm; attention goes through one swappable attribute, `attend`."""

from causegrid.sites.table import RESIDUAL, FamilyTable, Place, families

TABLE = families.register("transformer")(
    FamilyTable(
        blocks="blocks",
        norm="norm",
        head="head",
        places={
            **RESIDUAL,
            "attn_out": Place(path="attn"),
            "mlp_out": Place(path="mlp"),
            "z": Place(path="attn.proj", side="input", heads=True),
        },
        parts=("attn_out", "mlp_out"),
        attention="attn",
        rows="attend",
    )
)
