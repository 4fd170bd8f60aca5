"""LSTMs with hand-set weights that compute parity: the state sits in one unit of one block, exactly.

Unit 0 of a block with a switch holds the parity, up or 0: its forget gate is open while the token is 0, its input
gate opens when the token is 1 and the unit is down.  The last unit of every block hands the token on as +-0.76,
the units between are a delay line of earlier tokens: independent coin flips, which say nothing of the parity.
Blocks have no residual connection: a block without a switch does not hold the state.
"""

from __future__ import annotations

import numpy as np
import torch

from causegrid import model, task

STRONG = 30.0
UP = float(np.tanh(1.0))  # the switch's output when its cell is 1


def planted(seed: int, width: int = 16, blocks: int = 3, switches: tuple[int, ...] = (2,)):
    """A parity LSTM with a switch in each of the blocks `switches`; the head reads the last block's.

    A switch below the last block is read by nothing.  `seed` turns the signs of the delay lines.
    """
    assert blocks - 1 in switches
    made = model("lstm", task=task("parity"), seed=seed, d_model=width, n_layers=blocks)
    module, bit, token = made.module, width - 1, STRONG / UP
    signs = torch.from_numpy(np.random.default_rng(seed).choice([-1.0, 1.0], (blocks, width)))
    with torch.no_grad():
        module.embed.weight.zero_()
        module.embed.weight[:, bit] = torch.tensor([-UP, UP])
        for b, block in enumerate(module.blocks):
            into = torch.zeros(4, width, width)  # gate (in, forget, cell, out), unit, what it reads below
            back = torch.zeros(4, width, width)  # ... and one step before
            bias = torch.zeros(4, width)
            bias[0], bias[1], bias[3] = STRONG, -STRONG, STRONG  # no memory but what is read: c = tanh(30 x)
            into[2, bit, bit] = STRONG
            for unit in range(1, bit):
                back[2, unit, unit + 1] = STRONG * signs[b, unit]
            if b in switches:
                into[0, 0, bit], back[0, 0, 0], bias[0, 0] = token, -3 * token, 0.0
                into[1, 0, bit], bias[1, 0] = -token, 0.0
                bias[2, 0] = STRONG
            block.weight_ih_l0.copy_(into.flatten(0, 1))
            block.weight_hh_l0.copy_(back.flatten(0, 1))
            block.bias_ih_l0.copy_(bias.flatten())
            block.bias_hh_l0.zero_()
        module.head.weight.zero_()
        module.head.weight[:, 0] = torch.tensor([-10.0, 10.0])
        module.head.bias[:] = torch.tensor([5 * UP, -5 * UP])
    return made
