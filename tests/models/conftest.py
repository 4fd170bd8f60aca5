import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))  # tests/tiny.py
torch.set_num_threads(1)


@pytest.fixture(scope="session")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Family -> folder of its tiny model, saved once by transformers itself; tests must not write to it."""
    import tiny

    made: dict[str, Path] = {}

    def folder(family: str) -> Path:
        if family not in made:
            made[family] = tmp_path_factory.mktemp(family)
            tiny.hf(family).save_pretrained(made[family])
        return made[family]

    return folder


@pytest.fixture(scope="session")
def loaded(disk: Callable[[str], Path]) -> Callable[[str], Any]:
    """Family -> its tiny model through the real loading path; tests must leave it as it was."""
    from causegrid.models import model

    made: dict[str, Any] = {}

    def get(family: str) -> Any:
        if family not in made:
            made[family] = model(disk(family))
        return made[family]

    return get
