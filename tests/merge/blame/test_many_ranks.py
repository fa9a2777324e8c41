"""Late ranks of many, in simulated jobs: what a delay costs is known from the job without it."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from distprof.contract.paths import rank_folder
from distprof.contract.tables import COLLECTIVES, STEPS
from distprof.launch.commands.comms import comms_text
from distprof.launch.commands.stats import stats_text
from distprof.merge.blame import first_cut
from distprof.merge.blame.analysis import Analysis, analyse
from distprof.merge.blame.culprits import Culprit
from distprof.merge.blame.of_many import analysis_of_many
from distprof.merge.cost.joined_run import joined_run
from distprof.merge.cost.measured_run import measured_run
from distprof.merge.report.sources import Sources
from distprof.merge.run import recorded, representatives
from distprof.merge.run.open_run import open_run
from distprof.merge.run.tables import read_table
from distprof.merge.text.communication.culprits import culprit_lines
from distprof.merge.totals.findings import EVERYTHING, findings_of
from distprof.summaries.host_file import append
from distprof.summaries.maker import summarise
from support.jobs import ROOT
from support.many_ranks import PASSES, SlowLink
from support.simulator.engine import Simulation
from support.simulator.run_folder import Recorder
from support.simulator.shapes import SHAPES, Plant, programs

RANKS = 24
SOME_STEPS = ("wait", "count", *("time",) * 3, *("trace",) * 4, *("arrivals",) * 6)


@pytest.fixture(autouse=True)
def _many(monkeypatch) -> None:
    """So many are read from the files of their hosts."""
    monkeypatch.setattr(recorded, "MANY_RANKS", RANKS - 1)


@pytest.fixture
def jobs(monkeypatch) -> Any:
    """Made-up jobs in tensor, pipeline and data parallel groups."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import late_of_many

    return late_of_many


def noisy(jobs: Any, sizes: tuple[int, int, int], *, microbatches: int = 2, **more: Any) -> Any:
    """A job of few calls, of which replays are short."""
    pp, dp, tp = sizes
    return jobs.NoisyJob(pp=pp, dp=dp, tp=tp, layers=3, microbatches=microbatches, jitter=0.005, **more)


def tallied(jobs: Any, folder: Path, first: int, number: int, sizes: tuple[int, int, int],
            passes: Sequence[str] = PASSES) -> Counter[str]:
    total = Counter[str]()
    for seed in range(first, first + number):
        job = jobs.random_job(seed, sizes)
        jobs.write(run := folder / str(seed), job, passes=passes)
        every = jobs.step_ns(job, ())
        costs = [jobs.step_ns(job, [plant]) / every - 1 for plant in job.plants]
        total.update(jobs.tally(job, [one for one in jobs.judged(run)[0].culprits if one.certain], costs))
    return total


@pytest.mark.long
def test_ranks_that_cost_the_job_time_are_named_with_their_cause_and_nobody_else(jobs, tmp_path):
    found = tallied(jobs, tmp_path, 2, 3, (2, 9, 4), SOME_STEPS)
    assert found["worth"] >= 10 and found["harmless"] >= 5
    assert found["right"] == found["worth"] and not found["false"] and not found["harmless but named"], found


@pytest.mark.parametrize("num_peers", [3, 20, 300])
def test_timers_are_compared_with_those_of_the_peers_that_work_as_the_median_does(num_peers):
    """And with all of few."""
    work = np.random.default_rng(num_peers).permutation(num_peers).astype(float)
    cut = first_cut.FirstCut(steps=(), num_ranks=num_peers, chosen=(), peers=[
        first_cut.Peers(ranks=np.arange(num_peers), work=work[:, None])])
    rank, *others = cut.peers_of(1)
    assert (rank, len(set(others) - {1})) == (1, min(num_peers - 1, first_cut.SOME))
    left_out = set(range(num_peers)) - {1, *others}
    apart = np.abs(work - np.median(work))
    assert max(apart[others]) <= min(apart[list(left_out)], default=np.inf)
    assert cut.near(1)[0] == others[0] and 1 not in cut.near(1) and not cut.near(num_peers)


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


def with_columns(folder: Path, name: str, *plants: Plant) -> Path:
    job = Simulation(programs(SHAPES[name], RANKS, 8, 1, plants=plants, jitter=0.02), lanes=2)
    run = Recorder(mp_size=4 if name == "tp_dp" else 1).write(job, folder / "run")
    for rank in range(RANKS):
        append(run, summarise(run / rank_folder(rank)))
    return run


def by_hosts(run: Path) -> Analysis:
    opened = open_run(run, by_host=True)
    assert opened.by_host
    return analysis_of_many(joined_run(opened, read_table(opened, STEPS).rows))


def by_tables(run: Path) -> Analysis:
    found = measured_run(open_run(run))
    return analyse(found.run, found.clock, found.collectives, read_table(found.run, STEPS).rows)


@pytest.mark.long
@pytest.mark.parametrize("sizes", [pytest.param((1, 6, 8), marks=pytest.mark.stress), (2, 3, 8)])
def test_a_slow_host_is_one_finding(jobs, tmp_path, sizes):
    """Its ranks are in one tensor-parallel group: fixing one gains nothing, all of them what the job lost."""
    job = noisy(jobs, sizes, seed=3, plants=[
        jobs.Plant(rank, "forward", 1, 6_000_000) for rank in range(16, 24)])
    jobs.write(run := tmp_path / "run", job, full=True, passes=SOME_STEPS)
    late_ns = jobs.step_ns(job, job.plants)
    cost_ns, alone_ns = late_ns - jobs.step_ns(job, ()), late_ns - jobs.step_ns(job, job.plants[1:])
    for judged in (by_tables, by_hosts):
        one, = (one for one in judged(run).culprits if one.certain)
        assert (one.host, one.ranks) == ("host00002", [*range(16, 24)])
        assert one.gain_ns == pytest.approx(cost_ns, rel=0.1) and one.last_gain_ns == pytest.approx(cost_ns, rel=0.1)
        assert abs(one.alone_gain_ns - alone_ns) < 0.02 * cost_ns
        lines = list(culprit_lines([one], range(job.num_ranks)))
        assert lines[0].startswith("Host host00002 (ranks 16-23) delays every step by ")
        assert "Fixing all of them would cut the step" in lines[1] and lines[1].endswith("one would save nothing.")


@pytest.mark.long
@pytest.mark.parametrize(("sizes", "slow", "hosts"), [
    ((2, 4, 8), [(0, 3)], 4), ((4, 2, 8), [(0, tp) for tp in range(8)], 2), ((2, 4, 8), [(1, 3)], 0),
    ((2, 4, 8), [], 0)])
def test_groups_that_move_data_slowly_are_named_with_what_they_cost(jobs, tmp_path, sizes, slow, hosts):
    """Those of the last stage have until the first one is ready, so nothing is gained by them."""
    job = noisy(jobs, sizes, seed=3, slow=[SlowLink(stage, place, 5_000_000) for stage, place in slow])
    jobs.write(run := tmp_path / "run", job, full=True, passes=SOME_STEPS)
    cost_ns = jobs.step_ns(job, ()) - jobs.step_ns(replace(job, slow=()), ())
    found = by_tables(run)
    assert not any(one.certain for one in found.culprits)
    if not hosts:
        assert not found.slow_groups and cost_ns < 1e6
        return
    one, = found.slow_groups
    assert len(one.hosts) == hosts
    assert one.groups == sorted([place, *range(place + 8, 8 * sizes[1], 8)] for _, place in slow)
    assert one.gain_ns == pytest.approx(cost_ns, rel=0.1) and abs(one.gain_ns - cost_ns) < one.gain_error_ns
    assert one.moving_ns - one.of_others_ns == pytest.approx(job.layers * 5e6, rel=0.05)
    lines = list(culprit_lines(found.culprits, range(job.num_ranks), slow_groups=found.slow_groups))
    assert re.search("(group|data) moves (data )?slowly: all_reduce of ranks", lines[-2])
    assert "At the speed of the others, the step would go from" in lines[-1]
    if len(slow) == 1:
        found = by_hosts(run)
        assert [other.groups for other in found.slow_groups] == [one.groups]
        assert found.slow_groups[0].gain_ns >= 0.9 * cost_ns and found.slow_groups[0].gain_error_ns is None


@pytest.mark.long
@pytest.mark.parametrize("sizes", [(2, 9, 4), pytest.param((1, 72, 1), marks=pytest.mark.stress), (1, 18, 4)])
def test_those_that_are_replayed_tell_what_all_do(jobs, tmp_path, monkeypatch, sizes):
    """A third of the ranks, two of them late: one of them hides behind the other."""
    job = noisy(jobs, sizes, microbatches=4 if sizes[0] > 1 else 2, seed=5, plants=[
        jobs.Plant(9, "forward", 1, 6_000_000), jobs.Plant(30, "backward", 2, 4_000_000)])
    jobs.write(run := tmp_path / "run", job, full=True, passes=SOME_STEPS)
    exact = by_tables(run).culprits
    monkeypatch.setattr(first_cut, "MOST_REPLAYED", 24)
    found = by_hosts(run).culprits
    assert {one.rank for one in found if one.certain} == {one.rank for one in exact if one.certain} >= {9}
    true = {one.rank: one for one in exact}
    for one in (one for one in found if one.certain):
        assert one.gain_ns == pytest.approx(true[one.rank].gain_ns, rel=0.1, abs=5e4)
        assert one.num_peers == true[one.rank].num_peers and len(one.delayed) == job.num_ranks
        assert one.causes[0].kind == {9: "forward", 30: "backward"}[one.rank]


def said(one: Culprit) -> tuple[Any, ...]:
    return one.rank, one.certain, one.causes[0].kind, one.causes[0].where


@pytest.mark.long
@pytest.mark.parametrize(("name", "plants"), [
    ("ddp", [Plant(2, "data", None, 4_000_000)]),
    pytest.param("ddp", [Plant(22, "forward", "layers.3", 4_000_000)], marks=pytest.mark.stress),
    ("fsdp", [Plant(5, "backward", "layers.1", 4_000_000)]),
    ("tp_dp", [Plant(9, "backward", "layers.2", 3_000_000), Plant(20, "data", None, 3_000_000)])])
def test_of_many_ranks_is_said_what_all_tables_say(tmp_path, name, plants):
    run = with_columns(tmp_path, name, *plants)
    found, exact = by_hosts(run), by_tables(run)
    assert sorted(map(said, found.culprits)) == sorted(map(said, exact.culprits)) == sorted(
        (plant.rank, True, plant.kind, plant.where) for plant in plants)
    true = {one.rank: one for one in exact.culprits}
    for one in found.culprits:
        assert one.last_gain_ns == pytest.approx(true[one.rank].last_gain_ns, rel=0.02)


@pytest.mark.long
def test_without_timelines_a_cause_that_no_timer_shows_is_unknown(tmp_path):
    """No step was timed apart."""
    run = with_columns(tmp_path, "ddp", Plant(2, "data", None, 4_000_000))
    for table in run.glob("rank*/*.parquet"):
        table.unlink()
    found = by_hosts(run)
    assert [said(one) for one in found.culprits] == [(2, True, "unknown", None)]


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
    assert by_hosts(run).blind == "no wait" and not by_hosts(run).culprits
    assert not findings_of(run, choice=EVERYTHING, of_rows=False).run.by_host, "all tables are read"
    told = json.loads(stats_text(run, as_json=True))["communication"]
    assert told["blind"] == Sources(run).summary["communication"]["blind"]
    monkeypatch.setattr(representatives, "MOST_ROWS", 1000)
    found = findings_of(run, choice=EVERYTHING, of_rows=False)
    assert found.run.by_host and found.analysis.blind == "no wait"
    for shown in (comms_text(run), stats_text(run)):
        assert "no rank is known to have waited for a collective: whether a rank delays others is unknown" in shown


@pytest.mark.long
def test_ranks_without_collectives_are_not_judged(tmp_path):
    run = Recorder().write(Simulation(programs(SHAPES["ddp"], RANKS, 4, 1), lanes=1), tmp_path / "run")
    for rank in range(RANKS):
        (run / rank_folder(rank) / COLLECTIVES.file).unlink()
        append(run, summarise(run / rank_folder(rank)))
    assert by_hosts(run).blind == "no collective"


@pytest.mark.long
def test_stages_that_nothing_tells_apart_are_not_compared(tmp_path):
    run = with_columns(tmp_path, "pp_dp", Plant(2, "forward", "stage.0", 4_000_000))
    assert (by_hosts(run).blind, by_hosts(run).culprits) == ("no peers", [])
