"""The operations the families are built from, each a readable definition and a compiled form equal to it.

`scan` (Mamba), `ssd` (Mamba-2), `recurrence` (LSTM, GRU), `conv`, `norm`, `gated`, `narrow`: differentiable
functions and modules.  Below them, compiled loops: `kernels`, `ssd_kernels`, `gates`, `products`, made of
`lanes` (a register of channels) and run by `team` (torch's own threads).  `again`: gradients of gradients.
`cuda`: mamba-ssm's kernels.
"""
