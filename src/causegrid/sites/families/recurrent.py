"""Our LSTM and GRU: a block is one torch module that returns (output, state), with no residual connection
and no norm, so nothing is added to anything: there are no parts.  torch stacks the gates in its weights and
biases: input, forget, cell, output in an LSTM; reset, update, new in a GRU."""

from dataclasses import replace

from causegrid.sites.table import RESIDUAL, FamilyTable, Gate, Place, families

TABLE = FamilyTable(
    blocks="blocks",
    norm="norm",
    head="head",
    places={**RESIDUAL, "state": Place(side="state")},
    block_output="tuple",
)
families.register("lstm")(
    replace(
        TABLE,
        gates={
            "input_gate": Gate(part=(0, 4)),
            "forget_gate": Gate(part=(1, 4)),
            "output_gate": Gate(part=(3, 4)),
        },
    )
)
families.register("gru")(
    replace(TABLE, gates={"reset_gate": Gate(part=(0, 3)), "update_gate": Gate(part=(1, 3))})
)
