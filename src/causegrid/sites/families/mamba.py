"""Our Mamba: the convolution and its activation are modules that are really called, so both can be edited;
what the activation gives is scanned and also makes the step, B and C."""

from torch import nn

from causegrid.sites.table import RESIDUAL, FamilyTable, Gate, Place, at, families


def gate_columns(block: nn.Module) -> slice:
    """The columns of the input projection that gate what the scan gives: the second half."""
    return slice(at(block, "mixer.out_proj").get_parameter("weight").shape[1], None)


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
        gates={"gate": Gate(path="mixer.in_proj", columns=gate_columns)},
    )
)
