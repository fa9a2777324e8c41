"""Generates states of jobs as a watcher would write them."""

from __future__ import annotations

import time
from typing import Any

from msgspec.structs import replace

from distprof.contract.watch_state import FORMAT, RankState, WatchFinding, WatchState

MS = 1e6


def rank_state(rank: int, **fields: Any) -> RankState:
    usual = RankState(
        rank=rank, host=f"host{rank // 8}", step=6999, time_ns=time.time_ns(), step_ns=20 * MS, waiting_ratio=0.4,
        data_ns=1 * MS, forward_ns=5 * MS, backward_ns=10 * MS, optimizer_ns=1 * MS, device_ns=None,
        host_bytes=310 << 20, device_bytes=None, recent_ns=[20 * MS] * 30)
    return replace(usual, **fields)


def slow_rank(rank: int = 1, **fields: Any) -> WatchFinding:
    usual = WatchFinding(
        id=f"slow_rank-{rank}", kind="slow_rank", ranks=[rank], hosts=["host0"], onset_step=6204,
        onset_ns=time.time_ns(), per_step_ns=18 * MS, cost_ns=68e9, phase="forward",
        text=f"rank {rank} slow from step 6,204 on: +18 ms per step, 68 s lost")
    return replace(usual, **fields)


def job_state(num_ranks: int = 4, **fields: Any) -> WatchState:
    """Returns the state of a job in which rank 1 is slow, and the others wait for it."""
    ranks = [rank_state(rank, waiting_ratio=0.02 if rank == 1 else 0.4,
                        forward_ns=23 * MS if rank == 1 else 5 * MS,
                        recent_ns=[20 * MS] * 20 + [38 * MS] * 10) for rank in range(num_ranks)]
    usual = WatchState(
        format=FORMAT, run_id="made-up", time_ns=time.time_ns(), running=True, world_size=num_ranks, num_steps=7000,
        first_watched=38, elapsed_ns=int(200e9), step_ns=20 * MS, ranks=ranks, findings=[slow_rank()])
    return replace(usual, **fields)
