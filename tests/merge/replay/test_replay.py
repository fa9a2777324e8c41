"""Replaying jobs that an independent simulation ran: as they were, and as they would have been."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distprof.merge.replay.graph import CALL, MARK, WAIT, Events, Parts, linked
from distprof.merge.replay.order import ordered
from distprof.merge.replay.replay import Relief, Replay
from support.replayed_graph import graph_of
from support.simulator.engine import Simulation
from support.simulator.program import StepEnd, Work
from support.simulator.shapes import SHAPES, Plant, programs

NO_LEADS = np.empty((0, 2), np.int64)


def simulated(name: str, lanes: int, *plants: Plant, jitter: float = 0.02, seed: int = 1) -> Simulation:
    return Simulation(programs(SHAPES[name], 8, 5, seed, plants=plants, jitter=jitter), lanes=lanes)


MEETING = ("ddp", "tp_dp", "fsdp", "pp_dp")
"""Shapes without roots."""


@pytest.mark.parametrize("lanes", [1, 2])
@pytest.mark.parametrize("name", MEETING)
def test_an_unchanged_replay_is_what_was_measured(name, lanes):
    graph = graph_of(simulated(name, lanes))
    replay = Replay(*ordered(graph))
    times = replay.times([[]])[:, 0]
    assert times == pytest.approx(graph.events.at_ns[replay.marks], abs=1e-3)


@pytest.mark.parametrize("lanes", [1, 2])
@pytest.mark.parametrize("name", MEETING)
@pytest.mark.parametrize("kind", ["data", "optimizer"])
def test_a_replay_without_a_delay_is_the_job_without_it(name, lanes, kind):
    """The delay is known here, so that the replay alone is judged: all times, in two jobs that the simulation ran."""
    plant = Plant(3, kind, None, 4_000_000)
    late, without = simulated(name, lanes, plant), simulated(name, lanes)
    graph = graph_of(late)
    replay = Replay(*ordered(graph))
    events = graph.events
    # the first event behind a delayed piece of work has it in front of it
    ends = [one.end_ns for one in late.done[3] if isinstance(one.instruction, Work) and one.instruction.kind == kind]
    mine = np.flatnonzero(events.rank == 3)
    behind = mine[np.searchsorted(events.at_ns[mine], ends)]
    relief = Relief(event=behind, ns=np.full(len(behind), 4e6))
    found = replay.times([[], [relief]])
    truth = [end for rank in range(8) for end in [0, *without.step_ends(rank)]]
    assert found[:, 1] == pytest.approx(np.array(truth, float), abs=20_000), "20 us of 25 ms a step"
    assert (found[:, 0] - found[:, 1])[-1] > 2e6, "and the delay was worth something"


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 500), st.sampled_from([(0, 1), (1, 2), (0, 1, 2)])),
                min_size=1, max_size=30), st.integers(0, 3))
def test_ranks_that_work_and_meet(program, slower):
    """Each meeting is waited for at once; the truth is the sum and the maximum."""
    now, rows, parts = [0, 0, 0], [(rank, MARK, -1, 0, 0) for rank in range(3)], []
    for join, (rank, ns, group) in enumerate(program):
        now[rank] += ns
        last = max(now[member] for member in group) + 10
        for member in group:
            came = now[member]
            rows += [(member, CALL, len(parts), came, came), (member, WAIT, len(parts), came, last)]
            parts.append((member, join, came, last))
            now[member] = last
    rows += [(rank, MARK, -1, now[rank], now[rank]) for rank in range(3)]
    order = sorted(range(len(rows)), key=lambda one: (rows[one][0], one))
    rank, kind, part, began, at = np.array([rows[one] for one in order], np.int64).T
    queue, join, start, end = np.array(parts, np.int64).T
    graph = linked(Events(rank=rank, kind=kind, part=part, began_ns=began, at_ns=at),
                   Parts(queue=queue, join=join, root=np.full(len(queue), -1), start_ns=start, end_ns=end, op=join,
                  noted_late=np.zeros(len(queue), bool)),
                   NO_LEADS)
    replay = Replay(*ordered(graph))
    faster = np.flatnonzero((graph.own_ns > 0) & (rank == slower))
    found = replay.times([[], [Relief(event=faster, ns=graph.own_ns[faster].astype(float))]])
    assert found[:, 0].tolist() == graph.events.at_ns[replay.marks].tolist()
    assert found[1::2, 1].tolist() == _ends([(0 if who == slower else ns, who, group) for who, ns, group in program])


def _ends(program: list[tuple[int, int, tuple[int, ...]]]) -> list[int]:
    now = [0, 0, 0]
    for ns, rank, group in program:
        now[rank] += ns
        last = max(now[member] for member in group) + 10
        for member in group:
            now[member] = last
    return now


def test_collectives_that_need_themselves_are_left_out():
    """Two ranks wait for two collectives in different orders: no job does, but a wrong match may say so."""
    rows = [(rank, MARK, -1, 0, 0) for rank in (0, 1)] + [
        (0, CALL, 0, 10, 10), (0, WAIT, 0, 10, 20), (0, CALL, 1, 25, 25), (0, WAIT, 1, 25, 40), (0, MARK, -1, 50, 50),
        (1, CALL, 3, 11, 11), (1, WAIT, 3, 11, 21), (1, CALL, 2, 26, 26), (1, WAIT, 2, 26, 41), (1, MARK, -1, 51, 51)]
    order = sorted(range(len(rows)), key=lambda one: (rows[one][0], one))
    rank, kind, part, began, at = np.array([rows[one] for one in order], np.int64).T
    graph = linked(
        Events(rank=rank, kind=kind, part=part, began_ns=began, at_ns=at),
        Parts(queue=np.full(4, -1), join=np.array([0, 1, 0, 1]), root=np.full(4, -1),
              start_ns=np.array([10, 25, 26, 11]), end_ns=np.array([20, 40, 41, 21]), op=np.array([0, 1, 0, 1]),
              noted_late=np.zeros(4, bool)), NO_LEADS)
    replay = Replay(*ordered(graph))
    assert replay.times([[]])[:, 0].tolist() == [0, 50, 0, 51]


def test_readers_wait_for_the_root_and_the_root_for_nobody():
    rows = [(0, MARK, -1, 0, 0), (0, CALL, 0, 100, 100), (0, WAIT, 0, 100, 105), (0, MARK, -1, 105, 105),
            (1, MARK, -1, 0, 0), (1, CALL, 1, 20, 20), (1, WAIT, 1, 20, 110), (1, MARK, -1, 110, 110)]
    rank, kind, part, began, at = np.array(rows, np.int64).T
    graph = linked(Events(rank=rank, kind=kind, part=part, began_ns=began, at_ns=at),
                   Parts(queue=np.array([0, 1]), join=np.array([0, 1]), root=np.full(2, -1),
                         start_ns=np.array([100, 20]), end_ns=np.array([105, 110]), op=np.array([0, 0]),
                         noted_late=np.zeros(2, bool)),
                   np.array([[1, 0]]))
    replay = Replay(*ordered(graph))
    early, late = (Relief(event=np.array([1]), ns=np.array([by])) for by in (90.0, -50.0))
    found = pl.DataFrame(replay.times([[], [early], [late], [Relief(event=np.array([5]), ns=np.array([-300.0]))]]))
    assert found.row(1) == (105, 15, 155, 105), "the root"
    assert found.row(3) == (110, 30, 160, 330), "its reader is there after 20, or after 320"


def test_a_step_is_in_the_simulation_what_ends_with_it():
    assert all(isinstance(program[-1], StepEnd) for program in simulated("ddp", 1).programs)


def test_a_root_may_meet_all_while_the_others_only_need_the_root():
    """Rank 0 is the root, rank 1 gets its data and goes on, rank 2 is late and only the root waits for it."""
    came, left = (20, 10, 100), (105, 25, 106)
    rows = [event for rank in range(3) for event in (
        (rank, MARK, -1, 0, 0), (rank, CALL, rank, came[rank], came[rank]), (rank, WAIT, rank, came[rank], left[rank]),
        (rank, MARK, -1, left[rank], left[rank]))]
    rank, kind, part, began, at = np.array(rows, np.int64).T
    graph = linked(Events(rank=rank, kind=kind, part=part, began_ns=began, at_ns=at),
                   Parts(queue=np.arange(3), join=np.zeros(3, np.int64), root=np.array([-1, 0, 0]),
                         start_ns=np.array(came), end_ns=np.array(left), op=np.zeros(3, np.int64),
                         noted_late=np.zeros(3, bool)), NO_LEADS)
    replay = Replay(*ordered(graph))
    fixed = [[Relief(event=np.array([4 * rank + 1]), ns=np.array([by]))] for rank, by in ((2, 90.0), (0, -50.0))]
    assert replay.times([[], *fixed])[1::2].tolist() == [[105, 25, 105], [25, 25, 75], [106, 26, 106]]


def test_a_queue_has_two_lanes_although_one_op_outlasts_many():
    """Ten ops are called at once; the first takes as long as all others, which take the other lane one by one."""
    lengths = [90] + [10] * 9
    start, end = [0, *range(0, 90, 10)], [90, *range(10, 100, 10)]
    rows = [(0, MARK, -1, 0, 0), *((0, CALL, part, 0, 0) for part in range(10)),
            *((0, WAIT, part, 0, 90) for part in (0, 9)), (0, MARK, -1, 90, 90)]
    rank, kind, part, began, at = np.array(rows, np.int64).T
    graph = linked(Events(rank=rank, kind=kind, part=part, began_ns=began, at_ns=at),
                   Parts(queue=np.zeros(10, np.int64), join=np.arange(10), root=np.full(10, -1),
                         start_ns=np.array(start), end_ns=np.array(end), op=np.arange(10),
                         noted_late=np.zeros(10, bool)), NO_LEADS)
    assert not graph.single_lane.any() and graph.uses_lane.all()
    assert graph.latency_ns.tolist() == [0] * 10 and graph.transfer_ns.tolist() == lengths
