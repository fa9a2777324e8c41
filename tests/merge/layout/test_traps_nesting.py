"""Slices that overlap, lack an end, or are written as two events: traps of joining traces, before the real Perfetto."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distprof.merge.chrome.options import MergeOptions
from support.perfetto import ERRORS, PLACES, ask, rank_of
from support.rank_traces import files, merge, slice_of
from support.usual_merge import usual_merge

DEPTHS = "select name, ts, dur, depth from slice"


def begin(name: str | None, ts: float, phase: str = "B", **more: object) -> dict:
    return {"ph": phase, "ts": ts, "pid": 7, "tid": 7, **({"name": name} if name else {}), **more}


def end(ts: float, name: str | None = None, phase: str = "E", **more: object) -> dict:
    return begin(name, ts, phase, **more)


def lasts(answer, result: int = 1) -> Counter:
    return Counter((row["slice"], row["ts"], row["dur"]) for row in answer.results[result])


def test_a_child_that_sticks_out_by_rounding_is_cut(tmp_path):
    """Torch writes gpu_user_annotation a nanosecond longer at either end; others round to microseconds."""
    events = [slice_of("parent", 10, 10), slice_of("child", 12, 8.001), slice_of("grandchild", 13, 7.001),
              slice_of("next", 30, 10.002), slice_of("behind", 40.001, 5), slice_of("short", 45, 0.9),
              slice_of("last", 45.8, 20)]
    found = merge(tmp_path, events)
    answer = ask(found.path, ERRORS, DEPTHS)
    rows = {row["name"]: row for row in answer.results[1]}
    assert answer.results[0] == [] and found.found.total("num_side") == 0
    assert [(rows[name]["depth"], rows[name]["dur"]) for name in ("parent", "child", "grandchild")] == [
        (0, 10_000), (1, 8000), (2, 7000)]
    # of two neighbours the part that is less is cut, whichever's it is
    assert [rows[name]["dur"] for name in ("next", "behind", "short", "last")] == [10_001, 4999, 800, 20_000]
    assert found.found.total("num_cut") == 5
    assert all(rows[name]["depth"] == 0 for name in ("next", "behind", "short", "last"))


def test_slices_that_overlap_are_all_seen(tmp_path):
    """Of frames around ProfilerStep, and of NCCL kernels on one stream, Perfetto drops the later one."""
    def overlapping(rank: int) -> list[dict]:
        kernels = [slice_of(f"ncclDevKernel {number}", 100 + 10 * number, 35, pid=0, tid=7, cat="kernel")
                   for number in range(20)]
        return [slice_of("ProfilerStep#1", 0, 100), slice_of("enter", 90 + rank, 20, cat="python_function"),
                slice_of("inside", 95, 5), slice_of("ProfilerStep#2", 105, 100), *kernels]

    found = merge(tmp_path, *map(overlapping, range(2)))
    answer = ask(found.path, ERRORS, PLACES)
    assert answer.results[0] == []
    wanted = Counter((rank, event["name"], event["dur"] * 1000) for rank in range(2) for event in overlapping(rank))
    assert Counter((rank_of(row["process"]), row["slice"], row["dur"]) for row in answer.results[1]) == wanted
    lanes = Counter(row["thread"] for row in answer.results[1] if "ncclDevKernel" in row["slice"])
    assert lanes == {"thread 7": 10, "thread 7 (overlapping)": 10, "thread 7 (overlapping 2)": 10,
                     "thread 7 (overlapping 3)": 10}
    assert found.found.total("num_side") == 2 + 2 * 15
    told = found.whole["metadata"]["distprof"]["ranks"]["0"]
    assert told["num_overlapping_slices"] == 16 and told["num_cut_slices"] == 0
    usual_merge(files(tmp_path / "run"), tmp_path / "usual.json")
    usual = ask(tmp_path / "usual.json", ERRORS).results[0]
    assert [row["name"] for row in usual] == ["slice_drop_overlapping_complete_event"] and usual[0]["value"] >= 30


def test_more_overlapping_slices_than_lanes_are_cut_and_counted(tmp_path):
    """A hundred slices at once have no hundred lanes."""
    events = [slice_of(f"s{number}", 10 * number, 2000) for number in range(100)]
    found = merge(tmp_path, events)
    answer = ask(found.path, ERRORS, PLACES)
    assert answer.results[0] == [] and len(answer.results[1]) == 100
    assert found.found.total("num_side") == 99 and found.found.total("num_cut") == 100 - 16
    assert len({row["tid"] for row in answer.results[1]}) == 16


def test_a_slice_without_a_duration_has_none(tmp_path):
    """Perfetto takes no X without a duration, and drops one that lasts less than nothing."""
    events = [{key: value for key, value in slice_of("without", 10, 0).items() if key != "dur"},
              slice_of("null", 20, None), slice_of("negative", 30, -5), slice_of("text", 40, "long"),
              slice_of("a", 9, 90)]
    found = merge(tmp_path, events)
    answer = ask(found.path, ERRORS, PLACES)
    assert answer.results[0] == [] and found.found.total("num_without_duration") == 3
    assert {row["slice"]: row["dur"] for row in answer.results[1]} == {
        "without": 0, "null": 0, "negative": 0, "text": 0, "a": 90_000}
    assert found.found.total("num_bad_times") == 0


def test_begins_and_ends_keep_their_slices(tmp_path):
    """Writers of B and E: nested, with and without names, empty, one never ended, an end too many, on two threads."""
    events = [begin("a", 10), begin("b", 20), end(30), end(40), begin("empty", 50), end(50, "empty"), end(60),
              begin("c", 70), begin("d", 75), end(80, "c"), end(90, "d"), begin("x", 15, tid=8), end(95, tid=8),
              begin("open", 200)]
    found = merge(tmp_path, events, events)
    answer = ask(found.path, ERRORS, PLACES)
    assert answer.results[0] == []
    assert lasts(answer) == Counter(2 * [
        ("a", 1000, 30_000), ("b", 11_000, 10_000), ("empty", 41_000, 1), ("c", 61_000, 10_000), ("d", 66_000, 15_000),
        ("x", 6000, 80_000), ("open", 191_000, -1)])
    assert found.found.total("num_side") == 2, "c and d cross"
    assert found.found.num_slices == 14 and len(found.of(0, "BE")) == len(events)


def test_begins_and_ends_beside_slices_that_they_cross_are_moved(tmp_path):
    """Perfetto ends a begun slice with the slice around it, and says it lost data."""
    events = [slice_of("x", 10, 10), begin("crossing", 15), slice_of("in it", 22, 2), end(30), slice_of("after", 40, 5),
              begin("starts with a slice", 50), slice_of("the slice", 50, 5), end(60),
              begin("never ended", 72), slice_of("around", 70, 10), slice_of("later", 90, 5)]
    raw = tmp_path / "usual.json"
    found = merge(tmp_path, events)
    answer = ask(found.path, ERRORS, PLACES)
    assert answer.results[0] == []
    assert lasts(answer) == Counter([
        ("x", 1000, 10_000), ("crossing", 6000, 15_000), ("in it", 13_000, 2000), ("after", 31_000, 5000),
        ("starts with a slice", 41_000, 10_000), ("the slice", 41_000, 5000), ("never ended", 63_000, -1),
        ("around", 61_000, 10_000), ("later", 81_000, 5000)])
    usual_merge(files(tmp_path / "run"), raw)
    assert [row["name"] for row in ask(raw, ERRORS).results[0]] == ["misplaced_end_event"]


def test_an_end_that_sticks_out_by_rounding_is_moved(tmp_path):
    """As with slices that have a duration."""
    found = merge(tmp_path, [slice_of("x", 10, 10), begin("b", 15), end(20.5), slice_of("y", 30, 5)])
    answer = ask(found.path, ERRORS, PLACES)
    assert answer.results[0] == [] and lasts(answer)["b", 6000, 5000] == 1 and found.found.total("num_cut") == 1


@pytest.mark.parametrize("options", [
    {"window_ns": (45_000, 70_000)}, {"min_duration_ns": 11_000}, {"categories": frozenset(["kept"])},
    {"keep": ("l*g", "with?n")}, {"drop": ("early", "async*", "late")}],
    ids=lambda options: next(iter(options)))
def test_begins_and_ends_are_left_out_together(tmp_path, options):
    """An end alone would end another slice."""
    events = [begin("long", 10, cat="kept"), begin("early", 20, cat="other"), end(30), begin("within", 60, cat="kept"),
              end(75), end(200), *(begin(f"async {number}", ts, "b", id=number, cat="other") for number, ts in (
                  (1, 15), (2, 60))),
              *(end(ts, f"async {number}", "e", id=number, cat="other") for number, ts in ((1, 20), (2, 62))),
              slice_of("late", 300, 1, cat="other")]
    found = merge(tmp_path, events, options=MergeOptions(**options))
    answer = ask(found.path, ERRORS, PLACES, DEPTHS)
    kept = {row["name"]: row["dur"] for row in answer.results[2]}
    wanted = {"long": 190_000, "within": 15_000} | ({"async 2": 2000} if "window_ns" in options else {})
    assert answer.results[0] == [] and kept == wanted
    assert found.found.total("num_left_out") == len(events) - 2 * len(wanted)


slices = st.lists(st.tuples(st.integers(0, 5_000), st.one_of(st.integers(0, 3_000), st.integers(0, 60_000)),
                            st.sampled_from(["X", "X", "B"])), min_size=1, max_size=25)


@pytest.mark.long
@settings(max_examples=25)
@given(found=slices)
def test_no_order_of_slices_is_an_error(tmp_path_factory, found):
    """Whatever slices a thread has, all are seen, none loses more than a microsecond, and Perfetto has no complaint."""
    events = []
    for number, (start, duration, phase) in enumerate(found):
        name, at, until = f"s{number}", start / 1000, (start + duration) / 1000
        events += [slice_of(name, at, duration / 1000)] if phase == "X" else [begin(name, at), end(until, name)]
    merged = merge(tmp_path_factory.mktemp("order"), events)
    answer = ask(merged.path, ERRORS, PLACES)
    assert answer.results[0] == []
    shown = {row["slice"]: row["dur"] for row in answer.results[1]}
    assert shown.keys() == {f"s{number}" for number in range(len(found))}
    cut = [number for number, (_, duration, _) in enumerate(found) if shown[f"s{number}"] != duration]
    assert len(cut) <= merged.found.total("num_cut")
    if len({row["tid"] for row in answer.results[1]}) < 16:
        assert all(-1 <= found[number][1] - shown[f"s{number}"] <= 1000 for number in cut)
