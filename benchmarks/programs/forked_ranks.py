"""Ranks of a job without a launcher: forked from a process that has already imported torch, which takes seconds."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore
from torch.multiprocessing.spawn import start_processes


def fork(num_ranks: int, work: Callable[..., None], *arguments: object) -> None:
    """Calls a function in each rank of a gloo group, with one intra-op thread."""
    with tempfile.TemporaryDirectory() as folder:
        start_processes(_rank, (num_ranks, str(Path(folder) / "store"), work, arguments), nprocs=num_ranks,
                        start_method="fork")


def _rank(rank: int, num_ranks: int, store: str, work: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    os.environ |= {"RANK": f"{rank}", "LOCAL_RANK": f"{rank}", "WORLD_SIZE": f"{num_ranks}"}
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=FileStore(store, num_ranks), rank=rank, world_size=num_ranks)
    work(*arguments)
    dist.barrier()
    dist.destroy_process_group()
