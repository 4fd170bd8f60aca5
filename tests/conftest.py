"""Fixtures shared by all tests: one thread (the suite runs in parallel), and a small language model on disk."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session", autouse=True)
def _one_thread():
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def small_lm(tmp_path_factory) -> Path:
    """A random GPT-NeoX of 3 layers x 8 heads with a word tokenizer that knows the tasks' words, on disk."""
    sys.path.insert(0, str(Path(__file__).parent / "tasks"))
    from small_tokenizers import word_level

    from causegrid.tasks.ioi import TEMPLATES
    from causegrid.tasks.variable_binding import TEMPLATE
    from causegrid.tasks.words import CITIES, NAMES, OBJECTS, PLACES

    plain = " ".join([*TEMPLATES, TEMPLATE]).replace("{", " ").replace("}", " ")
    for mark in ".,":
        plain = plain.replace(mark, f" {mark} ")
    words = [*plain.split(), *NAMES, *OBJECTS, *PLACES, *CITIES]
    tokenizer = word_level(words)

    import tiny

    folder = tmp_path_factory.mktemp("small-lm")
    module = tiny.hf(
        "gpt_neox",
        vocab_size=len(tokenizer),
        num_hidden_layers=3,
        num_attention_heads=8,
        hidden_size=64,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    module.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
