"""Tiny random Hugging Face models of every supported family: hidden 32, 2 layers, vocabulary 97, CPU.

They are saved to disk and loaded back by the tests that want the real loading path; nothing is downloaded.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

HIDDEN, LAYERS, VOCAB = 32, 2, 97

_DECODER = dict(
    vocab_size=VOCAB,
    hidden_size=HIDDEN,
    num_hidden_layers=LAYERS,
    num_attention_heads=4,
    intermediate_size=64,
    max_position_embeddings=64,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=2,
    tie_word_embeddings=False,
)

CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": (
        "gpt2",
        dict(vocab_size=VOCAB, n_embd=HIDDEN, n_layer=LAYERS, n_head=4, n_positions=64, bos_token_id=1,
             eos_token_id=2),
    ),
    "gpt_neox": ("gpt_neox", {**_DECODER, "use_parallel_residual": True}),
    "gpt_neox_sequential": ("gpt_neox", {**_DECODER, "use_parallel_residual": False}),
    "llama": ("llama", _DECODER),
    "llama_gqa": ("llama", {**_DECODER, "num_key_value_heads": 2}),
    "llama_wide": ("llama", {**_DECODER, "num_key_value_heads": 2, "head_dim": 12}),
    "mistral": ("mistral", {**_DECODER, "num_key_value_heads": 2}),
    "qwen2": ("qwen2", {**_DECODER, "num_key_value_heads": 2}),
    "olmo": ("olmo", _DECODER),
    "olmo2": ("olmo2", _DECODER),
    "olmoe": ("olmoe", {**_DECODER, "num_experts": 4, "num_experts_per_tok": 2}),
    "mixtral": (
        "mixtral", {**_DECODER, "num_key_value_heads": 4, "num_local_experts": 4, "num_experts_per_tok": 2}
    ),
    "qwen2_moe": (
        "qwen2_moe",
        {**_DECODER, "num_key_value_heads": 4, "num_experts": 4, "num_experts_per_tok": 2,
         "moe_intermediate_size": 32, "shared_expert_intermediate_size": 48, "mlp_only_layers": [0]},
    ),
    "mamba": (
        "mamba",
        dict(vocab_size=VOCAB, hidden_size=HIDDEN, num_hidden_layers=LAYERS, state_size=8, pad_token_id=0,
             bos_token_id=1, eos_token_id=2),
    ),
    "mamba2": (
        "mamba2",
        dict(vocab_size=VOCAB, hidden_size=HIDDEN, num_hidden_layers=LAYERS, state_size=8, num_heads=8,
             head_dim=8, expand=2, n_groups=2, chunk_size=8, pad_token_id=0, bos_token_id=1, eos_token_id=2),
    ),
}  # fmt: skip

ATTENTION = [f for f in CONFIGS if not f.startswith("mamba")]


def hf(family: str, seed: int = 0, **changes: Any) -> torch.nn.Module:
    """A tiny random Hugging Face causal LM of this family, with weights large enough to matter."""
    model_type, settings = CONFIGS[family]
    config = AutoConfig.for_model(model_type, **{**settings, **changes})
    torch.manual_seed(seed)
    module = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if parameter.dim() >= 2 and "conv1d" not in name and "A_log" not in name:
                parameter.mul_(4.0)
    return module.eval()
