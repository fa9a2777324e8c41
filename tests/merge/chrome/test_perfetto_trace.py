"""`merge --format perfetto` and `chrome-zstd` against the Chrome trace of the same merge, in the real Perfetto."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distprof.merge.chrome.fuchsia_records import FuchsiaRecords
from distprof.merge.chrome.options import MergeOptions
from distprof.merge.writing.merge import merge
from support import perfetto
from support.kineto_files import DLRM, needs_shared
from support.rank_traces import slice_of

TRACES = DLRM.parent

SLICES = """select process.name as process, process.pid as pid, thread.name as thread, thread.tid as tid,
            slice.name as slice, slice.ts as ts, slice.dur as dur, slice.depth as depth from slice
            join thread_track on slice.track_id = thread_track.id join thread using (utid) join process using (upid)
            where slice.name not glob 'Iteration Start*' and slice.name not glob 'Record Window End*'"""
"""Without marks of the whole trace, which are on a thread in a format that knows no others."""
ARROWS = """select so.name as source, so.ts as from_ts, si.name as target, si.ts as to_ts
            from flow join slice so on flow.slice_out = so.id join slice si on flow.slice_in = si.id"""
COUNTERS = """select count(*) as n, sum(value) as sum, max(ts) as last from counter
              join counter_track on counter.track_id = counter_track.id group by name"""


def merged(folder: Path, *traces: Path, form: str, **options: Any) -> Path:
    out = folder / form
    merge(*traces, options=MergeOptions(format=form, **options), out=out)
    return next(out.glob("trace.*"))


def rows(answer: list[dict]) -> list[tuple]:
    return sorted(tuple(row.values()) for row in answer)


def same(chrome: Path, other: Path) -> None:
    wanted, found = (perfetto.ask(path, perfetto.ERRORS, SLICES, ARROWS, COUNTERS) for path in (chrome, other))
    assert found.import_errors == [] and found.results[0] == wanted.results[0] == []
    for one, two in zip(wanted.results[1:], found.results[1:], strict=True):
        assert [str(row) for row in rows(one)] == [str(row) for row in rows(two)]
    assert len(wanted.results[1])


@needs_shared
@pytest.mark.parametrize("name", ["dlrm8/kineto", pytest.param("gpu/mi300_resnet_act_checkpoint.json.gz",
                                                               marks=pytest.mark.stress),
                                  pytest.param("gpu/a100_negative_queue.json.gz", marks=pytest.mark.stress)])
def test_real_traces_are_in_perfetto_what_they_are_as_json(tmp_path, name):
    chrome, other = (merged(tmp_path, TRACES / name, form=form, collectives=True, queues=True)
                     for form in ("chrome", "perfetto"))
    same(chrome, other)
    assert other.stat().st_size < chrome.stat().st_size


TIMES = st.integers(0, 12)
EVENTS = st.lists(st.one_of(
    st.builds(lambda ts, dur, tid: slice_of(f"x{ts}+{dur}", ts, dur, tid=tid), TIMES, st.integers(0, 6),
              st.sampled_from([1, 2])),
    st.builds(lambda ts, tid: {"ph": "C", "name": "held", "pid": 7, "tid": tid, "ts": ts, "args": {"bytes": ts * tid}},
              TIMES, st.sampled_from([1, 2])),
), min_size=1, max_size=14)
ARROW_ENDS = st.lists(st.tuples(TIMES, TIMES, st.integers(0, 3), st.integers(1, 2)), max_size=4)


@given(events=EVENTS, arrows=ARROW_ENDS)
@settings(max_examples=40)
def test_slices_that_begin_and_end_together_nest_as_in_json(tmp_path_factory, events, arrows):
    folder = tmp_path_factory.mktemp("ties")
    ends = [{"ph": phase, "id": number, "cat": "c", "name": "a", "pid": 7, "tid": tid, "ts": ts, "bp": "e"}
            for first, last, number, tid in arrows for phase, ts in (("s", min(first, last)), ("f", max(first, last)))]
    (folder / "rank0.json").write_text(json.dumps({"traceEvents": [slice_of("around", 0, 30), *events, *ends]}))
    same(*(merged(folder, folder / "rank0.json", form=form) for form in ("chrome", "perfetto")))


def test_slices_of_two_events_and_asynchronous_ones(tmp_path):
    begins = [{"ph": "B", "name": name, "pid": 7, "tid": 1, "ts": 1} for name in "ab"]
    ends = [{"ph": "E", "pid": 7, "tid": 1, "ts": ts} for ts in (3, 5)]
    events = [*begins, *ends, slice_of("c", 3, 2, tid=1),
              *({"ph": phase, "cat": "k", "name": "lives", "id": 9, "pid": 7, "tid": 1, "ts": ts}
                for phase, ts in (("b", 2), ("e", 4)))]
    (tmp_path / "rank0.json").write_text(json.dumps({"traceEvents": events}))
    chrome, other = (merged(tmp_path, tmp_path / "rank0.json", form=form) for form in ("chrome", "perfetto"))
    same(chrome, other)
    lives = "select name, dur from slice where name = 'lives'"
    assert perfetto.ask(other, lives).results == perfetto.ask(chrome, lives).results == [[{"name": "lives",
                                                                                          "dur": 2000}]]


def test_every_kind_of_argument_is_kept(tmp_path):
    args = {"int": -3, "big": 2**64 - 1, "beyond": 2**70, "real": 0.5, "yes": True, "none": None, "text": "\u00e9\"",
            "long": "y" * 300, "dims": [[4, 5], []], "": "no key", "x" * 300: 7}
    (tmp_path / "rank0.json").write_text(json.dumps({"traceEvents": [
        slice_of("few", 1, 5, args=args), slice_of("many", 10, 5, args={f"a{n}": n for n in range(30)}),
        slice_of("huge", 20, 5, args={"stack": "z" * 50_000, "after": 1})]}))
    trace = merged(tmp_path, tmp_path / "rank0.json", form="perfetto")
    answer = perfetto.ask(trace, perfetto.ERRORS, "select slice.name as slice, args.key as key, args.display_value as "
                                                  "value from slice join args using (arg_set_id)")
    assert answer.import_errors == answer.results[0] == []
    found: dict[str, dict[str, str]] = {"few": {}, "many": {}, "huge": {}}
    for row in answer.results[1]:
        found[row["slice"]][row["key"]] = row["value"]
    few, many, huge = found.values()
    assert few["int"] == "-3" and few["beyond"] == str(2**70) and few["dims"] == "[[4,5],[]]" and few["real"] == "0.5"
    assert few["text"] == "\u00e9\"" and few["long"] == "y" * 300 and few["yes"] == "true" and few["x" * 300] == "7"
    assert int(few["big"]) % 2**64 == 2**64 - 1  # Perfetto has no unsigned numbers
    assert [many[f"a{n}"] for n in range(14)] == [str(n) for n in range(14)]
    assert json.loads(many["more"]) == {f"a{n}": n for n in range(14, 30)}
    assert huge["stack"].startswith("z" * 20_000) and huge["stack"].endswith("...") and huge["after"] == "1"


def test_more_texts_and_threads_than_have_numbers(tmp_path):
    slices = [slice_of(f"{n} of many", n, 1, tid=n % 400 + 1, cat=f"c{n % 7}") for n in range(70_000)]
    records = FuchsiaRecords(1)
    for first in range(0, len(slices), 10_000):
        records.add(b",".join(json.dumps(one).encode() for one in slices[first:first + 10_000]))
    trace = tmp_path / "trace.fxt"
    trace.write_bytes(bytes.fromhex("1000044678541600") + b"".join(records.records()))
    [[found], [threads]] = perfetto.ask(trace, "select count(distinct name) as n, sum(dur) as d from slice",
                                        "select count(distinct utid) as n from thread_track").results
    assert found == {"n": 70_000, "d": 70_000_000} and threads == {"n": 400}


@needs_shared
def test_zstd_has_the_same_text(tmp_path):
    chrome, zstd = (merged(tmp_path, TRACES / "dlrm8/kineto", form=form) for form in ("chrome", "chrome-zstd"))
    text = pyarrow.CompressedInputStream(pyarrow.OSFile(str(zstd)), "zstd").read()
    assert text == gzip.decompress(chrome.read_bytes()) and zstd.stat().st_size < chrome.stat().st_size


@needs_shared
@pytest.mark.stress
def test_perfetto_loads_it_in_half_the_time(tmp_path):
    empty = tmp_path / "empty.json"
    empty.write_text("[]")
    traces = [empty, *(merged(tmp_path, TRACES / "gpu/a100_negative_queue.json.gz", form=form)
                       for form in ("chrome", "perfetto"))]
    reset, chrome, other = (min(perfetto.load_seconds(trace) for _ in range(6)) for trace in traces)
    assert other - reset <= 0.55 * (chrome - reset)  # measured: 0.4 to 0.5
