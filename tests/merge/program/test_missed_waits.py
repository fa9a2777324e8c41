"""Waits that a rank did not record are found from what the others recorded; the truth is a simulated job."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from distprof.merge.activity.intervals import Intervals
from distprof.merge.cost.measured_run import measured_run
from distprof.merge.program.missed_waits import missed_waits
from distprof.merge.run.open_run import open_run
from support.simulator.cases import random_case
from support.simulator.run_folder import Recorder

pytestmark = pytest.mark.long

WAITS = ("wait_start_ns", "wait_end_ns")


def recorded(family: str, seed: int, folder) -> pl.DataFrame:
    """Collectives of a job of eight ranks, by rank and call."""
    case = random_case(seed, (8, 8), family)
    recorder = Recorder(mesh=case.recorder.mesh, mp_size=case.recorder.mp_size)
    run = replace(case, recorder=recorder, _run={}).write(folder)
    return measured_run(open_run(run)).collectives.sort("rank", "enqueue_ns", "end_ns")


def length(times: Intervals) -> int:
    return int((times.ends - times.starts).sum())


def without(rows: pl.DataFrame, lost: pl.Series) -> tuple[pl.DataFrame, pl.DataFrame]:
    """What is found of lost waits, and what they were; by row."""
    waited = pl.col(WAITS[0]).is_not_null()
    numbered = rows.with_row_index("row", 0).with_columns(pl.col("row").cast(pl.Int64), lost=lost)
    known = numbered.filter(waited, ~pl.col("lost"))
    found = missed_waits(rows, *(known[name].to_numpy() for name in ("row", *WAITS)))
    return (pl.DataFrame(dict(zip(("row", "began", "until"), found, strict=True))),
            numbered.filter(waited, pl.col("lost")).select("row", "enqueue_ns", began=WAITS[0], until=WAITS[1]))


FAMILIES = ["ddp", "fsdp", "hsdp", "tp_dp", "gpipe_dp", "pp_dp_tp", "accumulating"]
SEEDS = [1, *(pytest.param(seed, marks=pytest.mark.stress) for seed in range(2, 12))]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_rank_that_recorded_no_wait_waited_as_its_peers_did(family, seed, tmp_path):
    rows = recorded(family, seed, tmp_path / "run")
    found, was = without(rows, rows["rank"] == 1)
    assert found["row"].to_list() == was["row"].to_list()
    waited, seen = (Intervals.of(one["began"].to_numpy(), one["until"].to_numpy()) for one in (was, found))
    wrong = length((waited - seen) | (seen - waited))
    lasted = rows["end_ns"].max() - rows["enqueue_ns"].min()
    assert length(waited) > 0
    assert wrong <= 0.02 * lasted


@pytest.mark.parametrize("family", FAMILIES[:4])
def test_a_few_waits_that_were_missed_are_found_on_every_rank(family, tmp_path):
    rows = recorded(family, 1, tmp_path / "run")
    found, was = without(rows, pl.Series(np.random.default_rng(1).random(len(rows)) < 0.1))
    assert set(found["row"]) <= set(was["row"])
    assert len(found) >= 0.9 * len(was), "of two ranks that meet, both may have missed theirs"


def test_where_nobody_waits_no_wait_was_missed(tmp_path):
    rows = recorded("ddp", 1, tmp_path / "run")
    found, _ = without(rows, pl.Series(np.ones(len(rows), bool)))
    assert not len(found)
    is_first = rows["collective"] == rows["collective"].min()
    found, was = without(rows, is_first)
    assert len(was) and not len(found), "that none of its ranks waited for one collective was no oversight"
