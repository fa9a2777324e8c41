"""Late ranks found in summaries of many, in simulated jobs: what a delay costs is known from the job without it."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from distprof.contract.paths import rank_folder
from distprof.contract.tables import COLLECTIVES, STEPS
from distprof.merge.blame.analysis import Analysis, analyse
from distprof.merge.blame.culprits import Basis, Culprit
from distprof.merge.blame.of_summaries import analysis_of_summaries
from distprof.merge.blame.summarised.arrays import RankArrays, Stood
from distprof.merge.blame.summarised.waited_for import Waits
from distprof.merge.commands.comms import View, comms
from distprof.merge.commands.stats import stats
from distprof.merge.cost.measured_run import measured_run
from distprof.merge.levels import all_tables
from distprof.merge.levels.level_run import level_run
from distprof.merge.report.sources import Sources
from distprof.merge.run import recorded
from distprof.merge.run.open_run import open_run
from distprof.merge.run.tables import read_table
from distprof.merge.text.communication.culprits import culprit_lines
from distprof.merge.totals.findings import EVERYTHING
from distprof.merge.totals.read_findings import findings_of
from distprof.summaries.host_file import append
from distprof.summaries.maker import summarise
from support.jobs import ROOT
from support.many_ranks import SlowLink
from support.simulator.engine import Simulation
from support.simulator.run_folder import Recorder
from support.simulator.shapes import SHAPES, Plant, programs

RANKS = 24


@pytest.fixture(autouse=True)
def _many(monkeypatch) -> None:
    """So many are not read without summaries."""
    monkeypatch.setattr(recorded, "MANY_RANKS", RANKS - 1)


@pytest.fixture
def jobs(monkeypatch) -> Any:
    """Made-up jobs in tensor, pipeline and data parallel groups."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import late_of_many

    return late_of_many


def tallied(jobs: Any, folder: Path, first: int, number: int, sizes: tuple[int, int, int]) -> Counter[str]:
    total = Counter[str]()
    for seed in range(first, first + number):
        job = jobs.random_job(seed, sizes)
        jobs.write(run := folder / str(seed), job)
        every = jobs.step_ns(job, ())
        costs = [jobs.step_ns(job, [plant]) / every - 1 for plant in job.plants]
        total.update(jobs.tally(job, [one for one in jobs.judged(run)[0].culprits if one.certain], costs))
    return total


@pytest.mark.long
def test_ranks_that_cost_the_job_time_are_named_with_their_cause_and_nobody_else(jobs, tmp_path):
    found = tallied(jobs, tmp_path, 2, 3, (2, 9, 4))
    assert found["worth"] >= 10 and found["harmless"] >= 5
    assert found["right"] == found["worth"] and not found["false"] and not found["harmless but named"], found


@pytest.mark.stress
def test_of_a_thousand_ranks_too(jobs, tmp_path):
    found = tallied(jobs, tmp_path, 0, 40, (4, 32, 8))
    assert found["right"] >= 0.99 * found["worth"] and found["false"] <= 0.01 * found["jobs"], found


@pytest.mark.stress
def test_of_a_thousand_equal_ranks_none_is_named(jobs, tmp_path):
    named = 0
    for seed in range(40):
        job = jobs.NoisyJob(pp=4, dp=32, tp=8, seed=seed, jitter=0.02, pauses=0.002)
        jobs.write(run := tmp_path / str(seed), job)
        named += any(one.certain for one in jobs.judged(run)[0].culprits)
    assert named <= 1


def with_summaries(folder: Path, name: str, *plants: Plant) -> Path:
    job = Simulation(programs(SHAPES[name], RANKS, 8, 1, plants=plants, jitter=0.02), lanes=2)
    run = Recorder(mp_size=4 if name == "tp_dp" else 1).write(job, folder / "run")
    for rank in range(RANKS):
        append(run, summarise(run / rank_folder(rank)))
    return run


def by_summaries(run: Path) -> Analysis:
    opened = open_run(run, exact=False)
    return analysis_of_summaries(level_run(opened, read_table(opened, STEPS).rows))


def by_tables(run: Path) -> Analysis:
    found = measured_run(open_run(run))
    return analyse(found.run, found.clock, found.collectives, read_table(found.run, STEPS).rows)


@pytest.mark.long
@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("sizes", [(1, 6, 8), (2, 3, 8)])
def test_a_slow_host_is_one_finding(jobs, tmp_path, sizes, exact):
    """Its ranks are in one tensor-parallel group: fixing one gains nothing, all of them what the job lost."""
    pp, dp, tp = sizes
    job = jobs.NoisyJob(pp=pp, dp=dp, tp=tp, seed=3, jitter=0.005, plants=[
        jobs.Plant(rank, "forward", 1, 6_000_000) for rank in range(16, 24)])
    jobs.write(run := tmp_path / "run", job, full=exact)
    late_ns, every = jobs.step_ns(job, job.plants), range(job.num_ranks)
    cost_ns, alone_ns = late_ns - jobs.step_ns(job, ()), late_ns - jobs.step_ns(job, job.plants[1:])
    found = [one for one in (by_tables(run) if exact else by_summaries(run)).culprits if one.certain]
    assert [(one.host, one.ranks) for one in found] == [("host00002", [*range(16, 24)])]
    one = found[0]
    assert one.gain_ns == pytest.approx(cost_ns, rel=0.1) and one.last_gain_ns == pytest.approx(cost_ns, rel=0.1)
    assert abs(one.alone_gain_ns - alone_ns) < 0.02 * cost_ns
    lines = list(culprit_lines(found, every))
    assert lines[0].startswith("Host host00002 (ranks 16-23) delays every step by ")
    assert "Fixing all of them would cut the step" in lines[1] and lines[1].endswith("one would save nothing.")


@pytest.mark.long
@pytest.mark.parametrize(("sizes", "slow", "hosts"), [
    ((2, 4, 8), [(0, 3)], 4), ((4, 2, 8), [(0, tp) for tp in range(8)], 2), ((2, 4, 8), [(1, 3)], 0),
    ((2, 4, 8), [], 0)])
def test_groups_that_move_data_slowly_are_named_with_what_they_cost(jobs, tmp_path, sizes, slow, hosts):
    """Those of the last stage have until the first one is ready, so nothing is gained by them."""
    pp, dp, tp = sizes
    job = jobs.NoisyJob(pp=pp, dp=dp, tp=tp, seed=3, jitter=0.005,
                        slow=[SlowLink(stage, place, 5_000_000) for stage, place in slow])
    jobs.write(run := tmp_path / "run", job, full=True)
    cost_ns = jobs.step_ns(job, ()) - jobs.step_ns(replace(job, slow=()), ())
    found = by_tables(run)
    assert not any(one.certain for one in found.culprits)
    if not hosts:
        assert not found.slow_groups and cost_ns < 1e6
        return
    one, = found.slow_groups
    assert len(one.hosts) == hosts and one.groups == sorted([place, *range(place + 8, 8 * dp, 8)] for _, place in slow)
    assert one.gain_ns == pytest.approx(cost_ns, rel=0.1) and abs(one.gain_ns - cost_ns) < one.gain_error_ns
    assert one.moving_ns - one.of_others_ns == pytest.approx(20e6, rel=0.05)
    lines = list(culprit_lines(found.culprits, range(job.num_ranks), slow_groups=found.slow_groups))
    assert re.search("(group|data) moves (data )?slowly: all_reduce of ranks", lines[-2])
    assert "would cut the step from" in lines[-1]
    if len(slow) == 1:
        found = by_summaries(run)
        assert [other.groups for other in found.slow_groups] == [one.groups]
        assert found.slow_groups[0].gain_ns >= 0.9 * cost_ns and found.slow_groups[0].gain_error_ns is None


def said(one: Culprit) -> tuple[Any, ...]:
    return one.rank, one.certain, one.causes[0].kind, one.causes[0].where


@pytest.mark.long
@pytest.mark.parametrize(("name", "plants"), [
    ("ddp", [Plant(2, "data", None, 4_000_000)]),
    pytest.param("ddp", [Plant(22, "forward", "layers.3", 4_000_000)], marks=pytest.mark.stress),
    ("fsdp", [Plant(5, "backward", "layers.1", 4_000_000)]),
    ("tp_dp", [Plant(9, "backward", "layers.2", 3_000_000), Plant(20, "data", None, 3_000_000)])])
def test_summaries_and_a_second_look_say_what_all_tables_say(tmp_path, name, plants):
    run = with_summaries(tmp_path, name, *plants)
    found, exact = by_summaries(run), by_tables(run)
    assert sorted(map(said, found.culprits)) == sorted(map(said, exact.culprits)) == sorted(
        (plant.rank, True, plant.kind, plant.where) for plant in plants)
    true = {one.rank: one for one in exact.culprits}
    for one in found.culprits:
        assert one.last_gain_ns == pytest.approx(true[one.rank].last_gain_ns, rel=0.1)
        assert abs(one.last_gain_ns - true[one.rank].last_gain_ns) <= one.gain_error_ns
    assert found.basis.summaries == RANKS and {plant.rank for plant in plants} <= set(found.basis.tables)
    assert len(found.basis.tables) <= 3 * len(plants)
    lines = list(culprit_lines(found.culprits, range(RANKS), basis=found.basis))
    assert lines[-1].startswith(f"  from summaries of {RANKS} ranks, causes from tables of ranks ")


@pytest.mark.long
def test_without_tables_a_cause_that_summaries_cannot_tell_is_unknown(tmp_path):
    """No step was timed apart, and DDP calls in backward alone: what was in front of that may have been anything."""
    run = with_summaries(tmp_path, "ddp", Plant(2, "data", None, 4_000_000))
    for table in run.glob("rank*/*.parquet"):
        table.unlink()
    found = by_summaries(run)
    assert [said(one) for one in found.culprits] == [(2, True, "unknown", None)]
    assert found.basis == Basis(summaries=RANKS, tables=[])
    assert list(culprit_lines(found.culprits, range(RANKS), basis=found.basis))[-1] == "  from summaries of 24 ranks"


@pytest.mark.long
def test_ranks_that_never_stand_still_are_not_judged(tmp_path, monkeypatch):
    """So do threads that work with a GPU: a wait takes as long as to ask for it."""
    job = Simulation(programs(SHAPES["ddp"], RANKS, 8, 1, plants=[Plant(2, "data", None, 4_000_000)]), lanes=2)
    run = Recorder().write(job, tmp_path / "run")
    for rank in range(RANKS):
        table = run / rank_folder(rank) / COLLECTIVES.file
        rows = pq.read_table(table)
        place = rows.schema.get_field_index("wait_end_ns")
        pq.write_table(rows.set_column(place, rows.schema.field(place), pc.add(rows["wait_start_ns"], 20_000)), table)
        append(run, summarise(run / rank_folder(rank)))
    assert by_summaries(run).blind == "no wait" and not by_summaries(run).culprits
    assert findings_of(run, choice=EVERYTHING, exact=False).run.summaries is None, "all tables are read in their place"
    assert json.loads(stats(run, as_json=True))["read"]["summaries"] == Sources(run).summary["read"]["summaries"] == 0
    monkeypatch.setattr(all_tables, "MOST_ROWS", 1000)
    found = findings_of(run, choice=EVERYTHING, exact=False)
    assert found.run.summaries is not None and found.analysis.blind == "no wait"
    for shown in (comms(run, choice=EVERYTHING, view=View()), stats(run)):
        assert "unknown\n  hint: distprof comms --exact looks at the timelines of all ranks" in shown


@pytest.mark.long
def test_ranks_without_collectives_are_not_judged(tmp_path):
    run = Recorder().write(Simulation(programs(SHAPES["ddp"], RANKS, 4, 1), lanes=1), tmp_path / "run")
    for rank in range(RANKS):
        (run / rank_folder(rank) / COLLECTIVES.file).unlink()
        append(run, summarise(run / rank_folder(rank)))
    assert by_summaries(run).blind == "no collective" and by_summaries(run).basis is None


@pytest.mark.long
def test_stages_that_nothing_tells_apart_are_not_compared(tmp_path):
    run = with_summaries(tmp_path, "pp_dp", Plant(2, "forward", "stage.0", 4_000_000))
    assert (by_summaries(run).blind, by_summaries(run).culprits) == ("no peers", [])


# --- who waits for whom, on numbers that can be worked out by hand ----------------------------------------------------


def waits_of(waited: dict[tuple[int, ...], list[int]], replica: list[int]) -> Waits:
    """One step; group -> how long each of its ranks waits."""
    rows = [(rank, 0, number, ns) for number, (ranks, each) in enumerate(waited.items())
            for rank, ns in zip(ranks, each, strict=True)]
    row, step, where, ns = (np.array(column, np.int64) for column in zip(*rows, strict=True))
    none, size = np.empty(0, np.int64), len(replica)
    stood = Stood(row=row, step=step, where=where, ns=ns, calls=np.ones(len(row), np.int64))
    return Waits(RankArrays(
        ranks=np.arange(size), steps=[0], peers=[], in_groups=stood,
        for_messages=Stood(row=none, step=none, where=none, ns=none, calls=none), step_ns=np.full(size, 100.0),
        replica=np.array(replica), windows=pl.DataFrame(), left_out=[]))


def test_a_rank_costs_what_everybody_else_waits_for_it():
    waits = waits_of({(0, 1, 2, 3): [50, 10, 40, 60]}, replica=[0, 1, 2, 3])
    assert waits.waited_for(np.zeros(4)).most_ns.tolist() == [-40, 30, -30, -50]


def test_a_late_rank_behind_which_another_hides_costs_as_much_once_that_is_fixed():
    waits = waits_of({(0, 1, 2, 3): [50, 10, 12, 60]}, replica=[0, 1, 2, 3])
    fixed = np.array([0, 40, 38, 0])
    assert waits.waited_for(np.zeros(4)).most_ns[[1, 2]].tolist() == [2, -2]
    assert waits.waited_for(fixed).most_ns[[1, 2]].tolist() == [40, 38]


def test_a_rank_that_its_own_replica_does_not_wait_for_is_not_to_blame():
    """tp2 x dp2: ranks 0 and 1 are one replica, which is late as rank 1 is; rank 0 is late, and waits all the same."""
    waits = waits_of({(0, 1): [20, 0], (2, 3): [1, 1], (0, 2): [0, 20], (1, 3): [0, 20]}, replica=[0, 0, 1, 1])
    assert waits.waited_for(np.zeros(4)).most_ns.tolist() == [-20, 20, -20, -20]


def test_nobody_is_late_where_others_of_the_replica_wait_but_no_other_replica():
    """What the replica loses, it would have waited anyway."""
    waits = waits_of({(0, 1): [20, 0], (2, 3): [1, 1], (0, 2): [9, 9], (1, 3): [9, 9]}, replica=[0, 0, 1, 1])
    assert waits.waited_for(np.zeros(4)).most_ns[1] == 0
