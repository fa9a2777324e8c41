"""Who made the others wait, on jobs of which every cause is known."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distprof.merge.blame.activities import Activity
from support.simulated_job import Job

MLP, HEAD = Activity("forward", "layers.1.mlp"), Activity("forward", "head")
DATA, BACKWARD = Activity("data"), Activity("backward", "layers.1.mlp")
STEPS = 6


def test_the_late_rank_its_module_and_its_cost():
    job = Job(4)
    for job.step in range(STEPS):
        for rank in range(4):
            job.works(rank, DATA, 50)
            job.works(rank, MLP, 100 + (200 if rank == 2 else 0))
            job.works(rank, HEAD, 30)
        job.meet(0, 1, 2, 3)
    (culprit,), by_activity = job.culprits()
    assert (culprit.rank, culprit.victims, culprit.cost_ns) == (2, [0, 1, 3], 200)
    assert culprit.certain and culprit.each_step_ns == [200] * (STEPS - 1)
    assert by_activity == {2: {MLP: 600}}


def test_a_rank_that_was_made_late_by_another_group_is_no_culprit():
    """Tensor parallel pairs inside data parallel ones: rank 1 delays 0 in its pair; then both delay 2 and 3."""
    job = Job(4)
    for job.step in range(STEPS):
        for rank in range(4):
            job.works(rank, MLP, 100 + (200 if rank == 1 else 0))
        for pair in ((0, 1), (2, 3)):
            job.meet(*pair)
        for rank in range(4):
            job.works(rank, HEAD, 30)
        for pair in ((0, 2), (1, 3)):
            job.meet(*pair)
    found, by_activity = job.culprits()
    assert [one.rank for one in found] == [1] and by_activity[1] == {MLP: 600}
    assert (found[0].victims, found[0].cost_ns) == ([0, 2, 3], 200), "rank 0 in its pair, the others when they meet it"


def test_two_causes_in_different_groups():
    job = Job(4)
    for job.step in range(STEPS):
        for rank in range(4):
            job.works(rank, DATA, 20 + (150 if rank == 3 else 0))
            job.works(rank, MLP, 100 + (200 if rank == 0 else 0))
        for pair in ((0, 1), (2, 3)):
            job.meet(*pair)
        job.meet(0, 1, 2, 3)
    found, by_activity = job.culprits()
    assert [one.rank for one in found] == [0, 3]
    assert by_activity == {0: {MLP: 200 + 50 + 50}, 3: {DATA: 150}}, "where they meet, rank 0 is 50 later than rank 3"
    assert all(one.certain for one in found)


def test_half_of_it_is_somebody_elses():
    """Rank 0 comes late because rank 1 made it wait, and because of itself."""
    job = Job(3)
    for job.step in range(STEPS):
        for rank in range(3):
            job.works(rank, MLP, 100 + (200 if rank == 1 else 0))
        job.meet(0, 1)
        for rank in range(3):
            job.works(rank, HEAD, 50 + (100 if rank == 0 else 0))
        job.meet(0, 2)
        job.meet(0, 1, 2)
    _, by_activity = job.culprits()
    assert by_activity == {1: {MLP: pytest.approx(200 + 200)}, 0: {HEAD: pytest.approx(100 + 100)}}


def test_a_balanced_pipeline_has_no_culprit():
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
    found, _ = job.culprits()
    assert not found, "the bubble is nobody's fault"


def test_blame_goes_through_messages():
    """Two pipelines of two stages: the first stage of one is slow, and the second stage meets that of the other."""
    job = Job(4)
    for job.step in range(STEPS):
        for rank in (0, 2):
            job.works(rank, MLP, 100 + (200 if rank == 2 else 0))
            job.send(rank, rank + 1)
            job.works(rank + 1, HEAD, 100)
        job.meet(1, 3)
        job.meet(0, 2)
    found, by_activity = job.culprits()
    assert [one.rank for one in found] == [2]
    assert by_activity == {2: {MLP: pytest.approx(400, rel=0.03)}}, "200 from rank 0 and 200 from rank 1"


def test_communication_that_let_one_go_late_is_nobodys_fault():
    job = Job(2)
    for job.step in range(STEPS):
        for rank in range(2):
            job.works(rank, MLP, 100)
        job.meet(0, 1)
        job.rows[-1]["end_ns"] += 70  # rank 1 is let go later
        job.now[1] += 70
    found, _ = job.culprits()
    assert not any(one.certain for one in found) and sum(one.cost_ns for one in found) < 1


def test_without_timelines_the_late_rank_is_named_and_no_cause():
    job = Job(4)
    for job.step in range(STEPS):
        for rank in range(4):
            job.works(rank, MLP, 100 + (200 if rank == 2 else 0))
        job.meet(0, 1, 2, 3)
    (culprit,), by_activity = job.culprits(did={})
    assert (culprit.rank, culprit.cost_ns) == (2, 200) and culprit.certain
    assert by_activity == {2: {None: 600}}


@given(st.lists(st.tuples(
    st.integers(0, 3), st.sampled_from([MLP, HEAD, DATA, BACKWARD]), st.integers(0, 500),
    st.sampled_from([None, (0, 1), (2, 3), (0, 2), (1, 3), (0, 1, 2, 3)])), max_size=60))
def test_nobody_answers_for_more_than_was_waited(program):
    job = Job(4)
    for index, (rank, what, ns, ranks) in enumerate(program):
        job.step = index * 4 // len(program)
        job.works(rank, what, ns)
        if ranks is not None:
            job.meet(*ranks)
    if not job.rows:
        job.meet(0, 1)
    found, by_activity = job.culprits()
    assert sum(one.total_ns for one in found) * max(job.step, 1) <= sum(job.waited().values()) + 1e-6
    for one in found:
        assert sum(by_activity[one.rank].values()) == pytest.approx(one.total_ns)
        assert one.rank not in one.victims
