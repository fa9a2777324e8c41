"""Times in nanoseconds, against the same trace in microseconds."""

from __future__ import annotations

import gzip
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distprof.merge.scan.repair import LATEST_US, in_microseconds, is_in_ns
from support.jobs import distprof
from support.rank_traces import slice_of

EVENTS = st.lists(st.fixed_dictionaries({
    "ts": st.integers(0, 2 * 10**18), "dur": st.integers(0, 10**10), "name": st.text(max_size=4),
    "args": st.dictionaries(st.sampled_from(["a", "External id"]), st.integers(0, 9), max_size=2)}), max_size=20)


@given(events=EVENTS, size=st.integers(1, 300))
def test_every_time_is_a_thousandth_wherever_the_text_is_cut(events, size):
    text = json.dumps({"traceEvents": events}).encode()
    pieces = (text[at:at + size] for at in range(0, len(text), size))
    found = json.loads(b"".join(in_microseconds(pieces)), parse_float=str)
    wanted = [{**event, **{key: f"{event[key] // 1000}.{event[key] % 1000:03d}" for key in ("ts", "dur")}}
              for event in events]
    assert found == {"traceEvents": wanted}


@pytest.mark.parametrize(("times", "said"), [
    ((), False), ((0,), False), ((LATEST_US, 0, LATEST_US + 5), True), ((LATEST_US, LATEST_US - 1), False),
    ((1_700_000_000_000_000,), False)])
def test_only_times_that_can_be_nothing_else_are_nanoseconds(times, said):
    assert is_in_ns(json.dumps([{"ph": "X", "ts": time} for time in times]).encode()) is said


def test_a_merge_of_both_units_has_one_clock(tmp_path):
    begin = 1_700_000_000_000_000
    for rank, event in enumerate((slice_of("a", begin + 10, 4), slice_of("b", 1000 * begin + 12_500, 4000))):
        (tmp_path / f"rank{rank}.json").write_text(json.dumps({"traceEvents": [event]}))
    done = distprof("merge", tmp_path, "--out", tmp_path / "out")
    assert "times of 1 trace are read as nanoseconds, not microseconds (rank1.json)" in done.stdout
    events = json.loads(gzip.decompress((tmp_path / "out" / "trace.json.gz").read_bytes()))["traceEvents"]
    a, b = (next(event for event in events if event["name"] == name) for name in "ab")
    assert b["ts"] - a["ts"] == pytest.approx(2.5) and a["dur"] == b["dur"] == 4


def test_a_unit_that_is_told_is_believed(tmp_path):
    """Short times: those of a trace that counts from its own start can be of either unit."""
    (tmp_path / "rank0.json").write_text(json.dumps({"traceEvents": [
        {**slice_of("aten::mm", 1_000_000.5, 5000), "cat": "cpu_op"},
        {**slice_of("aten::add", 2_000_000, 500), "cat": "cpu_op"}]}))
    totals = {}
    for unit in ("us", "ns"):
        done = distprof("ops", tmp_path, "--json", "--time-unit", unit)
        totals[unit] = {row["op"]: row["self_host_ns"] for row in json.loads(done.stdout)["ops"]}
    assert totals == {"us": {"aten::mm": 5_000_000, "aten::add": 500_000}, "ns": {"aten::mm": 5000, "aten::add": 500}}
    done = distprof("merge", tmp_path, "--time-unit", "ns", "--out", tmp_path / "out")
    assert "times of 1 trace are read as nanoseconds, not microseconds (rank0.json)" in done.stdout
    events = json.loads(gzip.decompress((tmp_path / "out" / "trace.json.gz").read_bytes()))["traceEvents"]
    first, second = (next(event for event in events if event["name"] == name) for name in ("aten::mm", "aten::add"))
    assert second["ts"] - first["ts"] == pytest.approx(1000) and second["dur"] == 0.5
