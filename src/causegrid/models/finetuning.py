"""A pretrained language model made ready to learn a state task, and made plain again afterwards.

Design choices:
- Full fine-tuning moves every weight in float32.  LoRA (peft) puts adapters of one rank, scaled by 2, on every
  matrix whose forward is called: found by running the module, since Mamba's `dt_proj` is read past its forward
  and an adapter there would do nothing.  The head moves in both, unless classes are read at vocabulary tokens.
- The output projection of a mixer with a convolution (Mamba) gets no adapter: peft refuses it, because
  compiled kernels read its weight past its forward.
- Dropout is set to 0: a run is a function of its seed.
- What it takes is estimated from shapes alone and compared with free memory before any weight is read.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import nn

from causegrid.errors import InputError, one_line, unknown
from causegrid.models.forward import call
from causegrid.models.memory import is_matrix, n_weights, require_memory, training_bytes
from causegrid.models.outline import outlined
from causegrid.models.pretrained import as_device
from causegrid.models.quiet import quiet
from causegrid.models.readout import StateReadout, put_head, special_ids, vocabulary_ids
from causegrid.models.record import Model, models
from causegrid.models.resolve import model

METHODS, READOUTS = ("full", "lora"), ("head", "tokens")
RATES = {"full": 5e-5, "lora": 1e-3}
SCALE = 2  # lora_alpha / rank


def fine_tunable(
    name: str,
    task: Any,
    *,
    method: Literal["full", "lora"] = "full",
    rank: int = 8,
    readout: Literal["head", "tokens"] = "head",
    batch: int = 64,
    length: int = 40,
    seed: int = 0,
    device: str | torch.device | None = None,
    check: Callable[[Model], None] | None = None,
) -> Model:
    """The pretrained model `name`, called on the tokens of a state task and giving its classes, ready for
    `train`; `merged` makes it plain again.  `seed` draws the new head and the adapters.  `check` is called with
    the model before adapters go on, its parts as they will be after merging, and may raise.

    Raises InputError for a prompt task, a model that is no pretrained language model or already reads a task,
    an unknown method or readout, a vocabulary that is too small, LoRA without peft, and when batches of
    `batch` x `length` tokens need more memory than there is.
    """
    if getattr(task, "kind", None) != "state":
        raise InputError(f"fine-tuning needs a state task (as 's3'), not {getattr(task, 'name', task)!r}")
    if method not in METHODS:
        raise unknown("fine-tuning method", method, METHODS)
    if readout not in READOUTS:
        raise unknown("readout", readout, READOUTS)
    if rank < 1:
        raise InputError(f"the rank of the adapters must be at least 1, got {rank}")
    _require_pretrained(name)
    target = as_device(device)
    size: dict[str, Any] = {"method": method, "rank": rank, "batch": batch, "length": length}
    n_classes = None if readout == "tokens" else int(task.n_classes)
    shapes = outlined(name)
    if shapes is not None:
        require_memory(f"fine-tuning {name!r}", needed_bytes(shapes, n_classes=n_classes, **size), target)
    made = model(name, device=target)
    if not made.is_hf or made.readout is not None:
        raise InputError(f"model {name!r} was trained on a state task: fine-tuning needs a language model")
    if shapes is None:
        require_memory(
            f"fine-tuning {name!r}", needed_bytes(made.module, n_classes=n_classes, **size), target
        )
    for parameter in made.module.parameters():
        parameter.requires_grad_(True)
    made = _reading(made, task, readout=readout, lr=RATES[method], seed=seed)
    _without_dropout(made.module)
    if check is not None:
        check(made)
    return made if method == "full" else _with_adapters(made, rank=rank, seed=seed)


def merged(model: Model) -> Model:
    """The model with its adapters added into its weights, a plain module again; without adapters, itself."""
    merge = getattr(model.module, "merge_and_unload", None)
    if merge is None:
        return model
    module = merge(safe_merge=True)
    for parameter in module.parameters():
        parameter.requires_grad_(True)
    return replace(model, module=module.eval())


def needed_bytes(
    module: Any, *, method: str, rank: int, n_classes: int | None, batch: int, length: int
) -> int:
    """Bytes that fine-tuning takes; `n_classes` None: classes are read at vocabulary tokens."""
    rows = n_classes or int(module.get_output_embeddings().weight.shape[0])
    trained = n_weights(module, rows)
    if method == "lora":
        head = module.get_output_embeddings()
        adapted = [part for part in module.modules() if is_matrix(part) and part is not head]
        trained = rank * sum(sum(part.weight.shape) for part in adapted)
        trained += 0 if n_classes is None else rows * int(head.weight.shape[1])
    return training_bytes(module, trained=trained, rows=rows, n_tokens=batch * length)


def _require_pretrained(name: str) -> None:
    base = name.partition(":")[0]
    if base in models and "n_tokens" in inspect.signature(models.get(base)).parameters:
        raise InputError(
            f"model {name!r} is a family trained from scratch: fine-tuning needs a pretrained model"
        )


def _reading(made: Model, task: Any, *, readout: str, lr: float, seed: int) -> Model:
    module: Any = made.module
    n_classes = int(task.n_classes)
    size: dict[str, Any] = {
        "n_vocab": made.n_tokens,
        "tokenizer": made.tokenizer,
        "special": special_ids(module.config),
    }
    inputs = vocabulary_ids(int(task.n_tokens), names=getattr(task, "token_names", ()), **size)
    outputs = None
    if readout == "tokens":
        outputs = vocabulary_ids(n_classes, **(size | {"n_vocab": min(made.n_tokens, made.n_out)}))
    else:
        put_head(module, n_classes, seed=seed)
        made = replace(made, n_out=n_classes)
    return made.reading(StateReadout(task=task.name, inputs=inputs, outputs=outputs, lr=lr))


def _without_dropout(module: nn.Module) -> None:
    """No dropout in any part: as modules, and as the rates that attention functions are called with."""
    for part in module.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0
        for attribute in ("attention_dropout", "dropout"):
            if isinstance(getattr(part, attribute, None), float):
                setattr(part, attribute, 0.0)


def _with_adapters(made: Model, *, rank: int, seed: int) -> Model:
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError:
        raise InputError(
            "method: lora needs the package peft: pip install 'causegrid[lora]' (or method: full)"
        ) from None
    module: Any = made.module
    settings = LoraConfig(
        r=rank, lora_alpha=SCALE * rank, lora_dropout=0.0, bias="none", target_modules=adaptable(made)
    )
    with torch.random.fork_rng(devices=[]), quiet():
        torch.default_generator.manual_seed(seed)
        try:
            wrapped = get_peft_model(module, settings)
        except ValueError as error:
            raise InputError(f"{made.name!r} takes no adapters: {one_line(error)}") from None
    if made.readout is not None and made.readout.outputs is None:
        for parameter in module.get_output_embeddings().parameters():
            parameter.requires_grad_(True)
    return replace(made, module=wrapped)


def adaptable(made: Model) -> list[str]:
    """Names of the matrices, head apart, whose forward a training step calls and peft can adapt."""
    module: Any = made.module
    head = module.get_output_embeddings()
    named = {path: part for path, part in module.named_modules() if is_matrix(part) and part is not head}
    fired: set[int] = set()
    handles = [part.register_forward_hook(lambda m, i, o: fired.add(id(m))) for part in named.values()]
    mode = module.training
    module.train()
    try:
        with torch.no_grad(), quiet():
            call(made, [[0, 1, 0, 1]])
    finally:
        module.train(mode)
        for handle in handles:
            handle.remove()
    kept = [path for path, part in named.items() if id(part) in fired and not _past_forward(module, path)]
    if not kept:
        raise InputError(f"{made.name!r} has no matrix that an adapter could be put on")
    return kept


def _past_forward(module: nn.Module, path: str) -> bool:
    """Whether compiled kernels may read this matrix past its forward: a convolutional mixer's output."""
    parent, _, name = path.rpartition(".")
    return name == "out_proj" and hasattr(module.get_submodule(parent), "conv1d")
