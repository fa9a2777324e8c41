"""Latency by the real clock: modules take what they sleep, in recorded runs too, and repeated time has its column."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from distprof.timing.repetition import measure_latency
from support.attempts import most_hold
from support.jobs import distprof
from support.models import Checkpointed, Sleepy
from support.recording import train
from support.ticks import totals


class SleepyBlock(nn.Module):
    """Sleeping q, k and v on one input that needs no gradient, then a nested and a checkpointed sleeper."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Sequential(nn.Linear(4, 4), Sleepy(0.01, 0.02)) for _ in range(3))
        self.again = Sleepy(0.01, 0.02)
        self.kept = Sleepy(0.01, 0.02)

    def forward(self, x):
        mixed = self.again(self.q(x)) + self.again(self.k(x)) + self.v(x)
        return checkpoint(self.kept, mixed, use_reentrant=True)


@pytest.mark.long
def test_sleepers_take_what_they_sleep(tmp_path):
    model = SleepyBlock()
    rows = train(tmp_path / "run", model, lambda: torch.randn(2, 4), steps="wait=1,count=0,time=4,trace=0",
                 num_steps=5).modules()

    def holds(found: float, slept: list[float], calls: int) -> bool:
        return found >= sum(slept[calls:]) / 4 * 1e9  # how close is exact on a simulated clock, and in `make stress`

    for path, module, calls in (("q.1", model.q[1], 1), ("k.1", model.k[1], 1), ("v.1", model.v[1], 1),
                                ("again", model.again, 2)):
        assert holds(rows[path]["fwd_time_ns"], module.slept_forward, calls)
        assert holds(rows[path]["bwd_time_ns"], module.slept_backward, calls)
        assert rows[path]["fwd_self_time_ns"] == rows[path]["fwd_time_ns"]
    assert holds(rows["kept"]["fwd_time_ns"], model.kept.slept_forward[::2], 1)
    assert holds(rows["kept"]["recompute_time_ns"], model.kept.slept_forward[1::2], 1)
    assert holds(rows["kept"]["bwd_time_ns"], model.kept.slept_backward, 1)
    for phase in ("fwd", "bwd", "recompute"):
        own = sum(row[f"{phase}_self_time_ns"] or 0 for row in rows.values())
        assert own == pytest.approx(rows[""][f"{phase}_time_ns"], rel=1e-9)


@pytest.mark.long
@pytest.mark.parametrize("checkpointed", [False, True])
def test_stats_show_recomputed_time_where_there_is_some(tmp_path, checkpointed):
    block = nn.Linear(4, 4)
    model = nn.Sequential(nn.Linear(4, 4), Checkpointed(block, reentrant=False) if checkpointed else block, nn.Tanh())
    train(tmp_path / "run", model, lambda: torch.randn(2, 4))
    shown = distprof("stats", tmp_path / "run")
    assert shown.returncode == 0, shown.stderr
    assert ("recomputed" in next(line for line in shown.stdout.splitlines() if "top modules" in line)) == checkpointed


@pytest.mark.stress
@pytest.mark.parametrize("needs_grad", [False, True])
def test_ten_and_twenty_milliseconds_are_within_five_percent_of_what_was_slept(tmp_path, needs_grad):
    def attempt(_: object) -> None:
        model, warmup, runs = SleepyBlock(), 2, 20
        x = torch.randn(2, 4, requires_grad=needs_grad)
        found = totals(measure_latency(lambda: model(x).sum().backward(), warmup=warmup, runs=runs), model)

        def slept(naps: list[float]) -> object:
            per_run = len(naps) // (warmup + runs)
            return pytest.approx(sum(naps[warmup * per_run:]) / runs * 1e9, rel=0.05)

        for path, module in (("q.1", model.q[1]), ("k.1", model.k[1]), ("v.1", model.v[1]), ("again", model.again)):
            assert found[path].fwd_self_ns == slept(module.slept_forward), path
            assert found[path].bwd_self_ns == slept(module.slept_backward), path
        assert found["kept"].fwd_self_ns == slept(model.kept.slept_forward[::2])
        assert found["kept"].recompute_self_ns == slept(model.kept.slept_forward[1::2])
        assert found["kept"].bwd_self_ns == slept(model.kept.slept_backward)
        assert found[""].fwd_ns == pytest.approx(sum(latency.fwd_self_ns for latency in found.values()), rel=1e-9)

    most_hold(attempt, tmp_path, of=5, at_least=4)
