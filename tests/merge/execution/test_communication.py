"""Communication of execution traces: who issued it, and what of it a timeline lacks, which is said."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from distprof.merge.execution.communication import Communication, _issuer
from distprof.merge.execution.rank_graph import RankGraph
from distprof.merge.execution.waits import Wait, with_bounds
from support.execution_traces import call, pair, read_et, slices, tensor
from support.jobs import SCRIPTS, called, started
from support.ports import free_port

OPERATORS = ["c10d::broadcast_", "c10d::allreduce_", "c10d::reduce_scatter_tensor_coalesced_",
         "_c10d_functional::all_reduce"]


@pytest.mark.parametrize(("op", "around", "found"), [
    ("broadcast", [0], 0), ("all_reduce", [1], 0), ("all_reduce", [3], 0), ("all_reduce", [3, 1], 1),
    ("all_reduce", [0], -1),  # another thread is in there
    ("all_reduce", [1, 0], 0), ("all_reduce", [2], 0),  # gloo reduces all where it has to reduce and scatter
])
def test_an_operator_of_another_thread_did_not_issue_what_is_called_meanwhile(op, around, found):
    number = len(around)
    graph = SimpleNamespace(names=OPERATORS, name=np.array(around), start_ns=np.arange(number) + 10,
                            duration_ns=np.full(number, 1000))
    assert _issuer(graph, np.arange(number), {}, -1, 500, op) == found


@pytest.mark.parametrize("order", [1, -1])
def test_communication_ends_when_the_first_thread_that_waits_for_it_goes_on(order):
    start, duration = np.array([0, 5]), np.array([10, 95])
    graph = RankGraph(
        name=np.array([0, 1]), names=("c10d::allreduce_", "gloo:all_reduce"), type=np.zeros(2, np.int64),
        start_ns=start, duration_ns=duration, self_ns=duration, thread=np.array([1, 7]), parent=np.array([-1, -1]),
        node=np.array([-1, -1]), slice=np.arange(2), inside_until=np.arange(2), table=None, timeline=None, links=None)
    found = Communication(place=np.array([1]), rows=pl.DataFrame({"op": ["all_reduce"]}), issued_by=np.array([0]))
    waits = [Wait(1, -1, 1, 20, 60), Wait(1, -1, 2, 20, 80)][::order]
    assert with_bounds(graph, found, waits).end_ns(1) == 60


COMP, SEND, RECV, COLLECTIVE = 4, 5, 6, 7
WORK = {"gloo:all_reduce": (COLLECTIVE, 0), "gloo:reduce": (COLLECTIVE, 1), "gloo:all_gather": (COLLECTIVE, 2),
        "gloo:gather": (COLLECTIVE, 3), "gloo:broadcast": (COLLECTIVE, 5), "gloo:all_to_all": (COLLECTIVE, 6),
        "gloo:barrier": (COLLECTIVE, 9)}
"""What gloo calls its work -> kind of node."""


def kinds_of(path):
    return Counter((node["type"], node["attributes"].get("comm_type")) for node in read_et(path)[1]
                   if node["type"] in (SEND, RECV, COLLECTIVE))


@pytest.mark.job
def test_a_real_timeline_of_one_step_of_three_loses_no_communication(tmp_path):
    source = tmp_path / "run"
    source.mkdir()
    done = started(SCRIPTS / "observed_kinds.py", source, free_port(), 1, 1)
    assert done.returncode == 0, done.stderr
    done = called("export", source, "--out", tmp_path, "--prefix", "job")
    assert done.returncode == 0, done.stderr
    num_untimed = 0
    for rank in (0, 1):
        recorded = Counter(one["name"] for one in json.loads((source / f"et_rank{rank}.json").read_text())["nodes"])
        timed = Counter(one["name"] for one in json.loads((source / f"rank{rank}.json").read_text())["traceEvents"]
                        if one.get("ph") == "X")
        assert {3 * timed[name] for name in WORK} == {recorded[name] for name in WORK}
        found = kinds_of(tmp_path / f"job.{rank}.et")
        assert {kind: found[kind] for kind in WORK.values()} == {WORK[name]: recorded[name] for name in WORK}
        num_untimed += sum(recorded[name] - timed[name] for name in (*WORK, "gloo:send", "gloo:recv"))
    assert f"{num_untimed} calls of communication have no time: the execution traces have them" in done.stdout
    assert "missing on some" not in done.stdout


@pytest.mark.job
def test_execution_traces_without_timelines_have_the_communication_of_the_script(tmp_path):
    source = tmp_path / "run"
    source.mkdir()
    done = started(SCRIPTS / "two_observers.py", source, free_port())
    assert done.returncode == 0, done.stderr
    names = []
    for rank in (0, 1):
        (source / f"demo_et_r{rank}.json").rename(source / f"et_rank{rank}.json")
        (source / f"demo_trace_r{rank}.json").unlink()
        nodes = json.loads((source / f"et_rank{rank}.json").read_text())["nodes"]
        names.append(Counter(one["name"] for one in nodes if one["name"] in WORK))
    done = called("export", source, "--out", tmp_path, "--prefix", "job")
    assert "communication is known by names alone" in done.stdout and "unknown process group" not in done.stdout
    for rank in (0, 1):
        assert kinds_of(tmp_path / f"job.{rank}.et") == {WORK[name]: number for name, number in names[rank].items()}
        groups = {node["attributes"]["pg_name"] for node in read_et(tmp_path / f"job.{rank}.et")[1]
                  if node["type"] == COLLECTIVE}
        assert groups == {"0"}


STEPS = st.lists(st.tuples(st.sampled_from(["compute", "allreduce_", "broadcast_", "barrier", "send"]), st.booleans()),
                 min_size=1, max_size=12)
GLOO = {"allreduce_": "all_reduce", "broadcast_": "broadcast", "barrier": "barrier", "send": "send"}


@pytest.mark.long
@given(STEPS, st.integers(0, 30), st.integers(1, 30), st.booleans())
@example([("allreduce_", False), ("barrier", False), ("allreduce_", False)], 2, 2, True)
@example([("allreduce_", True), ("send", True), ("barrier", True)], 0, 1, False)
def test_wherever_a_timeline_begins_and_ends_communication_stays(steps, begin, length, numbered):
    nodes = list(_nodes(steps))
    begin = min(begin, len(nodes) - 1)
    shown = range(begin, min(begin + length, len(nodes)))
    events = slices(*((one["name"], one["id"]) for one in nodes))
    for node, event in zip(nodes, events, strict=True):
        gloo = node["name"].startswith("gloo:")
        event |= {"cat": "user_annotation", "tid": 7} if gloo else {}
        event["args"] = {"Record function id": node["id"]} if numbered else {}
        event["args"] |= {"Input Dims": [[4]], "Input type": ["float"]} if gloo else {}
    with TemporaryDirectory() as folder:
        path = pair(Path(folder) / "run", nodes, [events[place] for place in shown], world_size=2)
        done = called("export", path, "--out", path / "out", "--prefix", "job")
        assert done.returncode == 0, done.stderr
        found = kinds_of(path / "out" / "job.0.et")
    works = [place for place, node in enumerate(nodes) if node["name"].startswith("gloo:")]
    assert found.total() == len(works)
    assert found[SEND, None] == sum(nodes[place]["name"] == "gloo:send" for place in works)
    num_untimed = len(works) - sum(place in shown for place in works)
    said = f"{num_untimed} call{'' if num_untimed == 1 else 's'} of communication ha"
    assert (said in done.stdout) == (num_untimed > 0), done.stdout


def _nodes(steps):
    """Calls of gloo, whose work lies in the operator that issues it or behind it, as torch writes both."""
    number = 2
    for place, (what, is_inside) in enumerate(steps):
        if what == "compute":
            yield call(number, f"aten::op{place}")
            number += 1
            continue
        given = [] if what == "barrier" else [[tensor(place + 1)]]
        more = [1, 3] if what == "send" else []
        yield call(number, f"c10d::{what}", inputs=[*given, "<Object>", *more])
        yield call(number + 1, f"gloo:{GLOO[what]}", parent=number if is_inside else 1,
                   inputs=given[0] if given else [])
        number += 2


@pytest.mark.parametrize("form", ["chakra", "replay"])
def test_a_timeline_without_shapes_takes_sizes_of_the_execution_trace(tmp_path, form):
    for rank in (0, 1):
        issued = [[tensor(1, size=25), tensor(2, size=5)]]
        nodes = [call(3, "c10d::allreduce_coalesced_", inputs=issued), call(4, "gloo:all_reduce", inputs=issued[0])]
        events = slices(("c10d::allreduce_coalesced_", 3))
        events.append({"ph": "X", "cat": "user_annotation", "pid": 1, "name": "gloo:all_reduce", "tid": 7, "ts": 115,
                       "dur": 9, "args": {"Record function id": 4}})
        pair(tmp_path / "run", nodes, events, rank=rank, world_size=2)
    done = called("export", tmp_path / "run", "--out", tmp_path, "--prefix", "job", "--format", form)
    assert done.returncode == 0, done.stderr
    if form == "chakra":
        assert [node["attributes"]["comm_size"] for node in read_et(tmp_path / "job.0.et")[1]
                if node["type"] == COLLECTIVE] == [120]
    else:
        assert "skipped" not in done.stdout
        written = json.loads((tmp_path / "rank-0.json").read_text())["nodes"]
        told = [{one["name"]: one["value"] for one in node["attrs"]} for node in written]
        assert [(one["collective_name"], one["in_msg_nelems"]) for one in told if "in_msg_nelems" in one] == [
            ("all_reduce", 30)]
