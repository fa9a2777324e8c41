"""Lanes, ids and times of a merged trace on generated events and on real GPU traces."""

from __future__ import annotations

import gzip
import json
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distprof.errors import DataError
from distprof.merge.chrome.chrome_rank import ChromeRank
from distprof.merge.chrome.rank_events import RankCounts
from distprof.merge.chrome.rank_plan import RankPlan
from distprof.merge.chrome.rank_writer import write_rank
from distprof.merge.chrome.survey import survey_trace
from distprof.merge.clock.model import UNSHIFTED, RankClock
from distprof.merge.scan.trace_file import TraceFile
from support.jobs import ROOT
from support.perfetto import ERRORS, SLICES, THREADS, ask, rank_of

NO_STEPS = (np.empty(0, np.int64),) * 3
SHARED = ROOT.parent / "shared" / "traces"


def unpaired(path: Path) -> list[dict]:
    """Flow ends of a file that have no start in it."""
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    starts = {(event["id"], event["cat"]) for event in events if event["ph"] == "s"}
    return [event for event in events if event["ph"] == "f" and (event["id"], event["cat"]) not in starts]


def write_trace(path: Path, events: list[dict], **top: object) -> Path:
    path.write_bytes(gzip.compress(json.dumps({**top, "traceEvents": events}).encode()))
    return path


def member(path: Path, out: Path, *, rank: int = 3, origin_ns: int = 0, clock: RankClock = UNSHIFTED) -> RankCounts:
    """A rank's part of a merged trace."""
    trace = TraceFile(path=path)
    plan = RankPlan(trace=trace, rank=rank, title=f"rank {rank} | host", survey=survey_trace(trace), clock=clock,
                    origin_ns=origin_ns, tags={"rank": rank, "mp_size": 1, "dp_size": 1}, steps=NO_STEPS)
    return write_rank(plan, [ChromeRank(out)])


def rewritten(path: Path, tmp_path: Path, *, rank: int = 3, origin_ns: int = 0) -> list[dict]:
    out = tmp_path / "member.gz"
    member(path, out, rank=rank, origin_ns=origin_ns)
    return json.loads(b"[" + gzip.decompress(out.read_bytes()) + b"]")


def test_args_and_unknown_values_are_copied_verbatim(tmp_path):
    args = '{"Comms Id":9223372036854775807,"x":1.50,"s":"\\u00e9 \\"q\\"","nested":[{"a":1e3}]}'
    text = '{"traceEvents":[{"ph":"X","name":"a","pid":7,"tid":7,"ts":1.001,"dur":2,"args":' + args + "}]}"
    path = tmp_path / "t.json.gz"
    path.write_bytes(gzip.compress(text.encode()))
    out = tmp_path / "out.gz"
    member(path, out)
    assert args in gzip.decompress(out.read_bytes()).decode()


def test_gpu_and_cpu_are_processes_of_their_own_and_pseudo_processes_join_the_cpu(tmp_path):
    meta = [{"ph": "M", "name": "process_labels", "pid": pid, "tid": 0, "args": {"labels": label}}
            for pid, label in ((77, "CPU"), (0, "GPU 0"), (1, "GPU 1"))]
    events = [{"ph": "X", "name": "e", "pid": pid, "tid": tid, "ts": 1, "dur": 1}
              for pid, tid in ((77, 77), (0, 7), (-1, 0), ("Spans", "PyTorch Profiler"), (1, 7))]
    out = rewritten(write_trace(tmp_path / "t.json.gz", [*meta, *events]), tmp_path)
    names = {event["pid"]: event["args"]["name"] for event in out if event["name"] == "process_name"}
    assert sorted(names.values()) == ["rank 3 | host | cpu (pid 77)", "rank 3 | host | gpu 0", "rank 3 | host | gpu 1"]
    slices = [event for event in out if event["ph"] == "X"]
    assert slices[0]["pid"] == slices[2]["pid"] == slices[3]["pid"]
    assert len({(event["pid"], event["tid"]) for event in slices}) == 5
    assert all(isinstance(event["pid"], int) and event["pid"] > 0 and event["tid"] > 0 for event in slices)


def test_events_before_the_origin_are_moved_and_counted(tmp_path):
    path = write_trace(tmp_path / "t.json.gz", [{"ph": "X", "name": "e", "pid": 1, "tid": 1, "ts": 5, "dur": 1}])
    found = member(path, tmp_path / "o.gz", origin_ns=6000)
    assert found.num_moved == 1 and found.num_slices == 1
    assert json.loads(b"[" + gzip.decompress((tmp_path / "o.gz").read_bytes()) + b"]")[0]["ts"] == 0


BASE_NS = 1_790_857_026_000_000_000
NANOSECONDS = st.integers(0, 10**13)


@given(st.lists(st.tuples(NANOSECONDS, NANOSECONDS), min_size=1, max_size=20), st.floats(-1000, 1000),
       st.integers(-(10**15), 10**15), NANOSECONDS)
def test_slices_on_a_drifting_clock_begin_and_end_where_its_line_says(tmp_path_factory, slices, drift, offset, at):
    tmp_path = tmp_path_factory.mktemp("drift")
    clock = RankClock(offset_ns=offset, drift_ppm=drift, reference_ns=BASE_NS + at)
    origin_ns = clock.shift(BASE_NS)
    raw = [f'{{"ph":"X","name":"s","pid":1,"tid":{index},"ts":{begin // 1000}.{begin % 1000:03},'
           f'"dur":{held // 1000}.{held % 1000:03}}}' for index, (begin, held) in enumerate(slices)]
    path = tmp_path / "t.json"
    path.write_text(f'{{"baseTimeNanoseconds":{BASE_NS},"traceEvents":[{",".join(raw)}]}}')
    out = tmp_path / "member.gz"
    member(path, out, origin_ns=origin_ns, clock=clock)
    found = [event for event in json.loads(b"[" + gzip.decompress(out.read_bytes()) + b"]", parse_float=Decimal)
             if event["ph"] == "X"]
    for (begin, held), event in zip(slices, found, strict=True):
        start_ns = int(event["ts"] * 1000)
        assert start_ns == clock.shift(BASE_NS + begin) - origin_ns
        # a slice that lies in another one, however long they are, still does
        assert start_ns + int(event["dur"] * 1000) == clock.shift(BASE_NS + begin + held) - origin_ns


@pytest.mark.parametrize("content", [
    b"", b"<html>", b'{"a": 1}', b'{"traceEvents"', b"3"])
def test_a_damaged_trace_is_named(tmp_path, content):
    path = tmp_path / "t.json.gz"
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"t\.json\.gz"):
        member(path, tmp_path / "o.gz")


@pytest.mark.long
@pytest.mark.skipif(not SHARED.is_dir(), reason="needs the traces of ../shared")
def test_real_gpu_ranks_merge_without_errors(tmp_path):
    """Eight NCCL ranks of another program's job; only the parts are joined here, reading such folders comes later."""
    paths = sorted((SHARED / "dlrm8" / "kineto").glob("*.json.gz"))
    wanted, parts, left_out = {}, [], {}
    for rank, path in enumerate(paths):
        events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
        wanted[rank] = sum(event["ph"] == "X" for event in events)
        part = tmp_path / f"{rank}.gz"
        left_out[rank] = member(path, part, rank=rank, origin_ns=1_694_128_000_000_000_000).num_hanging
        parts.append(gzip.decompress(part.read_bytes()))
    whole = tmp_path / "whole.json.gz"
    whole.write_bytes(gzip.compress(b'{"traceEvents":[' + b",".join(parts) + b"]}"))
    answer = ask(whole, ERRORS, SLICES, THREADS)
    # these files hold ends of arrows whose start lies before the window
    assert left_out == {rank: len(unpaired(path)) for rank, path in enumerate(paths)} and sum(left_out.values()) > 0
    assert answer.import_errors == [] and answer.results[0] == []
    shown: dict[int, int] = {}
    for row in answer.results[1]:
        shown[rank_of(row["process"])] = shown.get(rank_of(row["process"]), 0) + row["n"]
    assert shown == wanted
    assert any(row["process"].endswith("gpu 3") for row in answer.results[2])
