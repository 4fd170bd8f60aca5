"""Our Mamba-2: one convolution over x, B and C together; what is scanned is the first E columns after it."""

from torch import nn

from causegrid.sites.table import RESIDUAL, FamilyTable, Gate, Place, at, families


def scanned(block: nn.Module) -> slice:
    """As many columns as the output projection reads, from the first: x in the activation's output, the gate
    in the input projection's."""
    width = at(block, "mixer.out_proj").get_parameter("weight").shape[1]
    return slice(0, width)


TABLE = families.register("mamba2")(
    FamilyTable(
        blocks="blocks",
        norm="norm",
        head="head",
        places={
            **RESIDUAL,
            "attn_out": Place(path="mixer"),
            "conv": Place(path="mixer.conv1d"),
            "ssm_input": Place(path="mixer.act", columns=scanned),
            "state": Place(path="mixer", side="state"),
        },
        parts=("attn_out",),
        gates={"gate": Gate(path="mixer.in_proj", columns=scanned)},
    )
)
