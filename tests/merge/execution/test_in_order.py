"""What is true of every graph that is exported: tried on threads that call, issue, compute and wait at random."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distprof.merge.execution.communication import Communication
from distprof.merge.execution.in_order import CONTINUED, GAP_NS, OUTSIDE, in_order, longest_chain_ns
from distprof.merge.execution.rank_graph import RankGraph
from distprof.merge.operators.timeline.rank_timeline import OPERATOR
from support.execution_traces import FRESH, call, pair, read_et, slices, tensor
from support.jobs import called

MAIN, WORKERS = 1, (2, 3)
NAMES = ["work", "c10d::allreduce_", "gloo:all_reduce", "Work.wait"]
WORK, ISSUE, GLOO, WAIT = range(4)


class Job:
    """A thread that computes in nested calls, and a backend with two threads."""

    def __init__(self, seed: int) -> None:
        self.chance, self.now = random.Random(seed), 1_000_000
        self.calls: list[list[int]] = []
        """Name, start, end, thread, the call around it."""
        self.issued: list[dict[str, Any]] = []
        self.free = dict.fromkeys(WORKERS, 0)

    def spend(self, most_ns: int = 200_000) -> None:
        self.now += self.chance.choice([0, self.chance.randint(1, 8_000), self.chance.randint(1, most_ns)])

    def call(self, name: int, around: int) -> int:
        self.calls.append([name, self.now, self.now, MAIN, around])
        return len(self.calls) - 1

    def run(self, depth: int, around: int) -> None:
        for _ in range(self.chance.randint(1, 4)):
            kind = self.chance.random()
            self.spend()
            if kind < 0.25:
                self.issue(around)
            elif kind < 0.45 and (open_ones := [one for one in self.issued if one["wait_start_ns"] is None]):
                self.wait(self.chance.choice(open_ones), around)
            elif depth:
                mine = self.call(WORK, around)
                self.spend()
                self.run(depth - 1, mine)
                self.spend()
                self.calls[mine][2] = max(self.now, self.calls[mine][1] + 1)
                self.now = self.calls[mine][2]

    def issue(self, around: int) -> None:
        mine, begun = self.call(ISSUE, around), self.now
        self.spend()
        self.now += 1
        self.calls[mine][2] = self.now
        thread = self.chance.choice(WORKERS)
        starts = max(begun + self.chance.randint(0, 100_000), self.free[thread])
        ends = starts + self.chance.randint(1, 600_000)
        self.free[thread] = ends
        self.calls.append([GLOO, starts, ends, thread, -1])
        self.issued.append({"op": "all_reduce", "place": len(self.calls) - 1, "issuer": mine, "enqueue_ns": begun,
                            "start_ns": starts, "end_ns": ends, "wait_start_ns": None, "wait_end_ns": None})

    def wait(self, one: dict[str, Any], around: int) -> None:
        """In a call of its own, of which the begin may be noted late; or with none, as in C++."""
        mine = self.call(WAIT, around) if self.chance.random() < 0.7 else -1
        if mine >= 0:
            self.now += self.chance.choice([0, self.chance.randint(1, 300_000)])
        one["wait_start_ns"] = self.now
        self.now = max(self.now, one["end_ns"]) + self.chance.randint(0, 30_000)
        one["wait_end_ns"] = self.now
        if mine >= 0:
            self.calls[mine][2] = self.now

    def graph(self) -> tuple[RankGraph, Communication]:
        table = np.array(self.calls, np.int64)
        order = np.lexsort((np.arange(len(table)), table[:, 1]))
        new = np.append(np.argsort(order), -1)
        name, start, end, thread, around = table[order].T
        parent = new[around]
        duration = end - start
        own = duration.copy()
        np.subtract.at(own, parent[parent >= 0], duration[parent >= 0])
        nothing = np.full(len(name), -1)
        graph = RankGraph(name=name, names=NAMES, type=np.full(len(name), OPERATOR), start_ns=start, self_ns=own,
                          duration_ns=duration, thread=thread, parent=parent, node=nothing,
                          slice=np.arange(len(name)), inside_until=nothing, table=None, links=None,
                          timeline=SimpleNamespace(names=[])).with_insides()  # type: ignore[arg-type]
        rows = pl.DataFrame([{key: one[key] for key in one if key not in ("place", "issuer")} for one in self.issued],
                            schema_overrides={"wait_start_ns": pl.Int64, "wait_end_ns": pl.Int64})
        return graph, Communication(place=new[[one["place"] for one in self.issued]], rows=rows,
                                    issued_by=new[[one["issuer"] for one in self.issued]])


def above(graph: RankGraph, place: int) -> set[int]:
    found = set()
    while (place := int(graph.parent[place])) >= 0:
        found.add(place)
    return found


@pytest.mark.long
@settings(max_examples=150)
@given(st.integers(0, 2**32))
def test_a_graph_can_be_gone_through_in_the_time_that_it_took(seed):
    job = Job(seed)
    while len(job.calls) < 12 or not job.issued:
        job.run(3, -1)
    given_graph, given_communication = job.graph()
    graph, communication, needed = in_order(given_graph, given_communication)
    ends = graph.start_ns + graph.self_ns
    span = int((graph.start_ns + graph.duration_ns).max() - graph.start_ns.min())
    assert longest_chain_ns(graph, needed) <= span
    for thread in np.unique(graph.thread):
        assert graph.self_ns[graph.thread == thread].sum() <= span
    waits = {place for place in range(len(graph.name)) if graph.names[graph.name[place]] == "Work.wait"}
    gathered = set(communication.place.tolist())
    for place in range(len(graph.name)):
        for one in needed.of(place):
            assert one < place
            waited = place in waits and one in gathered
            assert waited or one in above(graph, place) or ends[one] <= graph.start_ns[place]
    assert all(gathered & set(needed.of(place)) for place in waits)
    for place, issuer in zip(communication.place.tolist(), communication.issued_by.tolist(), strict=True):
        assert issuer in needed.of(place)
    # nothing is lost but gaps that are left out
    over = np.zeros(len(graph.name), np.int64)
    for place in range(len(graph.name)):
        over[place] = max((over[one] for one in needed.of(place)), default=graph.start_ns[place]) + graph.self_ns[place]
    gaps = GAP_NS * int((given_graph.parent < 0).sum())
    assert span - gaps <= int(over.max() - graph.start_ns.min()) <= span


def test_what_goes_on_behind_a_wait_is_behind_the_communication():
    job = Job(0)
    outer = job.call(WORK, -1)
    job.chance = SimpleNamespace(choice=lambda given: given[0], randint=lambda low, _high: low, random=lambda: 0.0)
    job.now += 50_000
    job.issue(outer)
    job.issued[0] |= {"end_ns": job.now + 400_000}
    job.calls[job.issued[0]["place"]][2] = job.now + 400_000
    job.wait(job.issued[0], outer)
    job.now += 70_000
    job.calls[outer][2] = job.now
    job.now += 20_000
    job.calls.append([WORK, job.now, job.now + 10_000, MAIN, -1])
    graph, communication, needed = in_order(*job.graph())
    names = [graph.names[name] for name in graph.name.tolist()]
    behind, between = names.index(f"work{CONTINUED}"), names.index(OUTSIDE)
    wait = names.index("Work.wait")
    assert communication.place.tolist()[0] in needed.of(wait) and wait in needed.of(behind)
    assert [int(graph.self_ns[place]) for place in (names.index("work"), wait, behind, between)] == [
        50_000, 0, 70_000, 20_000]

def test_operators_that_run_in_communication_do_not_wait_for_it(tmp_path):
    """Gloo makes views of what it gathers while it does; what it does next comes after all of it."""
    nodes = [call(2, "make", outputs=[tensor(1)], schema=FRESH), call(3, "c10d::allgather_", inputs=[[tensor(1)]]),
             call(4, "gloo:all_gather", inputs=[tensor(1)], tid=7), call(5, "aten::view", inputs=[tensor(1)], tid=7),
             call(6, "c10d::barrier"), call(7, "gloo:barrier", tid=7)]
    timeline = slices(("make", 2), ("c10d::allgather_", 3), {}, {}, ("c10d::barrier", 6), {})
    for place, (number, name, category, start, duration) in {
            2: (4, "gloo:all_gather", "user_annotation", 120, 50), 3: (5, "aten::view", "cpu_op", 125, 3),
            5: (7, "gloo:barrier", "user_annotation", 180, 9)}.items():
        timeline[place] = {"ph": "X", "cat": category, "name": name, "pid": 1, "tid": 7, "ts": start, "dur": duration,
                           "args": {"Record function id": number, "Input Dims": [[4]], "Input type": ["float"]}}
    run = pair(tmp_path / "run", nodes, timeline)
    assert called("export", run, "--out", tmp_path, "--prefix", "job").returncode == 0
    found = {node["name"]: node for node in read_et(tmp_path / "job.0.et")[1]}
    gathered = found["gloo:all_gather"]["id"]
    assert gathered not in found["aten::view"]["data"] and gathered in found["gloo:barrier"]["data"]
