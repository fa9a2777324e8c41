"""What a look at a long job of many ranks costs: memory and processor time. `make stress` prints it."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

from distprof.contract.watch import SampledStep, StepRows
from distprof.merge.watch.job_watch import JobWatch
from distprof.merge.watch.pieces import Piece, Sample
from support.watched_jobs.pieces import BEGAN_NS, OPS

ROW_NS = 200_000_000
PER_ROW = 10


def piece(rank: int, world: int, begin: int, size: int, draw: np.random.Generator) -> Piece:
    """Rows of 10 steps of 20 ms, and the sampled ones among them with 20 calls each."""
    first = (begin + np.arange(size)) * PER_ROW
    columns: dict[str, Any] = {name: np.full(size, -1) for name in StepRows.__struct_fields__}
    span = draw.normal(ROW_NS, ROW_NS / 100, size)
    columns |= {"first_step": first, "num_steps": np.full(size, PER_ROW), "span_ns": span, "longest_ns": span / 9,
                "end_ns": BEGAN_NS + (begin + 1 + np.arange(size)) * ROW_NS, "longest_step": first,
                "data_ns": span * 0.05, "forward_ns": span * 0.3 * draw.normal(1, 0.01, size),
                "backward_ns": span * 0.55, "optimizer_ns": span * 0.1, "gc_ns": np.zeros(size),
                "host_bytes": draw.normal(1e9, 1e7, size), "device_bytes": draw.normal(1e9, 1e7, size)}
    steps = np.arange(first[0], first[-1] + PER_ROW)
    arrived = (np.arange(20) * 500_000 + 8_000_000).tolist()
    samples = [Sample(groups=[("all", list(range(world)))], names=OPS, step=SampledStep(
        step=int(step), start_ns=0, span_ns=int(draw.normal(2e7, 2e5)), num_calls=20, group=[0] * 20, op=[0] * 20,
        arrived_ns=arrived, took_ns=draw.normal(4e5, 1e4, 20).astype(int).tolist(), blocked_ns=[100_000] * 20))
        for step in steps[(steps * ((5 ** 0.5 - 1) / 2)) % 1 < 1 / 64]]
    return Piece(columns={name: np.asarray(values).astype(np.int64) for name, values in columns.items()},
                 samples=samples)


@pytest.mark.stress
@pytest.mark.parametrize(("world", "hours"), [(8, 2), (64, 2)])
def test_a_look_every_two_seconds_after_hours(world: int, hours: int, capsys: pytest.CaptureFixture[str]) -> None:
    draw, watch = np.random.default_rng(1), JobWatch({rank: f"host{rank // 8}" for rank in range(world)})
    rows, at, spent = hours * 3600 * 5, 0, []
    for size in [1000] * (rows // 1000) + [10] * 20:
        pieces = [piece(rank, world, at, size, draw) for rank in range(world)]
        began = time.process_time()
        for rank, one in enumerate(pieces):
            watch.add(rank, one)
        watch.findings()
        spent.append(time.process_time() - began)
        at += size
    looks, mean = sorted(spent[-20:]), float(np.mean(spent[-20:]))
    parts = (watch._grid, watch._grid.blocks, watch._sampled)
    held = sum(value.nbytes for part in parts for value in vars(part).values() if isinstance(value, np.ndarray)) / 1e6
    with capsys.disabled():
        print(f"\n{world} ranks after {hours} h: what comes in 2 s takes {1000 * mean:.0f} ms of a processor "
              f"(mean of 20, at most {1000 * looks[-1]:.0f} ms); columns hold {held:.0f} MB")
    assert mean < 0.3
    assert held < 100
