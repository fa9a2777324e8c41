"""Times of ranks on one axis: traps of joining traces, before the real Perfetto engine."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path

import numpy as np
import pytest

from distprof.merge.chrome.chrome_rank import ChromeRank
from distprof.merge.chrome.options import MergeOptions
from distprof.merge.chrome.rank_plan import RankPlan
from distprof.merge.chrome.rank_writer import write_rank
from distprof.merge.chrome.survey import survey_trace
from distprof.merge.clock.model import RankClock
from distprof.merge.scan.trace_file import TraceFile
from support.perfetto import ERRORS, PLACES, ask, rank_of
from support.rank_traces import files, merge, slice_of, text_of
from support.usual_merge import usual_merge

EPOCH_NS = 1_790_858_000_000_000_000
"""When everything here happens."""
GRID_NS = 7_889_238 * 10**9
"""Kineto counts from a multiple of this."""


def starts(answer, result: int = 1) -> dict[str, int]:
    return {row["slice"]: row["ts"] for row in answer.results[result]}


def test_ranks_may_count_from_different_times(tmp_path):
    """Perfetto does not read `baseTimeNanoseconds`; older files have none; it may stand behind the events."""
    base = EPOCH_NS // GRID_NS * GRID_NS
    later, since = base + GRID_NS, (EPOCH_NS - base) / 1000
    text = text_of({"traceEvents": [slice_of("d", since + 40, 5)], "baseTimeNanoseconds": str(base)})
    ranks = [
        {"baseTimeNanoseconds": base, "traceEvents": [slice_of("a", since + 10, 5)]},
        {"baseTimeNanoseconds": later, "traceEvents": [slice_of("b", (EPOCH_NS - later) / 1000 + 20, 5)]},
        {"traceEvents": [slice_of("c", EPOCH_NS // 1000 + 30, 5)]}, text]
    found = merge(tmp_path, *ranks)
    answer = ask(found.path, ERRORS, PLACES)
    at = starts(answer)
    assert answer.results[0] == [] and {name: at[name] - at["a"] for name in at} == {
        "a": 0, "b": 10_000, "c": 20_000, "d": 30_000}
    origin = found.whole["metadata"]["distprof"]["origin_ns"]
    assert origin + at["a"] == EPOCH_NS + 10_000
    usual_merge(files(tmp_path / "run"), tmp_path / "usual.json")
    usual = starts(ask(tmp_path / "usual.json", ERRORS, PLACES))
    assert usual["c"] - usual["a"] > 10 * 365 * 86_400 * 10**9


@pytest.mark.parametrize("base", ["null", '"x"', "1e400", "[1]", "-5.5", str(10**30)])
def test_a_base_that_is_no_time_is_none(tmp_path, base):
    """What other programs may write there does not stop the merge."""
    text = b'{"baseTimeNanoseconds": %s, "traceEvents": [%s]}' % (
        base.encode(), json.dumps(slice_of("a", 5, 1)).encode())
    assert [event["name"] for event in merge(tmp_path, text).of(0)] == ["a"]


def test_nanoseconds_survive_at_the_size_of_epoch_times(tmp_path):
    """A double of microseconds since 1970 has steps of 0.25 us; Kineto's own times just hold a nanosecond."""
    texts = {"4416093774864.001": 1, "4416093774864.002": 2, "4416093774865.123": 1123, "4416093774866": 2000,
             "4416093774867.5": 3500, "4.4160937748680001e12": 4000}
    events = [slice_of(text, text, "0.001") for text in texts]
    text = text_of(events).decode()
    for literal in (*texts, "0.001"):
        text = text.replace(f'": "{literal}",', f'": {literal},').replace(f'": "{literal}"}}', f'": {literal}}}')
    text = re.sub(r'"name": ([^,]*)', r'"name": "\1"', text)
    found = merge(tmp_path, text, text)
    answer = ask(found.path, ERRORS, PLACES)
    rows = [row for row in answer.results[1] if rank_of(row["process"]) == 1]
    assert {row["slice"]: row["ts"] - rows[0]["ts"] + 1 for row in rows} == texts
    assert all(row["dur"] == 1 for row in rows) and answer.results[0] == []
    assert max(event["ts"] for event in found.of(1)) < 100, "small numbers, which a double holds exactly"


def test_no_time_is_negative_and_what_lies_before_nests_as_it_did(tmp_path):
    """Perfetto drops events before 0; a counter or a forgotten event may lie days before the rest."""
    day = 86_400 * 10**6
    events = [
        slice_of("first", 2 * day, 100), *(slice_of(f"other {number}", 2 * day + 200 * number, 100) for number in (
            1, 2, 3, 4, 5)),
        slice_of("long ago", -5, 10), slice_of("zero", 0, 3), slice_of("into", 1, 2 * day + 50),
        slice_of("inside", 5, 2 * day)]
    late = [slice_of("late", 2 * day - 7, 1)]
    found = merge(tmp_path, events, late)
    answer = ask(found.path, ERRORS, PLACES)
    assert answer.results[0] == [] and len(answer.results[1]) == len(events) + len(late)
    at = starts(answer)
    assert min(at.values()) == 0 and at["late"] == 1000 and at["first"] == at["late"] + 7000
    assert [at[name] for name in ("long ago", "zero", "into", "inside")] == [0, 0, 0, 0]
    lasts = {row["slice"]: row["dur"] for row in answer.results[1]}
    assert lasts["zero"] == 0 and lasts["into"] == at["first"] + 51_000 and lasts["inside"] == at["first"] + 5000
    assert found.found.total("num_moved") == 4
    (tmp_path / "usual.json").write_bytes(text_of(events))
    usual = {row["name"] for row in ask(tmp_path / "usual.json", ERRORS).results[0]}
    assert "trace_sorter_negative_timestamp_dropped" in usual


def timed_events() -> list[dict]:
    """Every kind of event that has a time."""
    common = {"pid": 7, "tid": 7, "cat": "c", "name": "n"}
    return [
        slice_of("outer", 10, 100), slice_of("span", 9, 200, pid="Spans", tid="PyTorch Profiler"),
        *({**common, "ph": phase, "ts": ts, **more} for phase, ts, more in (
            ("s", 20, {"id": 1}), ("f", 30, {"id": 1, "bp": "e"}), ("b", 12, {"id": 2}), ("n", 13, {"id": 2}),
            ("e", 14, {"id": 2}), ("B", 15, {}), ("E", 16, {}), ("i", 17, {"s": "t"}), ("I", 18, {"s": "g"}),
            ("C", 19, {"args": {"v": 1}}), ("R", 21, {}), ("S", 22, {"id": 3}), ("F", 23, {"id": 3}),
            ("N", 24, {"id": "0x5"}), ("O", 25, {"id": "0x5"}), ("D", 26, {"id": "0x5"}), ("P", 27, {"id": "0x6"})))]


@pytest.mark.parametrize("clock", [
    RankClock(offset_ns=1_234_567_891), RankClock(offset_ns=-5_000_000_003),
    RankClock(offset_ns=77, drift_ppm=250_000.0, reference_ns=10_000)], ids=["ahead", "behind", "drifting"])
def test_a_clock_shifts_every_kind_of_event_alike(tmp_path, clock):
    """Whatever is not shifted with its slice loses it; of drift, start and end are moved, not the duration."""
    path, out = tmp_path / "rank0.json.gz", tmp_path / "member.gz"
    path.write_bytes(gzip.compress(text_of(timed_events())))
    trace = TraceFile(path=path)
    origin_ns = int(clock.to_common(9000)) - 1000
    counts = write_rank(RankPlan(
        trace=trace, rank=0, title="rank 0", survey=survey_trace(trace), clock=clock, origin_ns=origin_ns,
        tags={"rank": 0, "mp_size": 1, "dp_size": 1}, steps=(np.empty(0, np.int64),) * 3), [ChromeRank(out)])
    written = [event for event in json.loads(b"[" + gzip.decompress(out.read_bytes()) + b"]") if event["ph"] != "M"]
    assert counts.num_moved == 0 and len(written) == len(timed_events())
    for new, old in zip(written, timed_events(), strict=True):
        assert round(new["ts"] * 1000) == clock.shift(1000 * old["ts"]) - origin_ns, old
        if "dur" in old:
            end = clock.shift(1000 * (old["ts"] + old["dur"])) - origin_ns
            assert round((new["ts"] + new["dur"]) * 1000) == end


def test_what_was_synchronised_in_a_rank_stays_so(tmp_path):
    """GPU times have one offset a session; merging moves a launch and its kernel by the same amount."""
    gaps = {}
    ranks = [{"baseTimeNanoseconds": EPOCH_NS + rank, "traceEvents": [
        slice_of(f"launch {rank}", 100.001 + rank, 5), slice_of(f"kernel {rank}", 107.313 + 3 * rank, 5, pid=0, tid=7)]}
        for rank in range(3)]
    at = starts(ask(merge(tmp_path, *ranks).path, ERRORS, PLACES))
    for rank in range(3):
        gaps[rank] = at[f"kernel {rank}"] - at[f"launch {rank}"]
    assert gaps == {rank: 7312 + 2000 * rank for rank in range(3)}


def test_events_that_never_ended_stay_and_disturb_nobody(tmp_path):
    """They end with the trace, or much later; steps, sizes and lanes are those of the others."""
    day = 86_400 * 10**6
    events = [slice_of("never ended", 50, 30 * day, tid=1), slice_of("inside", 60, 5, tid=1),
              slice_of("before", 40, 15, tid=1), slice_of("nor this", 20, 9_000_000_000_000_000, tid=2),
              *(slice_of(f"ProfilerStep#{step}", 100 * step, 100, tid=3) for step in range(10))]
    found = merge(tmp_path, events)
    answer = ask(found.path, ERRORS, PLACES)
    assert answer.results[0] == [] and len(answer.results[1]) == len(events)
    lasts = {row["slice"]: row["dur"] for row in answer.results[1]}
    assert lasts["never ended"] == 30 * day * 1000
    assert found.found.total("num_side") == 1, "what begins in a slice and ends behind it stands beside"
    size = len(text_of(events))
    narrowed = merge(tmp_path, events, options=MergeOptions(max_bytes=size // 2))
    kept = {event["name"] for event in narrowed.of(0, "X") if event["name"].startswith("ProfilerStep")}
    assert 3 <= len(kept) <= 7, "half of the text is about half of the steps"


def test_a_run_of_traces_without_events_is_one(tmp_path: Path):
    """No time at all is no reason to fail."""
    found = merge(tmp_path, [], [slice_of("a", 5, 1)], {"traceEvents": [{"ph": "M", "name": "process_name", "pid": 1,
                  "args": {"name": "python"}}]})
    assert ask(found.path, ERRORS, PLACES).results[0] == [] and len(found.of(1)) == 1


def test_a_trace_may_last_for_days(tmp_path):
    hour = 3600 * 10**6
    found = merge(tmp_path, [slice_of(f"hour {number}", number * hour, 7) for number in range(100)],
                  [slice_of("other", 50 * hour, 1)])
    assert [round(event["ts"]) // hour for event in found.of(0, "X")] == list(range(100))
    assert {event["dur"] for event in found.of(0, "X")} == {7.0} and found.found.total("num_moved") == 0


def test_durations_below_0_are_said(tmp_path):
    found = merge(tmp_path, [slice_of("a", 10, -5), slice_of("b", 20, 5), slice_of("c", 30, -0.001)])
    assert [event["dur"] for event in found.of(0, "X")] == [0, 5, 0]
    assert found.found.total("num_negative") == 2 and found.found.total("num_without_duration") == 0
