"""Our LSTM and GRU: a block is one torch module that returns (output, state), with no residual connection
and no norm, so nothing is added to anything: there are no parts."""

from causegrid.sites.table import RESIDUAL, FamilyTable, Place, families

TABLE = FamilyTable(
    blocks="blocks",
    norm="norm",
    head="head",
    places={**RESIDUAL, "state": Place(side="state")},
    block_output="tuple",
)
families.register("lstm")(TABLE)
families.register("gru")(TABLE)
