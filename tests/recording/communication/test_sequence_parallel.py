"""Sequence parallel on gloo, which does a reduce_scatter as an all_reduce: every collective is timed all the same."""

from __future__ import annotations

import json

import polars as pl
import pytest

from support.jobs import SCRIPTS, distprof, record_run

pytestmark = pytest.mark.job
TRACED, ARRIVALS = (3, 4, 5), (6, 7)


@pytest.fixture(scope="module")
def run(recordings):
    return recordings.get("sequence_parallel", lambda out: record_run(
        out, 2, SCRIPTS / "sequence_parallel.py", flags=("--steps", "wait=1,count=1,time=1,trace=3,arrivals=2")))


def test_every_collective_has_start_end_and_waiting(run):
    rows = pl.concat(pl.read_parquet(run / f"rank0000{rank}" / "collectives.parquet") for rank in (0, 1))
    assert {"all_gather", "reduce_scatter", "all_reduce"} == set(rows["op"].unique())
    assert set(rows["step"].unique()) == {*TRACED, *ARRIVALS}
    for column in ("end_ns", "wait_start_ns", "wait_end_ns"):
        assert rows[column].null_count() == 0, column
    assert rows.filter(pl.col("step").is_in(TRACED))["start_ns"].null_count() == 0
    assert rows.filter(pl.col("wait_end_ns") < pl.col("wait_start_ns")).is_empty()


def test_totals_are_those_of_the_unsharded_model(run):
    found = json.loads(distprof("stats", "--json", run).stdout)
    width, depth, tokens = 8, 4, 3 * 8
    weights, whole = 2 * width * 4 * width, 2 * width + 4 * width + width
    assert found["topology"] == {"tp": 2} and found["topology_certain"]
    assert found["model"]["unique_params"] == depth * (weights + whole)
    assert found["model"]["fwd_flops"] == depth * 2 * tokens * weights
    assert found["model"]["bwd_flops"] == 2 * found["model"]["fwd_flops"]
