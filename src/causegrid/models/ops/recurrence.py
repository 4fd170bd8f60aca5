"""`nn.GRU` and `nn.LSTM` whose step on CPU costs little more than its matrix products.

torch steps a GRU through autograd, where on CPU the small operations between two products cost as much as
the products.  Here a layer is one autograd function: the input parts of all positions in one product, the
recurrence in one compiled loop per thread (`gates`), and on the way back the weight gradients of all
positions in one product at the end.

The modules are torch's own with its parameter names, so weights load either way.  Torch's own forward is the
reference, and it is what runs on other devices and dtypes, in stacked, bidirectional, unbatched or packed
use, at widths that are no multiple of 16, and for gradients of gradients.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from causegrid.errors import InputError
from causegrid.models.ops import gates as compiled
from causegrid.models.ops.again import again
from causegrid.models.ops.lanes import WIDTH
from causegrid.models.ops.team import over_batch


class GRU(nn.GRU):
    """`nn.GRU`, compiled on CPU in float32."""

    def forward(self, input: Any, hx: Any = None) -> Any:
        """x (B, L, d_in), h (1, B, d) or None -> output (B, L, d), h after the last position (1, B, d)."""
        if not _compilable(self, input, () if hx is None else (hx,)):
            return super().forward(input, hx)
        x = input.transpose(0, 1).contiguous()  # (L, B, d_in)
        h = x.new_zeros(x.shape[1], self.hidden_size) if hx is None else hx[0]
        out: Tensor = _GRU.apply(x, h, *_weights(self))  # type: ignore[no-untyped-call]
        return out.transpose(0, 1), out[-1:].clone()


class LSTM(nn.LSTM):
    """`nn.LSTM`, compiled on CPU in float32."""

    def forward(self, input: Any, hx: Any = None) -> Any:
        """x (B, L, d_in), (h, c) (1, B, d) each or None -> output (B, L, d), (h, c) after the last."""
        if not _compilable(self, input, () if hx is None else hx):
            return super().forward(input, hx)
        x = input.transpose(0, 1).contiguous()  # (L, B, d_in)
        zero = x.new_zeros(x.shape[1], self.hidden_size)
        h, c = (zero, zero) if hx is None else (hx[0][0], hx[1][0])
        out, cell = _LSTM.apply(x, h, c, *_weights(self))  # type: ignore[no-untyped-call]
        return out.transpose(0, 1), (out[-1:].clone(), cell[None])


def _weights(module: Any) -> tuple[Tensor, ...]:
    return module.weight_ih_l0, module.weight_hh_l0, module.bias_ih_l0, module.bias_hh_l0


def _compilable(module: nn.RNNBase, x: Any, states: Any) -> bool:
    """Whether the compiled loops take this call; torch's forward takes, or refuses, all others.

    Raises InputError when the weights are not of the module's own shapes.
    """
    if module.num_layers != 1 or module.bidirectional or not module.batch_first or not module.bias:
        return False
    if module.proj_size or module.hidden_size % WIDTH or not isinstance(x, Tensor) or x.dim() != 3:
        return False
    if x.numel() == 0 or x.shape[-1] != module.input_size or torch.is_autocast_enabled("cpu"):
        return False
    shape, d = (1, x.shape[0], module.hidden_size), module.hidden_size
    rows = (4 if module.mode == "LSTM" else 3) * d
    needed = [(rows, x.shape[-1]), (rows, d), (rows,), (rows,)]
    found = [tuple(v.shape) for v in _weights(module)]
    if found != needed:  # torch's LSTM does not look, and computes something
        raise InputError(f"{module.mode} weights of shapes {found}: {needed} are needed")
    return all(v.shape == shape for v in states) and all(
        v.device.type == "cpu" and v.dtype == torch.float32 for v in (x, *states, *_weights(module))
    )


def _plain_gru(x: Tensor, h: Tensor, *weights: Tensor) -> Tensor:
    return torch.gru(x, h[None], weights, True, 1, 0.0, False, False, False)[0]


def _plain_lstm(x: Tensor, h: Tensor, c: Tensor, *weights: Tensor) -> tuple[Tensor, Tensor]:
    y, _, cell = torch.lstm(x, (h[None], c[None]), weights, True, 1, 0.0, False, False, False)
    return y, cell[0]


class _GRU(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, h: Tensor, w_in: Tensor, w_rec: Tensor, b_in: Tensor, b_rec: Tensor
    ) -> Tensor:
        length, batch, width = x.shape
        d = h.shape[1]
        gates = torch.empty(length, batch, 4 * d)
        bias = b_in.clone()
        bias[: 2 * d] += b_rec[: 2 * d]  # n's recurrent bias stays apart: the reset gate multiplies it
        torch.addmm(bias, x.view(-1, width), w_in.t(), out=gates.view(-1, 4 * d)[:, : 3 * d])
        states = torch.empty(length + 1, batch, d)
        states[0] = h
        arrays = gates.numpy(), compiled.pack_forward(w_rec), b_rec.detach()[2 * d :].numpy(), states.numpy()
        over_batch(lambda _, low, high: compiled.gru_forward(*arrays, low, high), batch, length * batch * d)
        out = states[1:]
        ctx.save_for_backward(x, h, w_in, w_rec, b_in, b_rec, out)  # out: to notice edits in place
        ctx.gates, ctx.states = gates, states
        return out

    @staticmethod
    def backward(ctx: Any, gout: Tensor) -> tuple[Any, ...]:
        saved = ctx.saved_tensors[:6]
        x, h, w_in, w_rec = saved[:4]
        if torch.is_grad_enabled():  # create_graph=True: the gradient itself must be differentiable
            return again(_plain_gru, saved, ctx.needs_input_grad, gout)
        length, batch, width = x.shape
        d = h.shape[1]
        carry = torch.zeros(batch, d)
        ggates = torch.empty(length, batch, 4 * d)
        arrays = [
            *(ctx.gates.numpy(), compiled.pack_backward(w_rec), ctx.states.numpy()),
            *(gout.contiguous().numpy(), carry.numpy(), ggates.numpy()),
        ]
        over_batch(lambda _, low, high: compiled.gru_backward(*arrays, low, high), batch, length * batch * d)
        flat = ggates.view(-1, 4 * d)  # n's input part, r, z, n's recurrent part
        of_in, of_rec = flat[:, : 3 * d], flat[:, d:]  # so W_in's rows come as n, r, z: roll them back
        gx = (of_in @ w_in.roll(d, 0)).view(x.shape)
        gw_in = (of_in.t() @ x.view(-1, width)).roll(-d, 0)
        gw_rec = of_rec.t() @ ctx.states[:-1].view(-1, d)
        sums = flat.sum(0)
        return gx, carry, gw_in, gw_rec, sums[: 3 * d].roll(-d), sums[d:]


class _LSTM(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, h: Tensor, c: Tensor, w_in: Tensor, w_rec: Tensor, b_in: Tensor, b_rec: Tensor
    ) -> tuple[Tensor, Tensor]:
        length, batch, width = x.shape
        d = h.shape[1]
        gates = torch.addmm(b_in + b_rec, x.view(-1, width), w_in.t()).view(length, batch, 4 * d)
        states, cells = torch.empty(length + 1, batch, d), torch.empty(length + 1, batch, d)
        states[0], cells[0] = h, c
        arrays = gates.numpy(), compiled.pack_forward(w_rec), cells.numpy(), states.numpy()
        over_batch(lambda _, low, high: compiled.lstm_forward(*arrays, low, high), batch, length * batch * d)
        out = states[1:]
        ctx.save_for_backward(x, h, c, w_in, w_rec, b_in, b_rec, out)
        ctx.gates, ctx.states, ctx.cells = gates, states, cells
        return out, cells[-1].clone()

    @staticmethod
    def backward(ctx: Any, gout: Tensor, gcell: Tensor) -> tuple[Any, ...]:
        saved = ctx.saved_tensors[:7]
        x, h, _, w_in, w_rec = saved[:5]
        if torch.is_grad_enabled():
            return again(_plain_lstm, saved, ctx.needs_input_grad, (gout, gcell))
        length, batch, width = x.shape
        d = h.shape[1]
        grec = torch.zeros(batch, d)
        carry = gcell.clone(memory_format=torch.contiguous_format)
        ggates = torch.empty(length, batch, 4 * d)
        arrays = [
            *(ctx.gates.numpy(), compiled.pack_backward(w_rec), ctx.cells.numpy()),
            *(gout.contiguous().numpy(), grec.numpy(), carry.numpy(), ggates.numpy()),
        ]
        over_batch(lambda _, low, high: compiled.lstm_backward(*arrays, low, high), batch, length * batch * d)
        flat = ggates.view(-1, 4 * d)
        gx = (flat @ w_in).view(x.shape)
        gw_in = flat.t() @ x.view(-1, width)
        gw_rec = flat.t() @ ctx.states[:-1].view(-1, d)
        sums = flat.sum(0)
        return gx, grec, carry, gw_in, gw_rec, sums, sums
