"""OLMo 2 and 3: post-norm.  What is added to the residual is the *normed* output of attention and MLP, so
the parts are read after their norms (case 13); OLMo 3 adds sliding windows, which change no module name."""

from causegrid.sites.table import RESIDUAL, FamilyTable, Gate, Place, families

TABLE = FamilyTable(
    blocks="model.layers",
    norm="model.norm",
    head="lm_head",
    places={
        **RESIDUAL,
        "attn_out": Place(path="post_attention_layernorm"),
        "mlp_out": Place(path="post_feedforward_layernorm"),
        "z": Place(path="self_attn.o_proj", side="input", heads=True),
    },
    parts=("attn_out", "mlp_out"),
    attention="self_attn",
    rows="interface",
    gates={"mlp_gate": Gate(path="mlp.gate_proj", activation="mlp.act_fn")},
)
families.register("hf:olmo2")(TABLE)
families.register("hf:olmo3")(TABLE)
