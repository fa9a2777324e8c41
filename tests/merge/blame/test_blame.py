"""Who delays the others, why and at what cost, on simulated jobs: there all of it is exact."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distprof.merge.activity.activities import Activity
from distprof.merge.blame.culprits import Cause
from distprof.merge.blame.verdicts import REPLAY, late_steps_of
from support.simulated_job import Job

MLP, HEAD = Activity("forward", "layers.1.mlp"), Activity("forward", "head")
DATA, BACKWARD = Activity("data"), Activity("backward", "layers.1.mlp")
OPTIMIZER = Activity("optimizer")
STEPS = 9
PAIRS, ACROSS = ((0, 1), (2, 3)), ((0, 2), (1, 3))


def job_of(num_ranks: int, *phases: tuple[Activity, Callable[[int], int], Iterable[tuple[int, ...]]], **chosen) -> Job:
    """Steps in which every rank works as long as a function of it says, and then meets others, phase by phase."""
    job = Job(num_ranks, **chosen)
    for job.step in range(STEPS):
        for what, duration, meetings in phases:
            for rank in range(num_ranks):
                job.works(rank, what, duration(rank))
            for ranks in meetings:
                job.meet(*ranks)
    return job


def late(number: int, ns: int, by: int) -> Callable[[int], int]:
    return lambda rank: ns + (by if rank == number else 0)


def always(ns: int) -> Callable[[int], int]:
    return lambda _rank: ns


ALL = ((0, 1, 2, 3),)


def test_the_late_rank_its_module_and_its_cost():
    (culprit,) = job_of(4, (DATA, always(50), ()), (MLP, late(2, 100, 200), ()), (HEAD, always(30), ALL)).culprits()
    assert (culprit.rank, culprit.delayed, culprit.num_peers, culprit.certain) == (2, [0, 1, 2, 3], 3, True)
    assert (culprit.step_ns, culprit.gain_ns) == pytest.approx((50 + 300 + 30 + 10, 200))
    assert culprit.gain_error_ns == pytest.approx(REPLAY * 200) and culprit.late_steps == list(range(1, STEPS))
    assert culprit.causes == [Cause(kind="forward", where="layers.1.mlp", gain_ns=200, spent=300, of_peers=100)]


def test_the_split_of_steps_is_exact():
    job = job_of(4, (DATA, always(50), ()), (MLP, late(2, 100, 200), ALL), (OPTIMIZER, always(40), ()))
    expected = {"duration_ns": 400, "compute_ns": 100, "waiting_ns": 200, "moving_ns": 10, "data_ns": 50,
                "optimizer_ns": 40, "host_ns": 0, "message_waiting_ns": 0, "overlapped_ns": 0, "communication_ns": 210}
    of_the_late = expected | {"compute_ns": 300, "waiting_ns": 0, "communication_ns": 10}
    split = job.breakdown().select("rank", *expected).unique().sort("rank").to_dicts()
    assert split == [{"rank": rank, **(of_the_late if rank == 2 else expected)} for rank in range(4)]


@pytest.mark.parametrize(("times", "kind", "spent"), [(2, "batch", 16), (1, "elements", 16_384)])
def test_twice_the_batch_on_one_rank(times, kind, spent):
    """Twice the samples, or samples of twice the length."""
    def twice(ns: int) -> Callable[[int], int]:
        return lambda rank: ns * (2 if rank == 3 else 1)

    job = job_of(4, (DATA, always(50), ()), (MLP, twice(100), ()), (HEAD, twice(30), ()), (BACKWARD, twice(150), ALL),
                 samples={0: 8, 1: 8, 2: 8, 3: 8 * times}, elements={0: 8192, 1: 8192, 2: 8192, 3: 16_384})
    (culprit,) = job.culprits()
    assert (culprit.rank, culprit.certain) == (3, True) and culprit.gain_ns == pytest.approx(100 + 30 + 150)
    assert culprit.causes == [
        Cause(kind=kind, where=None, gain_ns=pytest.approx(280), spent=spent, of_peers=spent / 2)]


def test_a_slow_module_is_not_excused_by_a_somewhat_larger_batch():
    job = job_of(4, (DATA, always(50), ()), (MLP, late(3, 10, 400), ()), (BACKWARD, always(150), ALL),
                 samples={0: 8, 1: 8, 2: 8, 3: 10}, elements={0: 8, 1: 8, 2: 8, 3: 13})
    (culprit,) = job.culprits()
    assert (culprit.rank, [one.kind for one in culprit.causes]) == (3, ["forward"])


def test_two_causes_in_different_groups_of_a_mesh():
    """tp2 x dp2: rank 1 delays its tensor parallel pair by a module, rank 2 its own by loading data."""
    job = job_of(4, (DATA, late(2, 20, 150), ()), (MLP, late(1, 100, 200), PAIRS), (HEAD, always(30), ACROSS))
    first, second = job.culprits()
    assert [(one.rank, one.certain, one.causes[0].kind, one.causes[0].where) for one in (first, second)] == [
        (1, True, "forward", "layers.1.mlp"), (2, True, "data", None)]
    # without rank 1, rank 2 is 150 late; without both, nobody is
    assert (first.gain_ns, second.gain_ns) == pytest.approx((50, 150))
    assert second.step_ns == pytest.approx(first.step_ns - 50)


@pytest.mark.long
@pytest.mark.parametrize("noise", ["exponential", "pareto"])
def test_balanced_jobs_with_noise_have_no_culprit(noise):
    """Ranks that are equal but for chance: with p below 0.01, one of a hundred jobs may name somebody."""
    named = 0
    for seed in range(12):
        random, job = np.random.default_rng(seed), Job(4)
        for job.step in range(9):
            for what, ns in ((DATA, 50), (MLP, 400), (BACKWARD, 800)):
                for rank in range(4):
                    extra = random.exponential(0.2) if noise == "exponential" else 0.1 * random.pareto(1.5)
                    job.works(rank, what, round(ns * (1 + extra)))
                if what is not DATA:
                    job.meet(0, 1, 2, 3)
        named += any(one.certain for one in job.culprits())
    assert named <= 1, "0.1 are expected"


def test_a_rank_that_was_made_late_by_another_group_is_no_culprit():
    """Tensor parallel pairs inside data parallel ones: rank 1 delays 0 in its pair; then both delay 2 and 3."""
    (culprit,) = job_of(4, (MLP, late(1, 100, 200), PAIRS), (HEAD, always(30), ACROSS)).culprits()
    assert (culprit.rank, culprit.gain_ns) == (1, pytest.approx(200)) and culprit.delayed == [0, 1, 2, 3]


def test_ranks_that_never_meet_gain_nothing_from_each_other():
    (culprit,) = job_of(4, (MLP, late(1, 100, 200), PAIRS)).culprits()
    assert (culprit.rank, culprit.gain_ns, culprit.delayed) == (1, pytest.approx(200), [0, 1])


def test_half_of_it_is_somebody_elses():
    """Rank 0 comes late because rank 1 made it wait, and because of itself."""
    found = job_of(3, (MLP, late(1, 100, 200), [(0, 1)]), (DATA, late(0, 50, 100), [(0, 2), (0, 1, 2)])).culprits()
    assert {one.rank: (one.gain_ns, one.causes[0].kind) for one in found} == {
        1: (pytest.approx(200), "forward"), 0: (pytest.approx(100), "data")}


def test_what_hides_behind_another_delay_costs_nothing_until_that_is_fixed():
    first, second = job_of(4, (DATA, late(3, 20, 150), ()), (MLP, late(0, 100, 200), ALL)).culprits()
    assert (first.rank, first.gain_ns, second.rank, second.gain_ns) == (0, pytest.approx(50), 3, pytest.approx(150))


def test_two_ranks_that_are_as_late_in_groups_of_their_own():
    """Mending one gains nothing: the pairs meet in the end. Mending both does."""
    first, second = job_of(6, (MLP, lambda rank: 300 if rank in (1, 2) else 100, [(0, 1), (2, 3), (4, 5)]), (
        BACKWARD, always(50), [(0, 2, 4), (1, 3, 5)])).culprits()
    assert {first.rank, second.rank} == {1, 2} and first.certain and second.certain
    assert (first.gain_ns, first.last_gain_ns, second.gain_ns) == pytest.approx((0, 200, 200))


def test_a_balanced_pipeline_has_no_culprit():
    """Stages are no peers: the bubble is nobody's fault."""
    job = Job(2)
    for job.step in range(STEPS):
        for rank, path in enumerate(("first", "second")):
            if rank:
                job.send(0, 1)
            job.works(rank, Activity("forward", path), 100)
        for rank, path in ((1, "second"), (0, "first")):
            if rank == 0:
                job.send(1, 0)
            job.works(rank, Activity("backward", path), 200)
    assert job.culprits() == []


def test_stages_of_whose_modules_nothing_is_known_are_no_peers():
    """The middle stages of a pipeline call alike, and the third has more work in each step."""
    job = Job(4)
    for job.step in range(STEPS):
        for rank in range(4):
            if rank:
                job.send(rank - 1, rank)
            job.works(rank, MLP, 300 if rank == 2 else 100)
    assert job.culprits(timelines=False) == []


def test_a_delay_goes_through_messages():
    """Two pipelines of two stages: the first stage of one is slow, and the second stage meets that of the other."""
    job = Job(4)
    for job.step in range(STEPS):
        for rank in (0, 2):
            job.works(rank, MLP, 100 + (200 if rank == 2 else 0))
            job.send(rank, rank + 1)
            job.works(rank + 1, HEAD, 100)
        job.meet(1, 3)
        job.meet(0, 2)
    (culprit,) = job.culprits()
    assert (culprit.rank, culprit.causes[0].where) == (2, "layers.1.mlp")
    # rank 2 took 311 a step; without its delay the second stages, which take 120, are slower than the first
    assert culprit.gain_ns == pytest.approx(311 - 120)


def test_communication_that_let_one_go_late_is_nobodys_fault():
    job = Job(2)
    for job.step in range(STEPS):
        for rank in range(2):
            job.works(rank, MLP, 100)
        job.meet(0, 1)
        for name in ("end_ns", "wait_end_ns"):
            job.rows[-1][name] += 70  # rank 1 is let go later
        job._until(1, job.now[1] + 70)
    assert not any(one.certain for one in job.culprits())


def test_without_timelines_the_late_rank_is_named_and_no_cause():
    (culprit,) = job_of(4, (MLP, late(2, 100, 200), ALL)).culprits(timelines=False)
    assert (culprit.rank, culprit.certain, culprit.gain_ns) == (2, True, pytest.approx(200))
    assert [cause.kind for cause in culprit.causes] == ["unknown"]


def test_what_is_late_now_and_then_is_late_in_those_steps():
    job = Job(4)
    for job.step in range(21):
        for rank in range(4):
            job.works(rank, MLP, 100 + (400 if rank == 2 and job.step % 4 == 3 else 0))
        job.meet(0, 1, 2, 3)
    (culprit,) = job.culprits()
    assert (culprit.rank, culprit.certain, culprit.gain_ns) == (2, True, pytest.approx(100))
    assert culprit.late_steps == [3, 7, 11, 15, 19]


@pytest.mark.parametrize(("late", "expected"), [
    ([100, 100, 100, 100, 5], [0, 1, 2, 3]), ([100, 100, 100, 4, 8], [0, 1, 2]), ([300, 5, 5, 6, 5, 5], [*range(6)])])
def test_a_few_other_steps_do_not_tell_that_it_is_late_in_them_too(late, expected):
    """Those that differ little do: a rank may once be much later than usual."""
    assert late_steps_of(np.arange(len(late)), np.array(late, float), 2.0) == expected


def test_once_is_no_habit():
    job = Job(4)
    for job.step in range(9):
        for rank in range(4):
            job.works(rank, MLP, 100 + (400 if rank == 2 and job.step == 5 else 0))
        job.meet(0, 1, 2, 3)
    (culprit,) = job.culprits()
    assert (culprit.rank, culprit.certain, culprit.gain_ns, culprit.late_steps) == (2, False, pytest.approx(50), [5])


@pytest.mark.long
@given(st.lists(st.tuples(
    st.integers(0, 3), st.sampled_from([MLP, HEAD, DATA, BACKWARD]), st.integers(0, 500),
    st.sampled_from([None, (0, 1), (2, 3), (0, 2), (1, 3), (0, 1, 2, 3)])), max_size=60))
def test_nothing_is_gained_beyond_what_a_rank_exceeds_its_peers_by(program):
    job = Job(4)
    for index, (rank, what, ns, ranks) in enumerate(program):
        job.step = index * 4 // len(program)
        job.works(rank, what, ns)
        if ranks is not None:
            job.meet(*ranks)
    for one in job.culprits() if job.rows else ():
        assert 0 < one.gain_ns <= one.step_ns + 1e-6
        for cause in one.causes:
            assert cause.spent > cause.of_peers
