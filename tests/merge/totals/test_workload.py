"""FLOP/s and MFU where the step whose FLOPs were counted has more or less data than the timed ones."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import chain, repeat

import polars as pl
import pytest
import torch
from torch import nn

from distprof.merge.totals.step_time import step_time
from distprof.merge.totals.workload import Workload, workload
from support.jobs import called
from support.recording import train

MS = 1_000_000


def of(*each: tuple[str, float, int | None], calls: int | None = 1, lengths: Sequence[int] = ()) -> Workload | None:
    """Of steps of one rank: pass, ms and samples; and how long these are."""
    rows = [(0, step, name, int(ms * MS), samples, samples and samples * (lengths[step] if lengths else 1), calls)
            for step, (name, ms, samples) in enumerate(each)]
    steps = pl.DataFrame(rows,
                         {"rank": pl.Int64, "step": pl.Int64, "pass": pl.String, "duration_ns": pl.Int64,
                          "samples": pl.Int64, "elements": pl.Int64, "forward_calls": pl.Int64}, orient="row")
    usual = step_time(steps)
    assert usual is not None
    return workload(steps, usual)


def test_a_step_like_the_counted_one_takes_its_part_of_the_time_of_the_others():
    """Three micro-batches of four, where the last part of the accumulation was counted."""
    found = of(("count", 300, 2), *[("time", 40, 8)] * 3, ("time", 10, 2))
    assert found is not None and found.unit == "samples" and found.is_unlike
    assert (found.usual, found.usual_ns, found.most_often) == (6.5, 32.5 * MS, 8)
    assert found.counted_ns == pytest.approx(10 * MS)


def test_a_step_that_takes_long_for_another_reason_does_not_count():
    found = of(("count", 300, 8), *[("time", 40, 8)] * 5, ("time", 4000, 8))
    assert found is not None and not found.is_unlike and found.counted_ns == 40 * MS


def test_where_samples_are_not_known_forward_calls_tell():
    found = of(("count", 300, None), ("time", 40, None), calls=3)
    assert found is not None and (found.unit, found.counted) == ("forward_calls", 3)
    assert of(("count", 300, None), ("time", 40, None), calls=None) is None
    assert of(("count", 300, None), ("time", 40, 8)).counted is None


def test_of_samples_that_differ_in_length_elements_tell():
    """Each element takes 1/8 ms, each step 5 ms before; one took long for another reason."""
    lengths = [64, 128, 256, 192, 64, 320, 32]
    took = [("time", 5 + 0.125 * 4 * length, 4) for length in lengths[1:]]
    took[2] = ("time", 900, 4)
    found = of(("count", 300, 4), *took, lengths=lengths)
    assert found is not None and (found.unit, found.counted) == ("elements", 256) and found.is_unlike
    assert found.usual == pytest.approx(4 * sum(lengths[1:]) / 6)
    assert found.usual_ns == pytest.approx((5 + 0.125 * found.usual) * MS)


@pytest.mark.parametrize("lengths", [[64, 64, 64], [0, 0, 0]])
def test_of_samples_of_one_length_their_number_tells(lengths):
    found = of(("count", 300, 4), ("time", 20, 4), ("time", 40, 8), lengths=lengths)
    assert found is not None and (found.unit, found.counted, found.usual) == ("samples", 4, 6)


@pytest.mark.long
def test_rates_of_padded_sequences_are_of_sequences_as_long_as_most(tmp_path):
    lengths = chain((32, 8), repeat(32))
    train(tmp_path / "run", nn.Linear(16, 16), lambda: torch.ones(4, next(lengths), 16),
          steps="wait=1,count=1,time=6,trace=0,arrivals=0", num_steps=9)
    found = json.loads(called("stats", "--json", "--peak", "1e12", tmp_path / "run").stdout)
    step, counted = found["step"], 2 * 2 * 4 * 8 * 16 * 16
    assert found["per_gpu"]["fwd_flops"]["mean"] + found["per_gpu"]["bwd_flops"]["mean"] == counted
    assert step["samples"] == 4
    assert step["flops_per_second"] == pytest.approx(32 / 8 * counted / step["time_ns"] * 1e9)
    said = called("stats", tmp_path / "run").stdout
    assert "the counted step had 512 input elements, the average step 2.05 K" in said


@pytest.mark.long
@pytest.mark.parametrize("first", [2, 8])
def test_rates_are_of_steps_as_they_are(tmp_path, first):
    """The counted step has `first` samples, the timed ones 8."""
    sizes = chain((8, first), repeat(8))
    train(tmp_path / "run", nn.Sequential(nn.Linear(16, 16), nn.ReLU()), lambda: torch.ones(next(sizes), 16),
          steps="wait=1,count=1,time=6,trace=0,arrivals=0", num_steps=9)
    found = json.loads(called("stats", "--json", "--peak", "1e12", tmp_path / "run").stdout)
    step = found["step"]
    counted = found["per_gpu"]["fwd_flops"]["mean"] + found["per_gpu"]["bwd_flops"]["mean"]
    assert counted == 2 * first * 2 * 16 * 16  # no gradient of the input
    rate = 8 / first * counted / step["time_ns"] * 1e9
    assert step["flops_per_second"] == pytest.approx(rate) and step["mfu"] == pytest.approx(rate / 1e12)
    said = "the counted step had 2 samples, the average step 8" in called("stats", tmp_path / "run").stdout
    assert said == (first == 2)
