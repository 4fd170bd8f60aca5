"""Planted models: attention alone, no norm, so every part adds to the residual as it stands."""

from causegrid.sites.table import RESIDUAL, FamilyTable, Place, families

TABLE = families.register("planted")(
    FamilyTable(
        blocks="blocks",
        norm="",
        head="head",
        places={
            **RESIDUAL,
            "attn_out": Place(path="attn"),
            "z": Place(path="attn.proj", side="input", heads=True),
        },
        parts=("attn_out",),
        attention="attn",
        rows="attend",
    )
)
