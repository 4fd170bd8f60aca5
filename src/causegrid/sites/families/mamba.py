"""Our Mamba: the convolution and its activation are modules that are really called, so both can be edited;
what the activation gives is scanned and also makes the step, B and C."""

from causegrid.sites.table import RESIDUAL, FamilyTable, Place, families

TABLE = families.register("mamba")(
    FamilyTable(
        blocks="blocks",
        norm="norm",
        head="head",
        places={
            **RESIDUAL,
            "attn_out": Place(path="mixer"),
            "conv": Place(path="mixer.conv1d"),
            "ssm_input": Place(path="mixer.act"),
            "state": Place(path="mixer", side="state"),
        },
        parts=("attn_out",),
    )
)
