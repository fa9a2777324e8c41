"""A merged trace that is split has the events of each rank in a file of its own."""

from __future__ import annotations

import gzip
import json
import resource
from pathlib import Path

import pytest

from distprof.contract.problems import SeveralRanksInFile
from distprof.errors import DataError, OutputError
from distprof.merge.chrome.split import split
from distprof.merge.run.open_run import open_run
from distprof.merge.scan.trace_file import TraceFile
from support.jobs import called, distprof
from support.kineto_files import files_of, kineto, write
from support.rank_traces import slice_of


def read(file: Path) -> dict:
    return json.loads(gzip.decompress(file.read_bytes()))


def slices(whole: dict) -> set[tuple]:
    return {(event["name"], str(event["pid"]), event["dur"]) for event in whole["traceEvents"] if event["ph"] == "X"}


def merged(file: Path, *prefixes: str) -> Path:
    """A trace as SGLang's merger writes it: the same process on each rank."""
    events = [slice_of(f"work of {prefix}", 10, 5 + number, pid=f"[{prefix}] {pid}")
              for number, prefix in enumerate(prefixes) for pid in (7, "Spans")]
    about = {"distributedInfo": {"rank": 0, "world_size": 9, "backend": "nccl"}, "baseTimeNanoseconds": 17}
    return write(file, json.dumps({"schemaVersion": 1, **about, "traceEvents": [*events, slice_of("odd", 1, 1)]}))


@pytest.mark.parametrize("prefixes", [
    ("TP00-DP00", "TP01-DP00", "TP00-DP01", "TP01-DP01"), ("rank 10", "rank 9"), ("worker a", "worker b")])
def test_prefixed_pids_become_ranks_again(tmp_path, prefixes):
    file = merged(tmp_path / "trace.json", *prefixes)
    found = split(TraceFile(path=file), tmp_path / "out")
    assert found.num_left_out == 1 and sum(found.num_events.values()) == 2 * len(prefixes)
    wholes = {int(one.name[4:].split(".")[0]): read(one) for one in (tmp_path / "out").iterdir()}
    assert sorted(wholes) == ([9, 10] if prefixes[0] == "rank 10" else [*range(len(prefixes))])
    seen = {}
    for rank, whole in wholes.items():
        assert whole["distributedInfo"] == {"rank": rank, "world_size": 9, "backend": "nccl"}
        assert whole["baseTimeNanoseconds"] == 17
        (name,) = {name for name, _, _ in slices(whole)}
        assert {pid for _, pid, _ in slices(whole)} == {"7", "Spans"}
        seen[rank] = name.removeprefix("work of ")
    if prefixes[0].startswith("TP"):
        assert seen == dict(enumerate(("TP00-DP00", "TP01-DP00", "TP00-DP01", "TP01-DP01")))
    run = open_run(file)
    assert run.remarks == (SeveralRanksInFile(file=str(file)),) and not open_run(tmp_path / "out").remarks


@pytest.mark.job
def test_what_distprof_merged_comes_apart_and_together_again(tmp_path):
    for rank in range(3):
        write(tmp_path / "in" / f"rank{rank}.json", kineto(rank, 3, host="node0"))
    assert distprof("merge", tmp_path / "in", "--out", tmp_path / "one").returncode == 0
    done = distprof("split", tmp_path / "one" / "trace.json.gz", "--out", tmp_path / "apart")
    assert done.returncode == 0 and "of ranks 0-2" in done.stdout, done.stderr
    assert files_of(open_run(tmp_path / "apart")) == {rank: f"rank{rank}.json.gz" for rank in range(3)}
    assert distprof("merge", tmp_path / "apart", "--out", tmp_path / "two").returncode == 0
    one, two = ({(name, pid, dur) for name, pid, dur in slices(read(tmp_path / name / "trace.json.gz"))}
                for name in ("one", "two"))
    assert one == two and len(one) == 3
    origins = [read(tmp_path / name / "trace.json.gz")["metadata"]["distprof"]["origin_ns"] for name in ("one", "two")]
    assert origins[0] == origins[1]


def test_what_is_lost_is_said_and_many_ranks_need_few_open_files(tmp_path):
    names = [f"rank {rank}" for rank in range(60)]
    file = merged(tmp_path / "trace.json", *names)
    file.write_bytes(file.read_bytes()[:-60])
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len([*Path("/proc/self/fd").iterdir()]) + 30, hard))
    try:
        done = called("split", file, "--out", tmp_path / "out")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert done.returncode == 0 and "of ranks 0-59" in done.stdout, done
    assert "incomplete: trace.json is cut off after 120 whole events" in done.stdout
    assert len(read(tmp_path / "out" / "rank59.json.gz")["traceEvents"]) == 2


def test_what_cannot_be_split_is_one_line(tmp_path):
    file = write(tmp_path / "rank0.json", kineto(0, 1))
    with pytest.raises(DataError, match="tells which events are of which rank"):
        split(TraceFile(path=file), tmp_path / "out")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").touch()
    with pytest.raises(OutputError, match="is not empty"):
        split(TraceFile(path=merged(tmp_path / "m.json", "a", "b")), tmp_path / "out")


def test_traces_of_several_hosts_become_one_folder(tmp_path):
    for host in range(2):
        file = merged(tmp_path / f"host{host}.json", "rank 0", "rank 1")
        done = called("split", file, "--out", tmp_path / "ranks", "--first-rank", 2 * host)
        assert done.returncode == 0 and f"of ranks {2 * host}-{2 * host + 1} in" in done.stdout
    run = open_run(tmp_path / "ranks")
    assert files_of(run) == {rank: f"rank{rank}.json.gz" for rank in range(4)} and run.missing == [*range(4, 9)]
    assert slices(read(tmp_path / "ranks" / "rank3.json.gz")) == slices(read(tmp_path / "ranks" / "rank1.json.gz"))
    done = called("split", tmp_path / "host0.json", "--out", tmp_path / "ranks", "--first-rank", 3)
    assert done.returncode != 0 and "has rank3.json.gz" in done.stderr and "--first-rank" in done.stderr


@pytest.mark.parametrize("second", ["[rank 1] 7", 8])
def test_a_second_rank_behind_many_events_is_said(tmp_path, second):
    first = 7 if second == 8 else "[rank 0] 7"
    labels = [{"ph": "M", "name": "process_labels", "pid": pid, "args": {"labels": "CPU"}} for pid in (first, second)]
    events = [labels[0], *(slice_of(f"work {at}", 10 * at, 5, pid=first) for at in range(3000)), labels[1],
              slice_of("more", 5, 5, pid=second)]
    file = write(tmp_path / "all.json", json.dumps({"schemaVersion": 1, "deviceProperties": [], "traceEvents": events}))
    text = called("merge", file, "--out", tmp_path / "out").stdout
    assert text.count("has events of several ranks and is read as one; distprof split takes it apart") == 1
