"""What a config.json states, of a local folder or a Hugging Face id, and why it cannot be used.

Sizes are looked at before transformers reads them: it takes -1 layers without a word.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from causegrid.errors import InputError, one_line
from causegrid.models.hub import unreachable
from causegrid.models.quiet import quiet

SIZES = (
    *("num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads"),
    *("n_layer", "n_embd", "n_head"),
)


def config_of(where: str, *, revision: str | None = None) -> Any:
    """The config alone of a local folder or a Hugging Face id.  Raises InputError as `load_pretrained` does."""
    with quiet():
        return read_config(
            where, {"trust_remote_code": False} | ({} if revision is None else {"revision": revision})
        )


def read_config(where: str, extra: dict[str, Any]) -> Any:
    from huggingface_hub.errors import StrictDataclassError
    from transformers import AutoConfig
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

    _check_sizes(where)
    try:
        config = AutoConfig.from_pretrained(where, **extra)
    except OSError as error:
        raise unreachable(where, error, extra.get("revision")) from None
    except (
        *(ValueError, KeyError, TypeError, AttributeError, ArithmeticError, RecursionError),
        StrictDataclassError,
    ) as error:
        if "custom code" in str(error):
            raise InputError(
                f"{where!r} needs its own code to load: allow it with trust_remote_code=True"
            ) from None
        raise InputError(f"{where!r} has no usable config.json: {one_line(error)}") from None
    remote = "AutoModelForCausalLM" in (getattr(config, "auto_map", None) or {})
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING and not (remote and extra["trust_remote_code"]):
        raise InputError(
            f"{where!r} is a {config.model_type!r} model: transformers has no causal language model of it"
        )
    return config


def stated(where: str) -> dict[str, Any]:
    """What the config.json of a local folder holds.  Raises InputError for a folder without one, or no JSON object."""
    file = Path(where).expanduser() / "config.json"
    if not file.is_file():
        raise InputError(f"folder {where!r} holds no model: neither model.json nor config.json is in it")
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{where!r} has no usable config.json: not JSON ({one_line(error, 120)})") from None
    if not isinstance(found, dict):
        raise InputError(f"{where!r} has no usable config.json: it holds no JSON object")
    return found


def _check_sizes(where: str) -> None:
    """Raises InputError when a local config.json states layers, heads or widths that are no positive number."""
    if not Path(where).is_dir():
        return
    config = stated(where)
    for size in SIZES:
        value = config.get(size)
        if value is not None and not isinstance(value, list) and (type(value) is not int or value < 1):
            raise InputError(
                f"{where!r} has no usable config.json: {size} is {value!r}, not a whole number from 1"
            )
