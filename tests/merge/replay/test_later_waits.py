"""Waits that come later, against jobs that an independent simulation ran with these waits at their new places."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distprof.merge.replay.graph import MARK, WAIT
from distprof.merge.replay.moved_waits import Later, with_later_waits, work_between
from distprof.merge.replay.order import ordered
from distprof.merge.replay.replay import Replay
from support.replayed_graph import graph_of
from support.simulator.engine import Simulation
from support.simulator.program import Call, Program, StepEnd, Wait, Work

RANKS = (0, 1, 2)
Piece = tuple[list[int], int, int]
"""Of a meeting: work of each rank in front of the call, after how many pieces of work it is waited for, bytes."""
PIECES = st.tuples(st.lists(st.integers(1, 900), min_size=3, max_size=3), st.integers(0, 4), st.integers(0, 300))


def jobs(pieces: list[Piece]) -> tuple[list[Program], list[Program]]:
    """A job that waits for each collective at once, and the same that does so some pieces of work later."""
    found: tuple[list[Program], list[Program]] = ([], [])
    for rank in RANKS:
        at_once, later = list[object](), list[object]()
        due: dict[int, list[Wait]] = {}
        for place, (work, delay, ns) in enumerate(pieces):
            now = due.pop(place, [])
            later += now
            call = Call(key=(place,), op="all_reduce", group=RANKS, num_bytes=0, ns=ns)
            at_once += [Work("forward", None, work[rank] * 1000), call, Wait((place,))]
            later += [Work("forward", None, work[rank] * 1000), call]
            if delay:
                due.setdefault(min(place + delay, len(pieces)), []).append(Wait((place,)))
            else:
                later.append(Wait((place,)))
        at_once.append(StepEnd())
        later += [*due.pop(len(pieces), []), StepEnd()]
        found[0].append(at_once)
        found[1].append(later)
    return found


def moved(job: Simulation, pieces: list[Piece]) -> Later:
    """Each wait to where the work begins that its delay leads to, or to the end of the step."""
    graph = graph_of(job)
    events, until = graph.events, []
    for place in np.flatnonzero(events.kind == WAIT).tolist():
        rank = int(events.rank[place])
        (number,) = job.moved[rank][int(events.part[place]) - rank * len(pieces)].call.key
        work = [one.start_ns for one in job.done[rank] if isinstance(one.instruction, Work)]
        target = number + max(pieces[number][1], 0)
        until.append((place, work[target] if target < len(work) else job.step_ends(rank)[0]))
    chosen = [(place, at) for place, at in until if at > events.at_ns[place]]
    event, at = np.array(chosen, np.int64).reshape(-1, 2).T
    return Later(event=event, until_ns=at)


@pytest.mark.parametrize("lanes", [1, 2])
@given(st.lists(PIECES, min_size=1, max_size=12))
def test_it_is_the_job_that_waits_later(lanes, pieces):
    now, then = (Simulation(programs, lanes=lanes) for programs in jobs(pieces))
    graph, later = graph_of(now), moved(now, pieces)
    if not len(later.event):
        return
    changed, place = with_later_waits(graph, np.zeros(len(graph.events)), later)
    assert sorted(place.tolist()) == list(range(len(graph.events)))
    replay = Replay(*ordered(changed))
    marks = np.flatnonzero(graph.events.kind == MARK)
    found = dict(zip(replay.marks.tolist(), replay.times([[]])[:, 0].tolist(), strict=True))
    ends = [found[one] for one in place[marks].tolist()][1::2]
    assert ends == pytest.approx([then.step_ends(rank)[0] for rank in RANKS], abs=1)
    assert (work_between(graph, later) >= 0).all()


def test_a_wait_inside_a_piece_of_work_has_less_of_it_behind_it():
    """Of 8 ms of work behind the wait, 6 ms come in front of it; and of 8 ms that are halved, 3 ms do."""
    early = [Work("forward", None, 1_000_000), Call((0,), "all_reduce", (0, 1), 0, 0), Wait((0,)),
             Work("forward", None, 8_000_000), StepEnd()]
    late = [Work("forward", None, 11_000_000), *early[1:]]
    graph = graph_of(Simulation([early, late]))
    (wait,) = np.flatnonzero((graph.events.kind == WAIT) & (graph.events.rank == 0))
    later = Later(event=np.array([wait]), until_ns=np.array([17_000_000]))
    assert work_between(graph, later).tolist() == [6_000_000]
    for less, end in ((0, 13_000_000), (4_000_000, 12_000_000)):
        behind = np.zeros(len(graph.events))
        behind[np.flatnonzero((graph.events.kind == MARK) & (graph.events.rank == 0))[-1]] = less
        changed, _ = with_later_waits(graph, behind, later)
        replay = Replay(*ordered(changed))
        assert replay.times([[]])[1, 0] == pytest.approx(end)
