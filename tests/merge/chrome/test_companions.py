"""Traces that other programs made of a rank, as processes of it, in the real Perfetto."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path
from subprocess import run as execute

import pytest

from support import perfetto
from support.jobs import distprof
from support.kineto_files import kineto, write
from support.rank_traces import slice_of

BASE_US = 1_790_857_026_000_000
"""Of `kineto`: its slice is 10 us behind."""
PLACES = """select process.name as process, thread.tid as tid, slice.name as slice, slice.ts as ts, slice.dur as dur
            from slice join thread_track on slice.track_id = thread_track.id join thread using (utid)
            join process using (upid) order by slice.ts, slice.id"""


def merged(folder: Path, *flags: str) -> tuple[str, list[dict], list[dict]]:
    done = distprof("merge", folder, "--out", folder / "out", "--force", *flags)
    assert done.returncode == 0, done.stderr
    answer = perfetto.ask(next((folder / "out").glob("trace.*")), perfetto.ERRORS, PLACES, perfetto.FLOWS)
    assert answer.import_errors == answer.results[0] == []
    return done.stdout, *answer.results[1:]


def theirs(begin_us: float) -> str:
    """Two processes, an arrow with an id that the rank's own trace may have too."""
    arrow = [{"ph": phase, "id": 1, "cat": "c", "name": "a", "pid": 100, "tid": tid, "ts": begin_us + at, "bp": "e"}
             for phase, tid, at in (("s", 100, 1), ("f", 7, 2))]
    return json.dumps({"traceEvents": [
        slice_of("main", begin_us, 30, pid=100, tid=100, args={"pid": 5}), *arrow,
        slice_of("worker", begin_us + 2, 3, pid=100, tid=7), slice_of("child", begin_us + 5, 3, pid="c-1", tid="x")]})


@pytest.mark.parametrize("name", ["viztracer_rank0.json", "viztracer_rank0.json.gz"])
def test_one_clock_is_kept(tmp_path, name):
    write(tmp_path / "worker0.1.pt.trace.json", kineto(0, 1))
    write(tmp_path / name, theirs(BASE_US + 4.5))
    text, places, arrows = merged(tmp_path)
    assert f"1 trace of other programs next to those of torch.profiler: drawn as processes of the rank ({name})" in text
    assert "clocks of other programs" not in text
    first = places[0]["ts"]
    title = f"rank 0 | node0 | {name}"
    assert [(one["process"], one["slice"], one["ts"] - first, one["dur"]) for one in places] == [
        (f"{title} pid 100", "main", 0, 30_000), (f"{title} pid 100", "worker", 2000, 3000),
        (f"{title} pid c-1", "child", 5000, 3000), ("rank 0 | node0 | python (pid 100)", "work of 0", 5500, 5000)]
    assert arrows == [{"source": f"{title} pid 100", "target": f"{title} pid 100"}]
    events = json.loads(gzip.decompress((tmp_path / "out" / "trace.json.gz").read_bytes()))["traceEvents"]
    assert {"pid": 5} in [event.get("args") for event in events], "arguments stay as they are"


def test_another_clock_begins_with_the_rank_and_is_said(tmp_path):
    for rank in range(2):
        write(tmp_path / f"worker{rank}.1.pt.trace.json", kineto(rank, 2))
        write(tmp_path / f"pyspy_rank{rank}.json", json.dumps([slice_of(f"python {rank}", 65_894_428_071.456, 8)]))
    text, places, _ = merged(tmp_path, "--format", "perfetto")
    assert "2 traces drawn from the start of the rank's trace (pyspy_rank0.json, pyspy_rank1.json)" in text
    at = {one["slice"]: (one["ts"], one["process"]) for one in places}
    for rank in range(2):
        assert at[f"python {rank}"] == (at[f"work of {rank}"][0], f"rank {rank} | node0 | pyspy_rank{rank}.json")


def test_what_cannot_be_read_of_it_is_named_and_the_rank_stays(tmp_path):
    write(tmp_path / "worker0.1.pt.trace.json", kineto(0, 1))
    whole = theirs(BASE_US)
    write(tmp_path / "a_rank0.json", whole[:len(whole) * 3 // 4])
    text, places, _ = merged(tmp_path)
    assert {"main", "work of 0"} <= {one["slice"] for one in places} and "incomplete: rank 0: a_rank0.json" in text


def test_a_trace_of_viztracer_itself_loses_no_slice(tmp_path):
    (tmp_path / "script.py").write_text("def inner():\n    return sum(range(2000))\n"
                                        "def outer():\n    return [inner() for _ in range(50)]\nouter()\n")
    folder = tmp_path / "traces"
    write(folder / "worker0.1.pt.trace.json", kineto(0, 1))
    execute([sys.executable, "-m", "viztracer", "-o", folder / "result_rank0.json", tmp_path / "script.py"], check=True,
            capture_output=True)
    wanted = [one for one in json.loads((folder / "result_rank0.json").read_text())["traceEvents"] if one["ph"] == "X"]
    text, places, _ = merged(folder)
    found = [one for one in places if one["process"] == "rank 0 | node0 | result_rank0.json"]
    assert sorted(one["slice"] for one in found) == sorted(one["name"] for one in wanted) and len(wanted) > 100
    assert sum(one["dur"] for one in found) == pytest.approx(sum(one["dur"] for one in wanted) * 1000, rel=1e-6)
    assert "1 trace drawn from the start" in text
