"""A study whose one stage reports how many threads its worker may use."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from causegrid.studies.base import CellConfig, CellContext, Stage, Study, StudyConfig


class PinnedConfig(StudyConfig):
    pass


class Pinned(Study):
    name = "pinned"
    version = 1
    note = "for tests"
    config_type = PinnedConfig
    cell_type = CellConfig

    def cells(self, config: Any) -> Sequence[CellConfig]:
        return [CellConfig(study="pinned", task="t", model="m")]

    def stages(self, cell: Any) -> Sequence[Stage]:
        return [Stage(name="threads", run=threads)]

    def cost(self, cell: Any) -> str:
        return "nothing"

    def example(self) -> str:
        return "study: pinned\n"


def threads(context: CellContext) -> None:
    import torch
    from threadpoolctl import threadpool_info

    pools = sorted({pool["num_threads"] for pool in threadpool_info()})
    context.note(torch=torch.get_num_threads(), omp=os.environ["OMP_NUM_THREADS"], pools=pools)
