"""transformers' and the hub client's talk, switched off for a while: what a caller did not ask for."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def quiet() -> Iterator[None]:
    """No progress bars and no warnings from transformers inside, nor the hub client's lines on every try; their
    settings come back afterwards."""
    from huggingface_hub.utils import logging as hub_logging
    from transformers.utils import logging

    log: Any = logging
    hub: Any = hub_logging

    hub_level = hub.get_verbosity()
    level, bars = log.get_verbosity(), log.is_progress_bar_enabled()
    log.set_verbosity_error()
    hub.set_verbosity_error()
    log.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        hub.set_verbosity(hub_level)
        log.set_verbosity(level)
        if bars:
            log.enable_progress_bar()
