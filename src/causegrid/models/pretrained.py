"""Any Hugging Face causal language model, from a folder or an id, as a plain module in a thin record.

Design choices:
- The module is what transformers builds: no wrapper, no weight conversion.  float32 unless asked: effects
  of a fraction of a logit drown in half precision.
- Weights come from safetensors alone; a folder that only holds a pickle is refused.
- Nothing is filled in at random and nothing is dropped: a checkpoint with missing, misshapen or left-over
  tensors is refused (buffers of old checkpoints that are computed today may be there), and so is a model
  whose early logits see later tokens (not causal) or whose weights are not finite.
- Head width is read from the attention output projection's own shape; `hidden_size / n_heads` is wrong for
  models with a free `head_dim`.
- transformers gives GPT-2 and Mamba folders without tokenizer files an *empty* tokenizer instead of an
  error; here a missing tokenizer is None, and what needs one says so (`require_tokenizer`).
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from causegrid.errors import InputError, one_line, unknown
from causegrid.models.config import read_config
from causegrid.models.forward import check_finite, logits, position_limit
from causegrid.models.heads import NO_ATTENTION
from causegrid.models.hub import unreachable
from causegrid.models.quiet import quiet
from causegrid.models.readout import head_names, put_head
from causegrid.models.record import Model
from causegrid.models.spread import BALANCED, device_map, require_room

DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float64": torch.float64,
}
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "vocab.json",
    "vocab.txt",
    "spiece.model",
)
HEAD_FILE = "head.safetensors"  # a state task's head; config.json states the shape of the old one
_BUFFERS = re.compile(r"(attn|attention)\.(masked_)?bias$|rotary_emb\.inv_freq$")
_PROJECTION = re.compile(r"(attn|attention)\.(o_proj|c_proj|dense|out_proj)$")


def as_dtype(dtype: str | torch.dtype | None) -> torch.dtype:
    """`"bfloat16"` or a torch dtype -> a torch dtype; None is float32.  Raises InputError for others."""
    if dtype is None:
        return torch.float32
    if isinstance(dtype, torch.dtype) and dtype in DTYPES.values():
        return dtype
    name = str(dtype).removeprefix("torch.")
    if name not in DTYPES:
        raise unknown("dtype", name, DTYPES)
    return DTYPES[name]


def as_device(device: str | torch.device | None) -> torch.device:
    """A device that is there: None is the CPU, `"auto"` a GPU where there is one.  Raises InputError."""
    if device is None:
        return torch.device("cpu")
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        wanted = torch.device(device)
        torch.empty(0, device=wanted)
    except (RuntimeError, AssertionError) as error:  # AssertionError: torch built without CUDA
        raise InputError(f"device {str(device)!r} cannot be used here: {one_line(error, 120)}") from None
    return wanted


def wrap(module: nn.Module, *, name: str, tokenizer: Any = None, source: str = "") -> Model:
    """The record of a Hugging Face causal language model; the module is left as it is.

    Sizes come from the config and from the shapes of the weights.  Raises InputError for a module without
    input or output embeddings.
    """
    module_config: Any = module.config
    embed, head = _embeddings(module, name)
    family = str(module_config.model_type)
    n_heads = head_dim = n_kv_heads = 0
    if family not in NO_ATTENTION:
        n_heads = int(getattr(module_config, "num_attention_heads", 0) or 0)
    if n_heads:
        width = _projection_width(module) or int(
            (getattr(module_config, "head_dim", None) or module_config.hidden_size // n_heads) * n_heads
        )
        if width % n_heads:
            raise InputError(
                f"{name!r}: the attention output projection takes {width} inputs, not a multiple of its "
                f"{n_heads} heads"
            )
        head_dim = width // n_heads
        n_kv_heads = int(getattr(module_config, "num_key_value_heads", None) or n_heads)
    return Model(
        name=name,
        family=family,
        module=module,
        n_layers=int(module_config.num_hidden_layers),
        d_model=int(module_config.hidden_size),
        n_tokens=int(embed.shape[0]),
        n_out=int(head.shape[0]),
        n_heads=n_heads,
        head_dim=head_dim,
        n_kv_heads=n_kv_heads,
        tokenizer=tokenizer,
        source=source,
        config=json.loads(module_config.to_json_string(use_diff=False)),
    )


def _embeddings(module: Any, name: str) -> tuple[Tensor, Tensor]:
    embed, head = module.get_input_embeddings(), module.get_output_embeddings()
    if embed is None or head is None:
        raise InputError(f"{name!r} has no token embedding or no output head: not a causal language model")
    return embed.weight, head.weight


def _projection_width(module: nn.Module) -> int | None:
    """Number of inputs of the first attention output projection."""
    for path, part in module.named_modules():
        if _PROJECTION.search(path) and isinstance(getattr(part, "weight", None), Tensor):
            inputs = getattr(part, "in_features", None)
            return int(inputs if inputs is not None else part.weight.shape[0])  # Conv1D: (in, out)
    return None


def load_pretrained(
    where: str,
    *,
    name: str | None = None,
    dtype: str | torch.dtype | None = None,
    device: str | torch.device | None = None,
    revision: str | None = None,
    trust_remote_code: bool = False,
    attn_implementation: str | None = None,
    head: int | None = None,
) -> Model:
    """A causal language model from a local folder or a Hugging Face id, float32 on the CPU unless asked.

    `device` is one device, or `"balanced"`: layers spread over all GPUs (needs the accelerate package).

    `head`: rows of the head of a local folder where they are not the vocabulary's (a state task's classes).
    Raises InputError, one line, for a folder that is no model, a config that makes none, weights that are
    missing, left over, corrupt or of other shapes, an architecture that is no causal language model, an id
    that cannot be found or reached, custom code that was not allowed, and weights that are not finite.
    """
    wanted, spread = as_dtype(dtype), device == BALANCED
    target = None if spread else as_device(device)
    folder = Path(where)
    local = folder.is_dir()
    extra: dict[str, Any] = {"trust_remote_code": trust_remote_code}
    if revision is not None:
        extra["revision"] = revision
    with quiet():
        config = read_config(where, extra)
        if attn_implementation is not None:
            extra["attn_implementation"] = attn_implementation
        placed = device_map(where) if spread else {}
        module = _weights(where, config, {**extra, "dtype": wanted, **placed}, head)
        tokenizer = _tokenizer(where, local, trust_remote_code, revision)
    module.eval()
    require_room(where, module)
    if target is not None:
        module.to(target)
    made = wrap(module, name=name or where, tokenizer=tokenizer, source=where)
    check_finite(made)
    check_causal(made)
    return made


def _weights(where: str, config: Any, extra: dict[str, Any], head: int | None) -> Any:
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM

    auto: Any = AutoModelForCausalLM
    try:
        module, info = auto.from_pretrained(
            where,
            config=config,
            use_safetensors=True,
            output_loading_info=True,
            ignore_mismatched_sizes=head is not None,
            **extra,
        )
    except SafetensorError as error:
        raise InputError(f"the weights in {where!r} are corrupt: {one_line(error)}") from None
    except OSError as error:
        if Path(where).is_dir():
            pickled = any(Path(where).glob("*.bin")) or any(Path(where).glob("*.pt"))
            why = "only pickled ones, which are never loaded" if pickled else "none"
            raise InputError(f"folder {where!r} needs weights in *.safetensors; it holds {why}") from None
        raise unreachable(where, error, extra.get("revision")) from None
    except (
        *(RuntimeError, ValueError, ImportError, TypeError, LookupError, AttributeError),
        *(ArithmeticError, AssertionError),
    ) as error:
        if "ignore_mismatched_sizes" in str(error):
            raise InputError(
                f"the weights in {where!r} do not have the shapes its config.json asks for"
            ) from None
        kind = f"{type(error).__name__}: " if isinstance(error, LookupError) else ""
        raise InputError(f"the weights of {where!r} cannot be loaded: {kind}{one_line(error)}") from None
    if head is not None:
        _put_saved_head(where, module, head, {str(key[0]) for key in info["mismatched_keys"]})
    missing = sorted(info["missing_keys"])
    if missing:
        raise InputError(
            f"{where!r} lacks {len(missing)} weights that its config.json asks for, the first is {missing[0]}"
        )
    extra_keys = sorted(key for key in info["unexpected_keys"] if not _BUFFERS.search(key))
    if extra_keys:
        raise InputError(
            f"{where!r} holds {len(extra_keys)} weights that its config.json has no place for, "
            f"as {', '.join(extra_keys[:3])}"
        )
    return module


def _put_saved_head(where: str, module: Any, rows: int, mismatched: set[str]) -> None:
    """A head of `rows` rows with the weights in the folder's own file; nothing else may have other shapes."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if not mismatched <= set(head_names(module)):
        raise InputError(f"the weights in {where!r} do not have the shapes its config.json asks for")
    try:
        put_head(module, rows, state=load_file(Path(where) / HEAD_FILE))
    except (OSError, SafetensorError, RuntimeError) as error:
        raise InputError(
            f"{HEAD_FILE} in {where!r} holds no head of {rows} rows: {one_line(error)}"
        ) from None


def _tokenizer(where: str, local: bool, trust_remote_code: bool, revision: str | None) -> Any:
    from transformers import AutoTokenizer

    if local and not any((Path(where) / file).is_file() for file in TOKENIZER_FILES):
        return None
    extra = {} if revision is None else {"revision": revision}
    try:
        tokenizer = AutoTokenizer.from_pretrained(where, trust_remote_code=trust_remote_code, **extra)
    except Exception as error:  # the tokenizers library raises plain Exception
        if not local:
            return None
        raise InputError(f"the tokenizer in {where!r} cannot be loaded: {one_line(error)}") from None
    empty = len(tokenizer.get_vocab()) <= len(set(tokenizer.all_special_tokens))
    return None if empty else tokenizer


def check_causal(model: Model) -> None:
    """Raises InputError when the logits of early tokens change with a later token, or the width is wrong."""
    ids = torch.tensor([[1, 2, 3, 4], [1, 2, 3, 5]]) % model.n_tokens  # (2, 4)
    ids = ids[:, -(position_limit(model) or 4) :]  # (2, L), L at most 4
    if ids.shape[1] < 2:
        return
    with quiet():  # the first forward of Mamba tells of missing kernels
        out = logits(model, ids)  # (2, 4, n_out)
    moved = float((out[0, :-1] - out[1, :-1]).abs().max())
    if moved > 0.05 * float(out.std()) + 1e-6:
        raise InputError(f"{model.name!r} is not causal: logits at early tokens depend on later ones")


def require_tokenizer(model: Model) -> Any:
    """The model's tokenizer.  Raises InputError when it has none."""
    if model.tokenizer is None:
        raise InputError(
            f"model {model.name!r} has no tokenizer, which prompt tasks need: put its tokenizer.json "
            "beside the weights, or use a state task"
        )
    return model.tokenizer
