"""Hugging Face Mamba and Mamba-2.

transformers passes the convolution's weight to a function and never calls the `conv1d` module, so a hook
there would be a silent no-op (case 1).  In Mamba the activation after the convolution is the input of
`x_proj`: it can be read there, but writing there would change only the step and B, C, not what is scanned.
The recurrent state lives inside the scan function.
"""

from causegrid.sites.table import RESIDUAL, FamilyTable, Place, families

_CONV = (
    "transformers hands the convolution's weight to a function and never calls the module, so no hook can "
    "write here; interventions.components removes it by weight substitution"
)
_SCAN = "the recurrent state never leaves transformers' scan function"

_read = Place(path="mixer.x_proj", side="input", read_only=_CONV)

MAMBA = families.register("hf:mamba")(
    FamilyTable(
        blocks="backbone.layers",
        norm="backbone.norm_f",
        head="lm_head",
        places={**RESIDUAL, "attn_out": Place(path="mixer"), "conv": _read, "ssm_input": _read},
        reasons={"state": _SCAN},
        parts=("attn_out",),
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
    )
)
