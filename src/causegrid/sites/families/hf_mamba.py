"""Hugging Face Mamba and Mamba-2.

transformers passes the convolution's weight to a function and never calls the `conv1d` module, so a hook
there would be a silent no-op (case 1).  In Mamba what the scan reads is also the input of `x_proj`: it can
be read there, but writing there would change only the step and B, C, not what is scanned.
The recurrent state lives inside the scan function; it can be emptied from outside, by a decay so large that
nothing is carried on.
"""

from causegrid.sites.families.mamba import gate_columns
from causegrid.sites.families.mamba2 import scanned
from causegrid.sites.table import RESIDUAL, FamilyTable, Gate, Place, families

_CONV = (
    "transformers hands the convolution's weight to a function and never calls the module, so a hook "
    "would never fire; interventions.convolution removes it by weight substitution"
)
_SCAN = "the recurrent state never leaves transformers' scan function"

_INPUT = Place(
    path="mixer.x_proj",
    side="input",
    read_only="read only: writing x_proj's input would change the step and B, C, but not what is scanned",
)

MAMBA = families.register("hf:mamba")(
    FamilyTable(
        blocks="backbone.layers",
        norm="backbone.norm_f",
        head="lm_head",
        places={**RESIDUAL, "attn_out": Place(path="mixer"), "ssm_input": _INPUT},
        reasons={"conv": _CONV, "state": _SCAN},
        parts=("attn_out",),
        gates={"gate": Gate(path="mixer.in_proj", columns=gate_columns)},
        decay="mixer.A_log",
    )
)
MAMBA2 = families.register("hf:mamba2")(
    FamilyTable(
        blocks="backbone.layers",
        norm="backbone.norm_f",
        head="lm_head",
        places={**RESIDUAL, "attn_out": Place(path="mixer")},
        reasons={
            "conv": _CONV,
            "ssm_input": "transformers splits the convolution's output inside the mixer: no module sees it",
            "state": _SCAN,
        },
        parts=("attn_out",),
        gates={"gate": Gate(path="mixer.in_proj", columns=scanned)},
        decay="mixer.A_log",
    )
)
