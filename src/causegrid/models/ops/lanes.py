"""A vector of neighbouring channels as one value inside numba kernels, with the functions a scan needs.

LLVM vectorises a loop over channels only when it writes a single array, and then goes through memory between
any two such loops.  A kernel that handles `WIDTH` channels as one value keeps them in registers instead: it
is written like scalar code, and takes any width LLVM can split into the machine's own registers.  Scalars
mix in freely.  Channels come in whole multiples of `WIDTH`: `padded` adds zeros to a tensor of another width.

`exp2`, `softplus` and `sigmoid` are polynomials, because numba without SVML calls libm once per element;
products and sums may contract, nothing is reordered, NaN stays NaN.

numba keeps compiled kernels by the file they stand in and does not see a change of this one: whoever edits it
removes the `.nbi` and `.nbc` files of this folder's `__pycache__`.
"""

# mypy: disable-error-code="import-untyped,no-untyped-call,untyped-decorator"

from __future__ import annotations

import operator
from typing import Any

import numba
import numpy as np
import torch
import torch.nn.functional as F
from llvmlite import ir
from numba.core import cgutils, types
from numba.core.typing.templates import AbstractTemplate, infer_global, signature
from numba.extending import intrinsic, lower_builtin, models, register_model
from torch import Tensor

WIDTH = 16  # channels in a vector: two AVX2 registers, so that independent chains hide each other's latency

LOG2E = 1.4426950408889634
LN2 = 0.6931471805599453

_FLAGS = ("contract",)
_MAGIC = 12583039.0  # 1.5 * 2^23 + 127: t + _MAGIC ends in the bits of k + 127, k the whole number next to t
_floats = ir.VectorType(ir.FloatType(), WIDTH)
_ints = ir.VectorType(ir.IntType(32), WIDTH)


class Lanes(types.Type):
    """`WIDTH` float32 values."""

    def __init__(self) -> None:
        super().__init__("Lanes")


_lanes = Lanes()
_intrinsic: Any = intrinsic  # numba's annotations describe the typing function, not the call


@register_model(Lanes)
class _LanesModel(models.PrimitiveModel):
    def __init__(self, manager: Any, fe_type: Any) -> None:
        super().__init__(manager, fe_type, _floats)


def _widen(context: Any, builder: Any, value: Any, kind: Any) -> Any:
    """`value` as a vector: itself, or a scalar repeated."""
    if isinstance(kind, Lanes):
        return value
    scalar = context.cast(builder, value, kind, types.float32)
    first = builder.insert_element(ir.Constant(_floats, ir.Undefined), scalar, ir.Constant(ir.IntType(32), 0))
    order = ir.Constant(_ints, [0] * WIDTH)
    return builder.shuffle_vector(first, ir.Constant(_floats, ir.Undefined), order)


def _operator(function: Any, instruction: str) -> None:
    class Template(AbstractTemplate):
        def generic(self, args: Any, kws: Any) -> Any:
            if any(isinstance(a, Lanes) for a in args) and all(
                isinstance(a, Lanes | types.Number) for a in args
            ):
                return signature(_lanes, *args)
            return None

    infer_global(function)(Template)

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        left, right = (_widen(context, builder, v, t) for v, t in zip(args, sig.args, strict=True))
        return getattr(builder, instruction)(left, right, flags=_FLAGS)

    for kinds in ((Lanes, Lanes), (Lanes, types.Number), (types.Number, Lanes)):
        lower_builtin(function, *kinds)(lower)


for _function, _instruction in (
    (operator.add, "fadd"),
    (operator.sub, "fsub"),
    (operator.mul, "fmul"),
    (operator.truediv, "fdiv"),
):
    _operator(_function, _instruction)


def _pointer(context: Any, builder: Any, kind: Any, value: Any, index: Any) -> Any:
    """Where the lanes at array[index] begin."""
    array = context.make_array(kind)(context, builder, value=value)
    numbers = cgutils.unpack_tuple(builder, index)
    place = cgutils.get_item_pointer(context, builder, kind, array, numbers, wraparound=False)
    return builder.bitcast(place, _floats.as_pointer())


@_intrinsic
def load(typing: Any, array: Any, index: Any) -> Any:
    """The lanes array[index], array[index + 1], ...; the last axis of `array` has stride one."""

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.load(_pointer(context, builder, array, *args), align=4)

    return _lanes(array, index), lower


@_intrinsic
def store(typing: Any, array: Any, index: Any, lanes: Any) -> Any:
    """array[index], array[index + 1], ... = lanes."""

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        builder.store(args[2], _pointer(context, builder, array, *args[:2]), align=4)
        return context.get_dummy_value()

    return types.void(array, index, lanes), lower


@_intrinsic
def splat(typing: Any, value: Any) -> Any:
    """A scalar in every lane."""

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return _widen(context, builder, args[0], value)

    return _lanes(value), lower


@_intrinsic
def total(typing: Any, lanes: Any) -> Any:
    """The sum of the lanes, halves added to halves."""

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        value, width = args[0], WIDTH
        while width > 1:
            width //= 2
            low, high = (
                builder.shuffle_vector(
                    value,
                    ir.Constant(value.type, ir.Undefined),
                    ir.Constant(ir.VectorType(ir.IntType(32), width), list(range(start, start + width))),
                )
                for start in (0, width)
            )
            value = builder.fadd(low, high)
        return builder.extract_element(value, ir.Constant(ir.IntType(32), 0))

    return types.float32(lanes), lower


@_intrinsic
def below(typing: Any, left: Any, right: Any, yes: Any, no: Any) -> Any:
    """Per lane: `yes` where left < right, else `no` (also where one of them is NaN)."""

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        a, b, c, d = (_widen(context, builder, v, t) for v, t in zip(args, sig.args, strict=True))
        return builder.select(builder.fcmp_ordered("<", a, b), c, d)

    return _lanes(left, right, yes, no), lower


@_intrinsic
def _scaled(typing: Any, lanes: Any, whole: Any) -> Any:
    """lanes * 2^k, where `whole` is k + _MAGIC, its low bits in place of an exponent.

    A product, not a sum of exponent bits: NaN times anything is NaN, whatever bits it carries.
    """

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        power = builder.shl(builder.bitcast(args[1], _ints), ir.Constant(_ints, [23] * WIDTH))
        return builder.fmul(args[0], builder.bitcast(power, _floats), flags=_FLAGS)

    return _lanes(lanes, whole), lower


_jit: Any = numba.njit(cache=True, inline="always")
_f32 = np.float32


def _exp2(t: Any) -> Any:
    """2^t for t in -126 .. 127, clamped there; relative error under 2e-7 (polynomial: 9e-8)."""
    t = below(t, -126.0, -126.0, t)
    t = below(127.0, t, 127.0, t)
    whole = t + _MAGIC
    f = t - (whole - _MAGIC)
    p = 0.001326472731307149 * f + 0.009671512991189957
    p = p * f + 0.05550733581185341
    p = p * f + 0.24022242426872253
    p = p * f + 0.6931470036506653
    p = p * f + 1.0
    return _scaled(p, whole)


exp2 = _jit(_exp2)


def _softplus(s: Any) -> Any:
    """(log(1 + exp(s)), its derivative, the logistic function), both to a few 1e-7 relative."""
    z = exp2(below(s, 0.0, s, 0.0 - s) * LOG2E)  # exp(-|s|)
    w = z / (z + 2.0)
    v = w * w
    q = 0.2801198363304138 * v + 0.28001806139945984
    q = q * v + 0.4002152681350708
    q = q * v + 0.666664183139801
    q = q * v + 2.0
    return below(s, 0.0, 0.0, s) + w * q, below(s, 0.0, z, 1.0) / (1.0 + z)


softplus = _jit(_softplus)


def _sigmoid(s: Any) -> Any:
    """1 / (1 + exp(-s)), to 3e-7 relative."""
    z = exp2(below(s, 0.0, s, 0.0 - s) * LOG2E)
    return below(s, 0.0, z, 1.0) / (1.0 + z)


sigmoid = _jit(_sigmoid)


def padded(v: Tensor) -> Any:
    """A float32 CPU tensor as an array whose last axis has stride one and is a whole number of lanes."""
    v = v.detach()
    rest = -v.shape[-1] % WIDTH
    if rest:
        v = F.pad(v, (0, rest))
    return (v if v.stride(-1) == 1 or v.shape[-1] == 1 else v.contiguous()).numpy()


def compiled(*tensors: Tensor | None) -> bool:
    """Whether the compiled kernels take these tensors: float32 on the CPU, None is left out."""
    return all(v is None or (v.device.type == "cpu" and v.dtype == torch.float32) for v in tensors)
