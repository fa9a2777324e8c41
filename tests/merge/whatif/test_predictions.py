"""Predictions for jobs that an independent simulation ran; the truth is the job that it runs with the change."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from distprof.errors import DataError, UsageError
from distprof.merge.critical.replayable import chosen_steps, open_replayable
from distprof.merge.text.whatif import _stragglers
from distprof.merge.whatif.changes import Changes, Scale, factor_of, scale_of
from distprof.merge.whatif.prediction import Prediction, predict
from distprof.merge.whatif.scaled import is_in
from distprof.merge.whatif.stragglers import too_much
from support.simulator.engine import Simulation
from support.simulator.loops import random_loop
from support.simulator.program import Call, Program, Wait, Work
from support.simulator.run_folder import Recorder
from support.simulator.shapes import SHAPES, Plant, programs

long = pytest.mark.long
NUM_STEPS = 9
NS_OF_BYTE, FIXED_NS = 0.4, 200_000


def job_of(*plants: Plant, name: str = "ddp", ranks: int = 4, jitter: float = 0.01) -> list[Program]:
    return programs(SHAPES[name], ranks, NUM_STEPS, 1, plants=plants, jitter=jitter)


def with_work(job: Sequence[Program], change: Callable[[int, Work], float]) -> list[Program]:
    """The programs with other times of work, by rank and piece."""
    return [[one._replace(ns=round(change(rank, one))) if isinstance(one, Work) else one for one in program]
            for rank, program in enumerate(job)]


def with_calls(job: Sequence[Program], change: Callable[[Call], Call]) -> list[Program]:
    return [[change(one) if isinstance(one, Call) else one for one in program] for program in job]


def predicted(job: Sequence[Program], changes: Changes, folder: Path, steps: Sequence[int] | None = None,
              lanes: int = 1) -> Prediction:
    found = open_replayable(Recorder().write(Simulation(job, lanes=lanes), folder / "run"))
    return predict(found.program, found.job, changes, found.program.traced if steps is None else steps,
                   coordinates={}, clock_ns=0)


def truth_of(job: Sequence[Program], steps: Sequence[int], lanes: int = 1) -> list[float]:
    """What steps take, a rank after the other in each step."""
    ran = Simulation(job, lanes=lanes)
    each = np.array([np.diff([0, *ran.step_ends(rank)]) for rank in range(len(job))])
    return each[:, list(steps)].T.reshape(-1).tolist()


def assert_predicts(found: Prediction, truth: Sequence[Program], lanes: int = 1, rel: float = 0.002) -> None:
    """Each step of each rank but the first of those that are changed: what was in front of it is not changed."""
    steps = found.steps[1:]
    mine = found.of_ranks.filter(found.of_ranks["step"].is_in(list(steps)))
    assert mine["predicted_ns"].to_list() == pytest.approx(truth_of(truth, steps, lanes), rel=rel)
    assert found.replay_error_ns <= 1e-3, "unchanged, it gives what was measured"


@long
@pytest.mark.parametrize("lanes", [1, 2])
@pytest.mark.parametrize(("text", "factor"), [
    ("rank=2,module=layers.3,phase=forward: 0.5", 0.5), ("rank=2, module=layers.3, phase=forward: 3x", 3.0),
    ("module=layers.3,phase=forward,rank=2-2: 0", 0.0)])
def test_a_module_takes_another_time(tmp_path, text, factor, lanes):
    job = job_of(Plant(2, "forward", "layers.3", 4_000_000))

    def change(rank: int, one: Work) -> float:
        return one.ns * (factor if (rank, one.kind, one.where) == (2, "forward", "layers.3") else 1)

    found = predicted(job, Changes(scales=[scale_of(text)]), tmp_path, lanes=lanes)
    assert_predicts(found, with_work(job, change), lanes)
    assert list(found.scaled_ns[0]) == [2]


def test_steps_that_are_meant_take_another_time_the_first_and_the_last_too(tmp_path):
    found = predicted(job_of(), Changes(scales=[scale_of("step=3-5: 0.5")]), tmp_path).of_steps
    shorter = found.filter(found["predicted_ns"] < 0.8 * found["replayed_ns"])
    assert shorter["step"].to_list() == [3, 4, 5] and len(found) > 3


@long
def test_work_that_two_scales_mean_belongs_to_the_first(tmp_path):
    job = job_of()

    def change(rank: int, one: Work) -> float:
        return one.ns * (0.5 if (one.kind, one.where) == ("forward", "layers.2") else 2 if rank == 1 else 1)

    scales = [scale_of("module=layers.2,phase=forward:0.5"), scale_of("rank=1:2")]
    assert_predicts(predicted(job, Changes(scales=scales), tmp_path), with_work(job, change), rel=0.01)


@long
@pytest.mark.parametrize("every", [1, 2, 4])
@pytest.mark.parametrize(("kind", "where"), [("forward", "layers.3"), ("data", None), ("optimizer", None)])
def test_without_stragglers_a_job_is_as_without_the_delay(tmp_path, kind, where, every):
    job = job_of(Plant(2, kind, where, 6_000_000, every=every))
    found = predicted(job, Changes(no_stragglers=True), tmp_path)
    assert_predicts(found, job_of(), rel=0.03)
    assert set(found.work["rank"]) == {2} and found.gain_ns > 1_000_000
    (what,) = found.work.iter_rows(named=True)
    assert (what["phase"], what["module_path"]) == (kind, where)


@long
@pytest.mark.parametrize("seed", [13, 19, 24, 42])
def test_where_work_scatters_the_gain_lies_in_what_is_said(tmp_path, seed):
    case = replace(random_loop(seed), jitter=0.1, jitter_kind="lognormal", _run={})
    found = open_replayable(case.write(tmp_path / "run"))
    steps = chosen_steps(found, ())
    said = predict(found.program, found.job, Changes(no_stragglers=True), steps, coordinates={}, clock_ns=0)
    late, without = (np.mean([np.diff([0, *job.step_ends(rank)])[steps] for rank in range(case.num_ranks)])
                     for job in (case.planted, case.without_all()))
    assert abs(said.gain_ns - (late - without)) <= 2 * said.gain_error_ns <= late - without


def test_a_rank_that_is_longer_in_every_step_is_a_straggler_though_steps_scatter():
    """Each step lies within what steps scatter by; their medians do not."""
    random = np.random.default_rng(0)
    work = 100 + 20 * random.standard_normal((4, 32, 1))
    work[1] += 30
    fixed = too_much(work, 0.5)[:, :, 0].mean(axis=1)
    assert fixed[1] == pytest.approx(30, rel=0.2) and not fixed[[0, 2, 3]].any()


@long
def test_of_two_ranks_the_one_that_naps_in_every_second_step_is_fixed(tmp_path):
    found = predicted(job_of(Plant(1, "forward", "layers.3", 6_000_000, every=2), ranks=2),
                      Changes(no_stragglers=True), tmp_path, steps=[3, 5, 7])
    assert_predicts(found, job_of(ranks=2), rel=0.03)


@long
def test_lateness_that_shifts_is_not_fixed_and_said(tmp_path):
    """Two ranks nap in turn: each is as the other, but in each step one waits."""
    naps = [Plant(rank, "forward", "layers.3", 6_000_000, every=2, offset=rank) for rank in range(2)]
    found = predicted(job_of(*naps, ranks=2), Changes(no_stragglers=True), tmp_path)
    assert found.shifting_ns == pytest.approx(6_000_000, rel=0.1) and found.left_ns < 600_000
    assert found.gain_ns < 600_000
    (line,) = list(_stragglers(found, SimpleNamespace(kind="distprof")))[-1:]
    assert line.startswith("not fixed: lateness that shifts from rank to rank; in each step, the slowest rank still ")
    balanced = predicted(job_of(ranks=2, jitter=0.05), Changes(no_stragglers=True), tmp_path / "balanced")
    assert not any("shifts" in line for line in _stragglers(balanced, SimpleNamespace(kind="distprof")))


@long
def test_work_that_may_be_waiting_is_not_fixed(tmp_path):
    job = Simulation(job_of(Plant(2, "forward", "layers.3", 6_000_000, every=2)))
    found = open_replayable(Recorder(misses_waits=frozenset({2})).write(job, tmp_path / "run"))
    assert found.guessed == [2]
    without = predict(found.program, found.job, Changes(no_stragglers=True), found.program.traced, coordinates={},
                      clock_ns=0)
    assert without.work.is_empty() and without.gain_ns == 0


@long
@pytest.mark.parametrize("name", ["ddp", "fsdp", "pp_dp"])
def test_a_balanced_job_has_no_stragglers(tmp_path, name):
    found = predicted(job_of(name=name, ranks=8, jitter=0.05), Changes(no_stragglers=True), tmp_path)
    assert abs(found.gain_ns) <= 0.01 * found.of_ranks["measured_ns"].to_numpy().mean()


def test_what_all_ranks_do_in_one_step_is_no_straggler():
    work = np.full((3, 6, 1), 1e6)
    work[:, 4] = 9e6
    assert not too_much(work, 1e4).any()
    work[1, 4] = 12e6
    assert too_much(work, 1e4)[1, 4, 0] == 3e6 and np.count_nonzero(too_much(work, 1e4)) == 1


def test_a_rank_without_peers_is_compared_with_its_other_steps():
    work = np.full((1, 7, 1), 1e6)
    work[0, 3] = 5e6
    assert too_much(work, 1e4)[0, :, 0].tolist() == [0, 0, 0, 4e6, 0, 0, 0]


@long
@pytest.mark.parametrize("name", ["ddp", "tp_dp", "fsdp"])
def test_free_communication_is_the_job_whose_collectives_take_no_time(tmp_path, name):
    job = job_of(Plant(2, "data", None, 2_000_000), name=name, ranks=8)
    found = predicted(job, Changes(free_communication=True), tmp_path)
    assert_predicts(found, with_calls(job, lambda call: call._replace(ns=0, latency_ns=0)))
    assert found.gain_ns > 0


def moving(call: Call, ns_of_byte: float) -> Call:
    return call._replace(ns=round(FIXED_NS + call.num_bytes * ns_of_byte))


@long
@pytest.mark.parametrize("lanes", [1, 2])
@pytest.mark.parametrize("name", ["ddp", "fsdp", "tp_dp", "rooted"])
def test_without_overlap_it_is_the_job_that_waits_for_each_collective_at_once(tmp_path, name, lanes):
    job = job_of(name=name)
    at_once = [[one for each in program if not isinstance(each, Wait)
                for one in ((each, Wait(each.key)) if isinstance(each, Call) else (each,))] for program in job]
    found = predicted(job, Changes(no_overlap=True), tmp_path, lanes=lanes)
    assert_predicts(found, at_once, lanes, rel=0.02)


@long
def test_calls_that_are_waited_for_at_once_have_no_overlap_to_lose(tmp_path):
    """What a call itself takes lies in front of its wait; now and then the host is kept from its core there."""
    calls = count()
    job = [[one for each in program if not isinstance(each, Wait)
            for one in ((each, Work("call", None, 3_000_000 if next(calls) % 7 == 0 else 200_000), Wait(each.key))
                        if isinstance(each, Call) else (each,))] for program in job_of(name="ddp")]
    found = predicted(job, Changes(no_overlap=True), tmp_path)
    assert found.gain_ns == 0 and found.measured_ns > 0


def test_bandwidth_scales_what_grows_with_bytes(tmp_path):
    """Buckets of three sizes; each takes a fixed time and one that grows."""
    job, sizes = job_of(), iter(range(10 ** 6))
    sized: dict[object, int] = {}
    job = with_calls(job, lambda call: call._replace(num_bytes=sized.setdefault(
        call.key, (1 << 20) << (next(sizes) % 3))))
    now, then = (with_calls(job, lambda call, each=each: moving(call, each)) for each in (NS_OF_BYTE, NS_OF_BYTE / 2))
    found = predicted(now, Changes(bandwidth=2.0), tmp_path)
    assert_predicts(found, then)
    (one,) = found.bandwidths
    assert one.ratio is not None and 0.6 < one.ratio < 0.9
    assert found.at_best_ns < found.of_ranks["predicted_ns"].mean()


@long
def test_calls_of_one_size_do_not_tell_what_grows_with_bytes(tmp_path):
    found = predicted(job_of(), Changes(bandwidth=2.0), tmp_path)
    assert [one.ratio for one in found.bandwidths] == [None]
    assert found.at_best_ns == pytest.approx(found.of_ranks["predicted_ns"].mean()), "all of it counts"


@long
def test_bandwidth_without_sizes_is_an_error(tmp_path):
    found = open_replayable(Recorder().write(Simulation(job_of()), tmp_path / "run"))
    rows = found.program.rows.with_columns(size_bytes=None)
    with pytest.raises(DataError, match="--bandwidth needs the sizes of collectives"):
        predict(replace(found.program, rows=rows), found.job, Changes(bandwidth=2.0), found.program.traced,
                coordinates={}, clock_ns=0)


def test_scales_are_read_as_they_are_written():
    assert scale_of("rank=2, module=model1:layers.*,step=3-5 : 0.5x") == Scale(
        text="rank=2, module=model1:layers.*,step=3-5 : 0.5x", factor=0.5, rank=(2, 2), module="model1:layers.*",
        step=(3, 5))
    assert scale_of("rank=all:0") == Scale(text="rank=all:0", factor=0.0)


@pytest.mark.parametrize("text", ["", "0.5", "rank=2", "rank=2: x", "rank=2: -1", "rank=2: nan", "rank=2: inf",
                                  "ranks=2: 1", "rank=2,rank=3: 1", "rank: 1", "rank=: 1", "rank=3-2: 1", "rank=-1: 1",
                                  "step=x: 1"])
def test_scales_that_make_no_sense_are_refused(text):
    with pytest.raises(UsageError, match=r"--scale (takes|must)|in --scale must"):
        scale_of(text)


@pytest.mark.parametrize("text", ["0", "fast", "-2x", ""])
def test_bandwidth_is_a_positive_factor(text):
    with pytest.raises(UsageError, match="--bandwidth"):
        factor_of(text, "--bandwidth", least=0.001)


def test_a_pattern_means_modules_with_all_in_them():
    assert is_in("layers.1.mlp.up", "layers.1") and is_in("layers.1", "layers.*") and is_in("a.b.c", "a.*")
    assert not is_in("layers.10", "layers.1") and not is_in("layers", "layers.1") and is_in("", "*")
