"""Bubble and balance of pipelines: drawn numbers, and schedules whose bubble is known."""

from __future__ import annotations

import json
from dataclasses import replace

import polars as pl
import pytest

from distprof.merge.totals.totals import pipeline_of
from support.drawn_rows import run_of as drawn_run
from support.jobs import SCRIPTS, distprof, record_run


def staged(*stages: int):
    run = drawn_run(len(stages))
    ranks = [replace(rank, coordinates={"pp": stage}) for rank, stage in zip(run.ranks, stages, strict=True)]
    return replace(run, ranks=ranks, topology={"pp": max(stages) + 1})


def steps(*rows: tuple[int, int, int, int, int]) -> pl.DataFrame:
    names = ("rank", "duration_ns", "waiting_ns", "message_waiting_ns", "moving_ns")
    return pl.DataFrame(rows, schema=dict.fromkeys(names, pl.Int64), orient="row")


def test_the_bubble_is_the_mean_over_stages_of_waiting_for_messages():
    run = staged(0, 0, 1, 1)
    first, last = (100, 40, 30, 10), (100, 10, 10, 0)
    found = pipeline_of(run, steps((0, *first), (1, *first), (2, *last), (3, *last)))
    assert found.bubble_ratio == pytest.approx(0.2)
    assert [(one.stage, one.work_ns, one.waiting_ns) for one in found.stages] == [(0, 50, 30), (1, 90, 10)]
    assert found.imbalance_ratio == pytest.approx(90 / 70)


def test_without_stages_or_with_a_stage_unknown_there_is_none():
    row = (0, 100, 40, 30, 10)
    assert pipeline_of(staged(0, 0), steps(row)) is None
    assert pipeline_of(staged(0, 1), steps(row)) is None
    assert pipeline_of(staged(0, 1), steps()) is None


@pytest.mark.stress
@pytest.mark.parametrize(("schedule", "chunks"), [("1f1b", 1), ("gpipe", 1), ("interleaved", 2)])
def test_the_bubble_of_equal_stages_is_that_of_the_schedule(tmp_path, schedule, chunks):
    stages, microbatches = 4, 8
    record_run(tmp_path / "run", stages, SCRIPTS / "timed_pipeline.py", schedule, chunks,
               flags=("--steps", "wait=1,count=1,time=2,trace=4,arrivals=0"))
    summary = json.loads(distprof("stats", "--json", tmp_path / "run").stdout)
    found = summary["communication"]["pipeline"]
    assert found["bubble_ratio"] == pytest.approx((stages - 1) / (chunks * microbatches + stages - 1), abs=0.05)
    assert found["imbalance_ratio"] == pytest.approx(1, abs=0.15)
    assert summary["topology"] == {"pp": 4, "dp": 1}
