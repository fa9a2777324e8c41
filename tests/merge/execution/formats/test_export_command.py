"""`distprof export`: what the files hold, read by a decoder that knows nothing of ours."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from collections import Counter

import pytest

from support.execution_traces import FRESH, call, file_of, gloo_job, old_call, pair, read_et, slices, tensor
from support.jobs import called
from support.kineto_files import DLRM, needs_shared

COMP, SEND, RECV, COLLECTIVE = 4, 5, 6, 7
THREE = [call(2, "outer", schema=FRESH, outputs=[tensor(1)]), call(3, "inner", parent=2),
         call(4, "reader", inputs=[tensor(1)], schema=FRESH)]


def exported(folder, *options, ranks=1):
    """The nodes of each rank, by name, and what was said."""
    done = called("export", folder, "--out", folder / "out", "--prefix", "job", *options)
    assert done.returncode == 0, done.stderr
    found = [read_et(folder / "out" / f"job.{rank}.et")[1] for rank in range(ranks)]
    return [{node["name"]: node for node in nodes} for nodes in found], done.stdout


def events():
    inner = {"ph": "X", "cat": "cpu_op", "name": "inner", "pid": 1, "tid": 1, "ts": 101, "dur": 3,
             "args": {"Record function id": 3}}
    return slices(("outer", 2), inner, ("reader", 4))


def is_sound(nodes):
    """Every dependency is in the file, and nothing needs itself by way of others."""
    order = {node["id"]: place for place, node in enumerate(nodes)}
    return len(order) == len(nodes) and all(
        order.get(one, len(nodes)) < order[node["id"]] for node in nodes for one in (*node["data"], *node["control"]))


def test_nodes_have_times_nesting_and_dependencies(tmp_path):
    (nodes,), said = exported(pair(tmp_path / "run", THREE, events()))
    outer, inner, reader = nodes["outer"], nodes["inner"], nodes["reader"]
    assert inner["control"] == [outer["id"]] and reader["control"] == []
    assert (outer["start"], outer["duration"]) == (100, 5)  # 8 us with 3 of the inner one
    assert outer["attributes"]["inclusive_duration_micros"] == 8
    # after all of what made its input, and after what Python does in between
    assert reader["data"] == [inner["id"], nodes["outside of calls"]["id"]]
    assert outer["attributes"]["op_schema"] == FRESH and outer["attributes"]["is_cpu_op"] == 1
    assert json.loads(outer["inputs"][0]) == [] and "100.0 %" in said


def test_a_name_that_a_timeline_spells_in_two_ways_shifts_no_other(tmp_path):
    other = {"ph": "X", "cat": "user_annotation", "name": "ESCAPED", "pid": 1, "tid": 1, "ts": 101, "dur": 1}
    nodes = [call(2, "one"), call(3, "two"), call(4, "three"), call(5, "missing")]
    folder = pair(tmp_path / "run", nodes, slices(("one", 2), other, ("two", 3), ("three", 4)))
    trace = folder / "rank0.json"
    trace.write_text(trace.read_text().replace("ESCAPED", "\\u006fne"))
    assert json.loads(trace.read_text())["traceEvents"][1]["name"] == "one"
    assert called("export", folder, "--out", folder, "--prefix", "job").returncode == 0
    names = Counter(node["name"] for node in read_et(folder / "job.0.et")[1])
    assert [names[name] for name in ("one", "two", "three", "missing")] == [2, 1, 1, 1]


@pytest.mark.parametrize("form", ["chakra", "linked"])
def test_only_recorded_calls_count_as_without_a_time(tmp_path, form):
    folder = pair(tmp_path / "run", THREE, events())
    assert "without a time" not in called("export", folder, "--out", folder, "--format", form).stdout
    folder = pair(tmp_path / "other", [*THREE, call(5, "missing")], events())
    assert "1 node without a time" in called("export", folder, "--out", folder, "--format", form).stdout


def test_old_and_new_layouts_give_the_same(tmp_path):
    old = file_of(old_call(2, "outer", schema=FRESH, outputs=[tensor(1)]), old_call(3, "inner", parent=2),
                  old_call(4, "reader", inputs=[tensor(1)], schema=FRESH), schema="1.0.1")
    (one,), _ = exported(pair(tmp_path / "new", THREE, events()))
    (other,), _ = exported(pair(tmp_path / "old", old, events()))
    for node in (*one.values(), *other.values()):
        del node["inputs"]  # shapes and types were left out
    assert one == other


def test_communication_has_type_size_group_and_the_other_side(tmp_path):
    ranks, said = exported(gloo_job(tmp_path / "run"), ranks=2)
    for rank, nodes in enumerate(ranks):
        reduced = nodes["gloo:all_reduce"]
        assert reduced["type"] == COLLECTIVE
        assert {name: reduced["attributes"][name] for name in ("comm_type", "comm_size", "pg_name", "is_cpu_op")} == {
            "comm_type": 0, "comm_size": 100, "pg_name": "0", "is_cpu_op": 0}
        assert set(reduced["data"]) == {nodes["make"]["id"], nodes["c10d::allreduce_"]["id"]}
        assert reduced["id"] in nodes["use"]["data"]
        peer = nodes["gloo:recv" if rank else "gloo:send"]
        assert peer["type"] == (RECV if rank else SEND)
        assert [peer["attributes"][name] for name in ("comm_src", "comm_dst", "comm_tag")] == [0, 1, 9]
    assert "unknown" not in said


def test_for_replay_work_of_gloo_is_where_it_ran(tmp_path):
    (nodes, _), _ = exported(gloo_job(tmp_path / "run"), "--target", "replay", ranks=2)
    assert nodes["gloo:all_reduce"]["attributes"]["is_cpu_op"] == 1


def kernel(name, ts, dur, correlation, stream=7):
    return {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": stream, "ts": ts, "dur": dur,
            "args": {"correlation": correlation, "stream": stream, "device": 0}}


def waiting(kind, correlation, *, stream, recorded, on):
    """What the profiler notes of a wait for an event."""
    return {"ph": "X", "cat": "cuda_sync", "name": kind, "pid": 0, "tid": stream, "ts": 118, "dur": 0, "args": {
        "cuda_sync_kind": kind, "stream": stream, "correlation": correlation, "device": 0, "wait_on_stream": on,
        "wait_on_cuda_event_record_corr_id": recorded, "wait_on_cuda_event_id": 5}}


def launch(ts, correlation, name="cudaLaunchKernel", dur=1):
    return {"ph": "X", "cat": "cuda_runtime", "name": name, "pid": 1, "tid": 1, "ts": ts, "dur": dur,
            "args": {"correlation": correlation}}


def needed(nodes):
    """By name, the names of the calls that each needs, through those that go on and what lies between calls."""
    by_id = {node["id"]: node for node in nodes.values()}

    def through(number):
        node = by_id[number]
        if node["name"] != "outside of calls" and not node["name"].endswith("(continued)"):
            return {node["name"]}
        return set().union(*map(through, node["data"]))

    return {name: set().union(*map(through, node["data"])) for name, node in nodes.items()}


def test_kernels_follow_their_launch_their_stream_and_their_data(tmp_path):
    on_gpu = tensor(1, device="cuda:0")
    nodes = [call(2, "make", outputs=[on_gpu], schema=FRESH), call(3, "use", inputs=[on_gpu], schema=FRESH),
             call(4, "apart"), call(5, "after")]
    timeline = [*slices(("make", 2), ("use", 3), ("apart", 4)), launch(102, 1), launch(112, 2), launch(122, 3),
                launch(128, 4, "cudaDeviceSynchronize", 30), *slices(("after", 5))]
    timeline[-1] |= {"ts": 160}
    timeline += [kernel("first", 110, 20, 1), kernel("second", 131, 5, 2, stream=8), kernel("third", 140, 10, 3)]
    (found,), _ = exported(pair(tmp_path / "run", nodes, timeline))
    needs = needed(found)
    assert needs["first"] == {"make"} and needs["second"] == {"first", "use"} and needs["third"] == {"apart", "first"}
    assert [found[one]["attributes"]["stream"] for one in ("first", "second", "third")] == [7, 8, 7]
    assert "third" in needs["after"] and found["first"]["attributes"]["is_cpu_op"] == 0


EVENTS_OF_STREAMS = [
    launch(101, 1), launch(102, 2, "cudaEventRecord"), launch(103, 3), launch(104, 9), launch(112, 4),
    launch(113, 5, "cudaStreamWaitEvent"), launch(114, 6), launch(115, 7), launch(123, 8, "cudaEventSynchronize", 30),
    kernel("marked", 105, 20, 1), kernel("behind the mark", 126, 20, 3), kernel("elsewhere", 106, 40, 9, stream=9),
    kernel("before the wait", 127, 3, 4, stream=8), kernel("waits", 130, 5, 6, stream=8),
    kernel("follows", 136, 5, 7, stream=8)]


def needs_of_streams(folder, *waits):
    nodes = [call(2, "make"), call(3, "use"), call(4, "apart"), call(5, "after")]
    timeline = [*slices(("make", 2), ("use", 3), ("apart", 4)), *EVENTS_OF_STREAMS, *waits, *slices(("after", 5))]
    timeline[2] |= {"dur": 35}
    timeline[-1] |= {"ts": 160}
    (found,), said = exported(pair(folder, nodes, timeline))
    return needed(found), said


def test_a_stream_and_a_thread_wait_for_what_an_event_marks(tmp_path):
    needs, said = needs_of_streams(
        tmp_path / "run", waiting("Stream Wait Event", 5, stream=8, recorded=2, on=7),
        waiting("Event Sync", 8, stream=-1, recorded=2, on=7))
    assert needs["waits"] == {"use", "before the wait", "marked"}
    assert needs["before the wait"] == {"use"} and needs["follows"] == {"use", "waits"}
    assert "marked" in needs["after"] and not {"elsewhere", "behind the mark"} & needs["after"]
    assert "without the event" not in said


@pytest.mark.parametrize("wait", [
    [], [waiting("Stream Wait Event", 5, stream=8, recorded=-1, on=-1)],
    [waiting("Stream Wait Event", 5, stream=8, recorded=77, on=7)]])
def test_a_wait_of_which_the_event_is_not_known_joins_nothing(tmp_path, wait):
    needs, said = needs_of_streams(tmp_path / "run", *wait)
    assert needs["waits"] == {"use", "before the wait"}
    assert needs["after"] >= {"behind the mark"}, "what ended last while the thread waited"
    assert ("1 stream wait without the event that ends it" in said) == (not wait or wait[0]["args"][
        "wait_on_stream"] < 0)


@pytest.mark.parametrize("form", ["dot", "graphml", "linked"])
def test_other_formats_hold_the_same_nodes(tmp_path, form):
    folder = pair(tmp_path / "run", THREE, events())
    done = called("export", folder, "--out", folder / "out", "--prefix", "job", "--format", form)
    assert done.returncode == 0, done.stderr
    text = (folder / "out" / f"job.0.{'json' if form == 'linked' else form}").read_text()
    if form == "linked":
        names = [node["name"] for node in json.loads(text)["nodes"]]
    elif form == "graphml":
        names = [one.text for one in ElementTree.fromstring(text).iter() if one.get("key") == "name"]
    else:
        names = [part.split("\\n")[0].rstrip('"') for part in text.split('label="')[1:]]
    assert {"outer", "inner", "reader"} <= {name.partition('"')[0] for name in names}


@pytest.mark.long
@needs_shared
def test_all_ranks_of_a_real_job_are_exported(tmp_path):
    done = called("export", DLRM, "--out", tmp_path, "--prefix", "dlrm")
    assert done.returncode == 0, done.stderr
    kinds, communication = [], []
    for rank in range(8):
        _, nodes = read_et(tmp_path / f"dlrm.{rank}.et")
        assert is_sound(nodes)
        kinds.append(Counter(node["type"] for node in nodes)[COLLECTIVE])
        communication.append([(node["attributes"]["comm_type"], node["attributes"]["comm_size"],
                               node["attributes"]["pg_name"]) for node in nodes if node["type"] == COLLECTIVE])
    matched = json.loads(called("comms", DLRM, "--json").stdout)["kinds"]
    assert kinds == [sum(kind["num_calls"] for kind in matched)] * 8
    assert all(one == communication[0] for one in communication)
    assert "slices have no call numbers" in done.stdout and "99.8 %" in done.stdout


def test_without_graphviz_a_picture_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    folder = pair(tmp_path / "run", THREE, events())
    done = called("export", folder, "--out", folder / "out", "--format", "svg")
    assert done.returncode == 1 and "--format svg needs the program dot" in done.stderr and "hint: " in done.stderr
    assert not list((folder / "out").iterdir())


def test_graphviz_draws_what_it_gets(tmp_path, monkeypatch):
    program = tmp_path / "dot"
    program.write_text("#!/bin/sh\nhead -c 7 \"$2\"\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    folder = pair(tmp_path / "run", THREE, events())
    done = called("export", folder, "--out", folder / "out", "--prefix", "job", "--format", "svg")
    assert done.returncode == 0, done.stderr
    assert (folder / "out" / "job.0.svg").read_text() == "digraph"
    program.write_text("#!/bin/sh\necho no memory >&2\nexit 3\n")
    done = called("export", folder, "--out", folder / "out", "--prefix", "other", "--format", "svg")
    assert done.returncode == 1 and "dot failed with status 3: no memory" in done.stderr


def test_clocks_that_were_never_compared_are_said(tmp_path):
    _, said = exported(gloo_job(tmp_path / "run"), ranks=2)
    assert "clocks of the ranks were never compared" in said
