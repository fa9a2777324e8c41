"""Late ranks of jobs on GPUs, whose waits lie in kernels: simulated, so that the job without the delay is known."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from distprof.contract.paths import rank_folder
from distprof.merge.blame.analysis import VAGUE, Analysis
from distprof.merge.blame.culprits import Culprit
from distprof.merge.critical.replayable import open_replayable
from distprof.merge.totals.findings import EVERYTHING, findings_of
from distprof.merge.whatif.changes import Changes
from distprof.merge.whatif.prediction import predict
from distprof.summaries.host_file import append
from distprof.summaries.maker import summarise
from support.simulator.device_job import DeviceJob, Slow

MATERIAL = 0.03
"""Delays that cost less of a step need not be named."""


def analysed(job: DeviceJob, folder: Path) -> Analysis:
    found = findings_of(job.write(folder), choice=EVERYTHING).analysis
    assert found is not None and found.blind is None
    return found


def certain(found: Analysis) -> list[Culprit]:
    return [one for one in found.culprits if one.certain]


def random_job(seed: int) -> DeviceJob:
    """At most one rank is late."""
    chance = random.Random(seed)
    num_ranks, layers = chance.choice([4, 6, 8]), chance.randint(2, 8)
    phase = chance.choice(["forward", "backward", "data", "optimizer"])
    slow = Slow(chance.randrange(num_ranks), phase, chance.randrange(layers) if phase.endswith("ward") else None,
                chance.choice([500_000, 2_000_000, 8_000_000]))
    return DeviceJob(
        num_ranks=num_ranks, layers=layers, steps=chance.choice([8, 12]), seed=seed,
        kernel_ns=chance.choice([20_000, 200_000, 1_500_000, 5_000_000]), noise=chance.choice([0.0, 0.01, 0.05]),
        move_ns=chance.choice([50_000, 400_000, 2_000_000, 6_000_000]), sharded=chance.random() < 0.5,
        slow=(slow,) if chance.random() < 0.8 else ())


def check(job: DeviceJob, found: Analysis) -> str:
    """missed, if a delay that costs time is not named; vague, if no layer is; right. What is named may not be wrong."""
    named = certain(found)
    assert [one.rank for one in named] in ([], [one.rank for one in job.slow])
    step_ns = job.step_ns()
    gain_ns = step_ns - replace(job, slow=()).step_ns()
    if not named:
        return "right" if gain_ns < MATERIAL * step_ns else "missed"
    (one,), (slow,) = named, job.slow
    assert one.gain_ns == pytest.approx(gain_ns, rel=0.15, abs=0.01 * step_ns)
    cause = one.causes[0].kind, one.causes[0].where
    if cause == (slow.phase, None if slow.layer is None else f"layers.{slow.layer}"):
        return "right"
    assert cause[0] in VAGUE, cause
    return "vague"


@pytest.mark.long
@pytest.mark.parametrize("seed", range(12))
def test_a_late_rank_is_named_with_its_layer_and_what_it_costs(tmp_path, seed):
    job = random_job(seed)
    assert check(job, analysed(job, tmp_path)) == "right"


@pytest.mark.long
@pytest.mark.parametrize("seed", range(12))
def test_steps_without_a_timeline_cost_as_much_as_those_with_one(tmp_path, seed):
    job = replace(random_job(seed), steps=30, untraced=24)
    assert check(job, analysed(job, tmp_path)) == "right"


@pytest.mark.long
@pytest.mark.parametrize("seed", [0, 2, 7, 10, 11, 20])
def test_without_any_timeline_nobody_is_named_wrongly_and_nobody_is_cleared(tmp_path, seed):
    job = replace(random_job(seed), steps=30, untraced=30)
    found = findings_of(job.write(tmp_path), choice=EVERYTHING).analysis
    named = certain(found)
    assert found.blind == (None if named else "no timeline")
    gain_ns = job.step_ns() - replace(job, slow=()).step_ns()
    assert [(one.rank, one.gain_ns) for one in named] in (
        [], [(slow.rank, pytest.approx(gain_ns, rel=0.05)) for slow in job.slow])


@pytest.mark.long
@pytest.mark.parametrize("seed", [0, 7, 12, 13])
def test_without_overlap_steps_take_as_long_as_if_streams_waited_at_once(tmp_path, seed):
    job = replace(random_job(seed), sharded=False, slow=(), steps=8)
    found = open_replayable(job.write(tmp_path))
    predicted = predict(found.program, found.job, Changes(no_overlap=True), found.program.traced, coordinates={},
                        clock_ns=0)
    truth_ns = replace(job, overlaps=False).step_ns()
    assert predicted.of_steps["predicted_ns"].mean() == pytest.approx(truth_ns, rel=0.01)
    assert truth_ns > 1.01 * job.step_ns()


@pytest.mark.stress
@pytest.mark.parametrize("untraced", [0, 20])
def test_of_many_jobs_99_in_100_are_judged_and_none_wrongly(tmp_path, untraced):
    jobs = [replace(one, steps=one.steps + untraced, untraced=untraced) for one in map(random_job, range(100, 400))]
    found = Counter(check(job, analysed(job, tmp_path / str(job.seed))) for job in jobs)
    assert found["missed"] <= 3 and found["vague"] <= 9, found


@pytest.mark.long
def test_kernels_that_wait_for_other_collectives_are_no_work(tmp_path):
    """All of a step lies behind a loader that is late, and each all_reduce behind the one before."""
    job = DeviceJob(num_ranks=4, layers=8, kernel_ns=200_000, move_ns=50_000, noise=0.0,
                    slow=(Slow(1, "data", None, 8_000_000),))
    (one,) = certain(analysed(job, tmp_path))
    assert (one.rank, [(cause.kind, cause.where) for cause in one.causes]) == (1, [("data", None)])
    assert one.gain_ns == pytest.approx(8_000_000, rel=0.01)


@pytest.mark.long
def test_delays_that_hide_behind_each_other_are_both_named(tmp_path):
    job = DeviceJob(num_ranks=6, slow=(Slow(2, "forward", 1, 1_000_000), Slow(0, "backward", 2, 2_000_000)))
    first, second = certain(analysed(job, tmp_path))
    assert [(one.rank, one.causes[0].kind, one.causes[0].where) for one in (first, second)] == [
        (0, "backward", "layers.2"), (2, "forward", "layers.1")]
    alone = [job.step_ns() - replace(job, slow=slow).step_ns() for slow in (job.slow[:1], ())]
    assert [first.gain_ns, first.gain_ns + second.gain_ns] == pytest.approx(alone, rel=0.1)


@pytest.mark.long
def test_of_more_ranks_than_are_read_without_summaries_the_tables_are_read(tmp_path):
    job = DeviceJob(num_ranks=72, slow=(Slow(50, "backward", 2, 2_000_000),))
    run = job.write(tmp_path)
    for rank in range(72):
        append(run, summarise(run / rank_folder(rank)))
    found = findings_of(run, choice=EVERYTHING, of_rows=False)
    assert not found.run.by_host
    assert [(one.rank, one.causes[0].kind, one.causes[0].where) for one in certain(found.analysis)] == [
        (50, "backward", "layers.2")]
