"""The longest chain of made-up schedules is what an exhaustive search finds; slack is how long a delay may be."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from distprof.merge.replay.chain import NEVER, Chains, latest_times
from distprof.merge.replay.graph import MARK
from distprof.merge.replay.order import ordered
from support.replayed_graph import graph_of
from support.simulator.engine import Simulation
from support.simulator.program import Call, Program, StepEnd, Wait, Work

RANKS = 3
GROUPS = [(0, 1), (1, 2), (0, 2), (0, 1, 2)]
AT_ONCE, AT_THE_END, LATER, NOT_AT_ALL = range(4)


@st.composite
def schedules(draw: Any, groups: list[tuple[int, ...]] = GROUPS, most: int = 3) -> list[Program]:
    """Steps of three ranks: work, collectives of all and from a root, which are waited for at once, later or never."""
    found: list[Program] = [[] for _ in range(RANKS)]
    left: list[list[tuple]] = [[] for _ in range(RANKS)]
    for step in range(2):
        at_end: list[list[tuple]] = [[] for _ in range(RANKS)]
        for number in range(draw(st.integers(0, most))):
            group = draw(st.sampled_from(groups))
            root = draw(st.sampled_from([None, group[0]]))
            key, latency = (step, number), draw(st.integers(0, 3))
            for rank in range(RANKS):
                found[rank].append(Work("host", None, draw(st.integers(0, 40))))
                if rank not in group:
                    continue
                found[rank].append(Call(key, "all_reduce" if root is None else "broadcast", group, 1,
                                        draw(st.integers(1, 30)), latency_ns=latency, root=root))
                how = draw(st.integers(AT_ONCE, NOT_AT_ALL))
                if how == AT_ONCE:
                    found[rank].append(Wait(key))
                elif how in (AT_THE_END, LATER):
                    (at_end if how == AT_THE_END else left)[rank].append(key)
        for rank in range(RANKS):
            found[rank] += [Work("host", None, draw(st.integers(0, 40))), *map(Wait, at_end[rank]), StepEnd()]
            if step:
                found[rank] += [*map(Wait, left[rank]), Work("host", None, draw(st.integers(1, 9))), StepEnd()]
    return found


class Exhaustive:
    """All chains of programs whose queues have one lane, one by one. A chain is a list of (kind, rank, what, ns)."""

    def __init__(self, programs: list[Program]) -> None:
        self._programs = programs
        self._calls: dict[tuple, dict[int, tuple[int, Call]]] = defaultdict(dict)
        self._before: dict[tuple[tuple, int], tuple | None] = {}
        for rank, program in enumerate(programs):
            latest: dict[tuple[int, ...], tuple] = {}
            for place, one in enumerate(program):
                if isinstance(one, Call):
                    self._calls[one.key][rank] = place, one
                    self._before[one.key, rank] = latest.get(one.group)
                    latest[one.group] = one.key

    def to(self, rank: int, place: int) -> Iterator[list[tuple]]:
        """Chains from the begin of the job to the instant behind an instruction."""
        if place < 0:
            yield []
            return
        one = self._programs[rank][place]
        own = [("work", rank, place, one.ns)] if isinstance(one, Work) and one.ns else []
        for chain in self.to(rank, place - 1):
            yield chain + own
        if isinstance(one, Wait):
            yield from self._ended(one.key, rank)

    def _ended(self, key: tuple, rank: int) -> Iterator[list[tuple]]:
        _, call = self._calls[key][rank]
        for other in (call.group if call.root is None else {rank, call.root} if rank != call.root else {rank}):
            for chain in self._begun(key, other):
                yield [*chain, ("moving", rank, key, call.ns)]

    def _begun(self, key: tuple, rank: int) -> Iterator[list[tuple]]:
        place, call = self._calls[key][rank]
        starting = [("starting", rank, key, call.latency_ns)] if call.latency_ns else []
        for chain in self.to(rank, place - 1):
            yield chain + starting
        before = self._before[key, rank]
        if before is not None:
            for chain in self._ended(before, rank):
                yield chain + starting


def length(chain: list[tuple]) -> int:
    return sum(ns for *_, ns in chain)


def ends_of_steps(programs: list[Program]) -> list[list[tuple[int, int]]]:
    """Of each step, rank and place of the instruction that ends it."""
    each = [[(rank, place) for place, one in enumerate(program) if isinstance(one, StepEnd)]
            for rank, program in enumerate(programs)]
    return [list(step) for step in zip(*each, strict=True)]


def found_chain(job: Simulation, step: int) -> tuple[list[tuple], int]:
    """What `Chains` finds of a step and of all before it, in the words of `Exhaustive`; and when the step ended."""
    graph, order = ordered(graph_of(job))
    marks = np.flatnonzero(graph.events.kind == MARK).reshape(RANKS, -1)[:, step + 1]
    event = int(max(marks, key=lambda one: graph.events.at_ns[one]))
    calls = [moved for mine in job.moved for moved in mine]
    found = []
    for link in Chains(graph, order).to(event, 0):
        ns = link.end_ns - link.start_ns
        if link.kind != "work":
            found.append((link.kind, link.rank, calls[link.item].call.key, ns))
            continue
        # an event may have several pieces of work in front of it
        inside = [(place, one) for place, one in enumerate(job.done[link.rank])
                  if one.start_ns >= link.start_ns and one.end_ns <= link.end_ns and one.end_ns > one.start_ns]
        found += [("work", link.rank, place, one.end_ns - one.start_ns) for place, one in inside]
    return found, int(graph.events.at_ns[event])


@pytest.mark.long
@settings(deadline=None)
@given(schedules())
def test_the_longest_chain_is_the_one_of_an_exhaustive_search(programs):
    job, every = Simulation(programs, lanes=1), Exhaustive(programs)
    for step, ends in enumerate(ends_of_steps(programs)):
        chains = [chain for rank, place in ends for chain in every.to(rank, place)]
        longest = max(map(length, chains))
        found, ended_ns = found_chain(job, step)
        assert length(found) == longest == ended_ns
        assert found in [chain for chain in chains if length(chain) == longest]


@pytest.mark.long
@given(schedules(), st.integers(1, 2), st.integers(0, 200))
def test_a_chain_since_an_instant_lasts_from_then_on(programs, lanes, since):
    graph, order = ordered(graph_of(Simulation(programs, lanes=lanes)))
    event = int(np.argmax(graph.events.at_ns))
    links = Chains(graph, order).to(event, since)
    assert sum(link.end_ns - link.start_ns for link in links) == max(int(graph.events.at_ns[event]) - since, 0)
    assert all(one.end_ns == other.start_ns for one, other in pairwise(links))


def step_ends(programs: list[Program], lanes: int) -> list[int]:
    job = Simulation(programs, lanes=lanes)
    return [max(step) for step in zip(*(job.step_ends(rank) for rank in range(RANKS)), strict=True)]


def slack_of(programs: list[Program], lanes: int) -> Mapping[tuple[int, int], int]:
    """Of each piece of work by rank and place, by what it may take longer."""
    job = Simulation(programs, lanes=lanes)
    graph, order = ordered(graph_of(job))
    events, deadlines = graph.events, np.full(len(graph.events), NEVER)
    marks = np.flatnonzero(events.kind == MARK).reshape(RANKS, -1)[:, 1:]
    deadlines[marks] = events.at_ns[marks].max(axis=0)
    late = latest_times(graph, order, deadlines) - Chains(graph, order).came_ns
    found = {}
    for rank, mine in enumerate(job.done):
        own = np.flatnonzero(events.rank == rank)
        came = Chains(graph, order).came_ns[own]
        for place, one in enumerate(mine):
            if isinstance(one.instruction, Work) and one.end_ns > one.start_ns:
                behind = own[int(np.searchsorted(came, one.end_ns))]
                found[rank, place] = int(late[behind])
    return found


def delayed(programs: list[Program], rank: int, place: int, ns: int) -> list[Program]:
    changed = [list(program) for program in programs]
    changed[rank][place] = changed[rank][place]._replace(ns=changed[rank][place].ns + ns)
    return changed


@settings(deadline=None)
@given(schedules(), st.data())
def test_work_may_take_longer_by_its_slack_and_by_no_more(programs, data):
    slack = slack_of(programs, 1)
    assume(slack)
    rank, place = data.draw(st.sampled_from(sorted(slack)))
    ns, before = slack[rank, place], step_ends(programs, 1)
    assert step_ends(delayed(programs, rank, place, ns), 1) == before
    assert step_ends(delayed(programs, rank, place, ns + 1), 1) > before


@pytest.mark.long
@settings(deadline=None)
@given(schedules(groups=[(0, 1, 2)], most=6), st.data())
def test_with_two_lanes_slack_promises_no_more_than_there_is(programs, data):
    slack = slack_of(programs, 2)
    assume(slack)
    rank, place = data.draw(st.sampled_from(sorted(slack)))
    before = step_ends(programs, 2)
    assert step_ends(delayed(programs, rank, place, slack[rank, place]), 2) == before


@pytest.mark.long
@settings(deadline=None)
@given(schedules())
def test_work_on_the_longest_chain_has_no_slack(programs):
    job, slack = Simulation(programs, lanes=1), slack_of(programs, 1)
    for step in range(3):
        for kind, rank, place, _ in found_chain(job, step)[0]:
            assert kind != "work" or slack[rank, place] == 0


@pytest.mark.parametrize("lanes", [1, 2])
def test_what_nobody_needs_may_be_as_late_as_one_likes(lanes):
    graph, order = ordered(graph_of(Simulation([[Work("host", None, 5)], [StepEnd()]], lanes=lanes)))
    assert (latest_times(graph, order, np.full(len(graph.events), NEVER)) == NEVER).all()
