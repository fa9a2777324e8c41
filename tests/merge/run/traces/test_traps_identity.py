"""Processes, threads and names of ranks: traps of joining traces, before the real Perfetto engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.perfetto import ERRORS, PLACES, Answer, ask, rank_of
from support.rank_traces import Merged, files, merge, slice_of
from support.usual_merge import usual_merge


def meta(kind: str, pid: object, tid: object = 0, **args: object) -> dict:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "ts": 1.0, "args": args}


def rank_events(rank: int) -> list[dict]:
    """What Kineto writes on a rank with a GPU, and what other writers do to pids."""
    return [
        meta("process_name", 77, name="python"), meta("process_labels", 77, labels="CPU"),
        meta("process_sort_index", 77, sort_index=77), meta("thread_name", 77, 77, name="thread 77 (python)"),
        meta("thread_name", 77, 77, name=f"main loop {rank}"), meta("thread_name", 77, 0, name="numbered 0"),
        meta("process_name", 0, name="python"), meta("process_labels", 0, labels="GPU 0"),
        meta("process_sort_index", 0, sort_index=5_000_000), meta("process_labels", -1, labels="overhead"),
        meta("process_sort_index", -1, sort_index=0x100000A),
        slice_of(f"op {rank}", 10, 10), slice_of(f"of thread 0 {rank}", 15, 10, tid=0, pid=77),
        slice_of(f"main {rank}", 10, 10, pid=77, tid=77),
        slice_of(f"overhead {rank}", 12, 2, pid=-1, tid=0),
        slice_of(f"kernel {rank}", 12, 10, pid=0, tid=7), slice_of(f"stream 0 {rank}", 17, 10, pid=0, tid=0),
        slice_of(f"sync {rank}", 18, 1, pid=0, tid=1_000_007), meta("thread_name", 0, 1_000_007, name="stream 7 sync"),
        slice_of(f"large {rank}", 10, 1, pid=4294967301, tid=1),
        slice_of(f"larger {rank}", 10, 1, pid=5 * 10**9, tid=1),
        slice_of(f"largest {rank}", 10, 1, pid=4294967295, tid=4294967295),
        slice_of(f"span {rank}", 9, 30 + rank, pid="Spans", tid="PyTorch Profiler"),
        slice_of(f"trace {rank}", 9 + rank, 30, pid="Traces", tid="Trace PyTorch Profiler"),
        slice_of(f"nameless {rank}", 9, 30, pid="", tid=""), slice_of(f"3679 {rank}", 9, 1, pid="3679", tid="7"),
    ]


@pytest.fixture(scope="module")
def merged(tmp_path_factory) -> Merged:
    return merge(tmp_path_factory.mktemp("identity"), *map(rank_events, range(3)))


@pytest.fixture(scope="module")
def answer(merged) -> Answer:
    return ask(merged.path, ERRORS, PLACES)


@pytest.fixture(scope="module")
def usual(merged, tmp_path_factory) -> Answer:
    output = tmp_path_factory.mktemp("usual") / "usual.json"
    usual_merge(files(merged.path.parent.parent / "run"), output)
    return ask(output, ERRORS, PLACES)


def place(answer: Answer, name: str) -> dict:
    """Where the one slice of this name stands."""
    found = [row for row in answer.results[1] if row["slice"] == name]
    assert len(found) == 1, name
    return found[0]


def test_all_slices_are_there_without_an_error(merged, answer):
    assert answer.import_errors == [] and answer.results[0] == []
    wanted = [(rank, event["name"]) for rank in range(3) for event in rank_events(rank) if event["ph"] == "X"]
    assert sorted((rank_of(row["process"]), row["slice"]) for row in answer.results[1]) == sorted(wanted)
    assert merged.found.total("num_side") == 0


@pytest.mark.parametrize("name", ["large", "larger", "largest", "overhead"])
def test_a_pid_beyond_32_bits_or_below_0_is_a_number_of_its_own(answer, name):
    """Perfetto takes each of them for process 0."""
    places = [place(answer, f"{name} {rank}") for rank in range(3)]
    assert [rank_of(found["process"]) for found in places] == [0, 1, 2]
    assert len({found["pid"] for found in places}) == 3 and all(found["pid"] > 0 for found in places)
    if name != "overhead":
        raw = next(event["pid"] for event in rank_events(0) if event["name"] == f"{name} 0")
        assert all(found["process"].endswith(f"(pid {raw})") for found in places)


def test_thread_0_is_not_the_main_thread(answer):
    """Perfetto gives thread 0 the number of its process; what both hold would overlap and be dropped."""
    assert place(answer, "of thread 0 1")["tid"] != place(answer, "main 1")["tid"]
    assert place(answer, "of thread 0 1")["thread"] == "numbered 0"
    assert place(answer, "stream 0 1")["tid"] != place(answer, "kernel 1")["tid"]


def test_pids_and_tids_that_are_text_become_numbers(merged, answer):
    """Perfetto takes the place of the text in its pool of strings for the number."""
    assert all(type(event["pid"]) is int and type(event.get("tid", 0)) is int for event in merged.events)
    found = [place(answer, f"3679 {rank}") for rank in range(3)]
    assert len({row["pid"] for row in found}) == 3 and all("3679" in row["process"] for row in found)


def test_names_of_threads_and_processes_are_seen(answer, usual):
    """With text as pid Perfetto shows the text instead of the names, whatever the trace calls them."""
    assert {place(answer, f"main {rank}")["thread"] for rank in range(3)} == {f"main loop {rank}" for rank in range(3)}
    assert place(answer, "main 2")["process"] == "rank 2 | host7 | cpu (pid 77)"
    assert not any("main loop" in str(row["thread"]) for row in usual.results[1])


def test_processes_that_kineto_invents_belong_to_their_rank(answer):
    """The names "Spans", "Traces" and "" are the same in all ranks; what overlaps there is dropped."""
    for rank in range(3):
        cpu = place(answer, f"main {rank}")
        for name, thread in (("span", "Spans PyTorch Profiler"), ("trace", "Traces Trace PyTorch Profiler"),
                             ("nameless", "marks")):
            found = place(answer, f"{name} {rank}")
            assert found["pid"] == cpu["pid"] and found["tid"] != cpu["tid"] and found["thread"] == thread


def test_gpus_and_processes_of_one_number_on_several_ranks_stay_apart(answer):
    """GPUs are counted from 0 on every rank, and pids repeat in containers."""
    for name in ("kernel", "main", "op"):
        assert len({place(answer, f"{name} {rank}")["pid"] for rank in range(3)}) == 3
    assert [place(answer, f"kernel {rank}")["process"] for rank in range(3)] == [
        f"rank {rank} | host7 | gpu 0" for rank in range(3)]
    # a stream and a thread of one number, and two processes of one rank
    assert place(answer, "kernel 0")["tid"] != place(answer, "op 0")["tid"]
    assert place(answer, "op 0")["process"] != place(answer, "main 0")["process"]


def test_overhead_has_a_lane_of_its_own_and_late_names_count(answer):
    """Kineto's overhead is process -1, and synchronised streams are named behind their events."""
    assert place(answer, "overhead 1")["pid"] == place(answer, "main 1")["pid"]
    assert place(answer, "overhead 1")["thread"] == "overhead 0"
    assert place(answer, "sync 1")["thread"] == "stream 7 sync"


def test_the_rank_is_in_names_and_labels_too(merged):
    """Perfetto reads no labels, chrome://tracing does; of several names the last one by time wins."""
    named = [event for event in merged.events if event["name"] == "process_name"]
    assert all(event["args"]["name"].startswith("rank ") and "ts" not in event for event in named)
    labels = {event["pid"]: event["args"]["labels"] for event in merged.events if event["name"] == "process_labels"}
    assert labels == {event["pid"]: event["args"]["name"].rpartition(" | ")[0] for event in named}
    names = [(event["name"], event["pid"], event.get("tid")) for event in merged.events if event["ph"] == "M"]
    assert len(names) == len(set(names)), "no name is given twice"


def test_processes_are_sorted_by_rank(merged):
    """Kineto sorts by pid, and the GPUs of all ranks behind; the number has 32 bits."""
    places = {event["pid"]: event["args"]["sort_index"] for event in merged.events
              if event["name"] == "process_sort_index"}
    names = {event["pid"]: event["args"]["name"] for event in merged.events if event["name"] == "process_name"}
    ranks = [rank_of(names[pid]) for pid in sorted(places, key=places.__getitem__)]
    assert ranks == sorted(ranks) and set(ranks) == {0, 1, 2}
    assert places.keys() == names.keys() and all(0 <= place < 2**31 for place in places.values())


def test_no_two_threads_share_a_number(answer):
    """One tid in two processes is two threads, but not for every part of Perfetto."""
    threads = {(row["pid"], row["tid"]) for row in answer.results[1]}
    assert len({tid for _, tid in threads}) == len(threads)
    pids = {pid for pid, _ in threads}
    shared = {tid for pid, tid in threads if tid in pids and tid != pid}
    assert not shared, "the number of a process is that of its own main thread or of none"


def test_a_process_of_another_writer_keeps_its_name(tmp_path: Path):
    """VizTracer gives no labels and has several processes in a file: they stay apart, with their names."""
    found = merge(tmp_path, [
        meta("process_name", 5, name="MainProcess"), meta("process_name", 6, name="worker"),
        slice_of("a", 1, 4, pid=5, tid=5), slice_of("b", 2, 4, pid=6, tid=6), slice_of("c", 3, 4, pid=8, tid=6)])
    names = {event["pid"]: event["args"]["name"] for event in found.events if event["name"] == "process_name"}
    assert [names[event["pid"]] for event in found.of(0, "X")] == [
        "rank 0 | host7 | MainProcess (pid 5)", "rank 0 | host7 | worker (pid 6)", "rank 0 | host7 | cpu (pid 8)"]


@pytest.mark.parametrize("category", ["kernel", "gpu_memcpy", "gpu_memset"])
def test_a_process_without_a_label_that_runs_kernels_is_its_device(tmp_path: Path, category: str):
    found = merge(tmp_path, [
        slice_of("aten::mm", 1, 4, pid=77, tid=1), slice_of("gemm", 2, 4, pid=9, tid=3, cat=category, device=5),
        meta("process_labels", 0, labels="GPU 0"), slice_of("gemm", 2, 4, pid=0, tid=3, cat=category, device=0),
        slice_of("odd", 9, 4, pid=8, tid=3, cat=category)])
    names = {event["pid"]: event["args"]["name"] for event in found.events if event["name"] == "process_name"}
    assert [names[event["pid"]] for event in found.of(0, "X")] == [
        "rank 0 | host7 | cpu (pid 77)", "rank 0 | host7 | gpu 5", "rank 0 | host7 | gpu 0",
        "rank 0 | host7 | cpu (pid 8)"]


def test_a_thread_that_is_spelled_in_several_ways_is_one(tmp_path: Path):
    """7 and "7" are written as the same number; slices, arrows and pairs of both belong together."""
    events = [slice_of("a", 10, 100, pid=1, tid=1), slice_of("b", 60, 100, pid="1", tid="1"),
              {"ph": "B", "name": "c", "pid": 1, "tid": 1, "ts": 300}, {"ph": "E", "pid": "1", "tid": 1, "ts": 400}]
    found = merge(tmp_path, events)
    answer = ask(found.path, ERRORS, PLACES)
    assert answer.results[0] == [] and found.found.total("num_side") == 1
    assert {row["slice"]: row["dur"] for row in answer.results[1]} == {"a": 100_000, "b": 100_000, "c": 100_000}


def test_names_that_are_no_text_are_no_names(tmp_path: Path):
    """What other writers put into metadata stops nothing."""
    names = (["x"], {"a": 1}, 5, None, "thread_name")
    odd = [{"ph": "M", "name": name, "pid": 1, "tid": 1, "args": args} for name in names
           for args in ({}, [], None, {"name": ["y"]})]
    found = merge(tmp_path, [*odd, slice_of("ProfilerStep#99999999999999999999", 1, 2), slice_of("a", 10, 1)])
    answer = ask(found.path, ERRORS, PLACES)
    assert answer.results[0] == [] and len(answer.results[1]) == 2


def test_a_trace_of_nothing_but_kernels_has_no_other_process(tmp_path: Path):
    kernel = slice_of("gemm", 1, 5, pid=0, tid=7, cat="kernel", args={"device": 3, "stream": 7})
    events = merge(tmp_path, [kernel]).events
    assert [event["args"]["name"] for event in events if event["name"] == "process_name"] == ["rank 0 | host7 | gpu 3"]
