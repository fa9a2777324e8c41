"""Places in a trace: times as Perfetto sees them, of ranks, steps and late ranks; what is not there is one line."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distprof.errors import DataError, UsageError
from distprof.launch.view.merged_trace import MergedTrace, merged_trace, text_bytes, trace_metadata
from distprof.launch.view.place import Place, Wanted
from distprof.launch.view.steps import TracedSteps
from distprof.launch.view.view import place_of
from distprof.merge.chrome.options import MergeOptions, NumberRanges
from distprof.merge.writing.merge import merge
from support import perfetto
from support.rank_traces import slice_of, write_run

STEP_US, LATE_US = 1000, 400
NAME = "it's a [Mlp]"
"""Of a module, with what SQL would take for the end of a text."""


def events(rank: int) -> list[dict]:
    """Three steps; in each, rank 1 spends longer in a module, longest in step 2."""
    found = []
    for number in range(1, 4):
        start = 5000 + number * STEP_US + 10 * rank
        took = LATE_US + (100 if number == 2 else 0) if rank == 1 else 50
        found += [slice_of(f"ProfilerStep#{number}", start, STEP_US - 20, cat="user_annotation"),
                  slice_of(NAME, start + 100, took, cat="user_annotation"),
                  slice_of("aten::mm", start + 110, 5, cat="cpu_op")]
    return found


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = write_run(tmp_path_factory.mktemp("run") / "run", events(0), events(1))
    merge(found)
    return found


def trace_of(run: Path) -> MergedTrace:
    return merged_trace(run, lambda _: pytest.fail("it is merged"))


def place(run: Path, **wanted: int) -> Place:
    return place_of(trace_of(run), Wanted(**wanted))


def with_culprits(run: Path, out: Path, *culprits: dict) -> Path:
    """The run with late ranks as a merge notes them."""
    shutil.copytree(run, out)
    file = out / "merged" / "summary.json"
    summary = json.loads(file.read_text())
    summary["communication"] = {"steps": [1, 2, 3], "pipeline": None, "waiting_ratio": 0.1, "moving_ratio": 0.1,
                                "blind": None, "culprits": list(culprits)}
    file.write_text(json.dumps(summary))
    return out


def culprit(rank: int = 1, **changed: object) -> dict:
    cause = {"kind": "forward", "where": "it's a", "gain_ns": 4e5, "spent": 4.5e5, "of_peers": 5e4}
    return {"rank": rank, "delayed": [0, 1], "step_ns": 1e6, "gain_ns": 4e5, "last_gain_ns": 4e5, "gain_error_ns": 1e4,
            "p_value": 0.001, "num_peers": 3, "excess_ns": [4e5] * 3, "late_steps": [1, 2, 3],
            "causes": [cause]} | changed


def asked(run: Path, sql: str) -> list[dict]:
    return perfetto.ask(run / "merged" / "trace.json.gz", sql).results[0]


def test_without_a_wish_nothing_is_read(run, monkeypatch):
    monkeypatch.setattr("distprof.launch.view.places.trace_metadata", lambda _: pytest.fail("not needed"))
    assert place(run) == Place()


def test_a_step_is_where_perfetto_has_it(run):
    found = place(run, step=2)
    assert found.span_ns is not None and found.title == "step 2" and found.selected_ns is None
    (row,) = asked(run, "select min(ts) as start, max(ts + dur) as stop from slice where name = 'ProfilerStep#2'")
    margin = (row["stop"] - row["start"]) // 20
    assert found.span_ns == (pytest.approx(row["start"] - margin, abs=2), pytest.approx(row["stop"] + margin, abs=2))
    ((title, sql),) = found.marked
    assert (title, asked(run, sql)) == (
        "step 2", [{"ts": row["start"], "dur": row["stop"] - row["start"], "name": "step 2"}])


def test_the_step_of_a_rank_is_selected_on_it(run):
    found = place(run, step=2, rank=1)
    assert found.ranks == (1,) and found.title == "rank 1, step 2" and found.selected_ns is not None
    start, end = found.selected_ns
    rows = asked(run, "select process.name as process, slice.name as name from slice join thread_track "
                      "on slice.track_id = thread_track.id join thread using (utid) join process using (upid) "
                      f"where ts = {start} and dur = {end - start}")
    assert [(row["process"].split(" |")[0], row["name"]) for row in rows] == [("rank 1", "ProfilerStep#2")]


def focused(shown: tuple[int, int], selected: tuple[int, int], trace: tuple[int, int]) -> tuple[float, float]:
    """What Perfetto 52 shows once a slice is selected, as `focusHorizontalRange` has it."""
    length, middle, width = selected[1] - selected[0], sum(selected) / 2, shown[1] - shown[0]
    start = min(max(middle - width / 2, trace[0]), trace[1] - width)
    if 2 * length > width or start == shown[0]:
        return max(middle - 2.5 * length, trace[0]), min(middle + 2.5 * length, trace[1])
    return start, start + width


@given(length=st.integers(100, 10**9), before=st.floats(0, 4), behind=st.floats(0, 4))
def test_a_selected_step_stays_as_large_as_it_was_asked_for(length, before, behind):
    step = (round(before * length), round(before * length) + length)
    trace = (0, step[1] + round(behind * length))
    steps = TracedSteps(events=pl.LazyFrame(), rows=pl.DataFrame(), ranks=[], span_ns=trace)
    asked = steps.around_selected(step)
    assert trace[0] <= asked[0] <= asked[1] <= trace[1]
    shown = focused(asked, step, trace)
    assert shown[0] <= step[0] and step[1] <= shown[1] and shown[1] - shown[0] < 2.3 * length


def test_a_rank_is_unfolded_and_gone_to(run):
    found = place(run, rank=1)
    assert (found.ranks, found.span_ns, found.marked) == ((1,), None, ())
    assert found.selected_ns == place(run, rank=1, step=1).selected_ns


def test_a_place_never_leaves_the_trace(run):
    (row,) = asked(run, "select min(ts) as start, max(ts + dur) as stop from slice")
    for number in (1, 2, 3):
        for wanted in ({}, {"rank": 0}):
            start, end = place(run, step=number, **wanted).span_ns
            assert row["start"] <= start < end <= row["stop"]


@pytest.mark.parametrize(("wanted", "message"), [
    ({"rank": 7}, "the merge has no rank 7"),
    ({"step": 9}, "the timeline has no step 9  hint: its steps are 1-3;"),
    ({"rank": 1, "step": 9}, "the timeline has no step 9  hint: its steps are 1-3;"),
    ({"rank": 7, "step": 1}, "the merge has no rank 7")])
def test_what_is_not_in_the_trace_is_one_line(run, wanted, message):
    with pytest.raises(UsageError, match=message):
        place(run, **wanted)


def test_a_finding_is_where_the_late_rank_loses_most(run, tmp_path):
    late = with_culprits(run, tmp_path / "late", culprit())
    found = place(late, finding=1)
    assert found.title == "finding 1: rank 1, step 2" and found.ranks == (1,)
    assert found.sentences[0].startswith("Rank 1 delays every step by 400 us (40.0 %): `it's a` forward takes 450 us")
    assert found.sentences[-1] == f"Shown: {NAME} in step 2 of rank 1"
    (longest,) = asked(late, "select ts, dur from slice where name glob 'it*' order by dur desc limit 1")
    assert found.selected_ns == (longest["ts"], longest["ts"] + longest["dur"])
    assert found.span_ns == place(late, step=2).span_ns
    ((title, sql),) = found.marked
    assert title == f"finding 1: {NAME} of rank 1"
    rows = asked(late, sql)
    assert [row["dur"] for row in rows] == [400_000, 500_000, 400_000] and {row["name"] for row in rows} == {NAME}


def test_a_finding_without_slices_of_its_own_is_a_step(run, tmp_path):
    cause = {"kind": "host", "where": None, "gain_ns": 4e5, "spent": 4.5e5, "of_peers": 5e4}
    found = place(with_culprits(run, tmp_path / "late", culprit(late_steps=[3, 5, 7], causes=[cause])), finding=1)
    assert found.title == "finding 1: rank 1, step 3" and found.selected_ns == place(run, rank=1, step=3).selected_ns


def test_a_finding_of_steps_without_a_timeline_is_the_rank(run, tmp_path):
    found = place(with_culprits(run, tmp_path / "late", culprit(late_steps=[5, 6, 7])), finding=1)
    assert (found.title, found.span_ns, found.ranks) == ("finding 1: rank 1", None, (1,))


def test_findings_are_counted_as_comms_names_them(run, tmp_path):
    late = with_culprits(run, tmp_path / "late", culprit(0, p_value=0.5), culprit())
    assert place(late, finding=1).ranks == (1,)
    with pytest.raises(UsageError, match="--finding must be from 1 to 1, not 2"):
        place(late, finding=2)


def test_without_a_late_rank_it_is_said_why(run, tmp_path):
    with pytest.raises(DataError, match="no late rank for --finding: no communication was recorded"):
        place(run, finding=1)
    late = with_culprits(run, tmp_path / "late", culprit(p_value=0.5))
    with pytest.raises(DataError, match=r"--finding: No straggler: the slowest rank may be late by chance"):
        place(late, finding=1)


def test_a_rank_that_was_left_out_of_the_merge_is_said(run, tmp_path):
    late = with_culprits(run, tmp_path / "late", culprit(7))
    with pytest.raises(DataError, match=r"rank 7, of finding 1, is not in .*"):
        place(late, finding=1)


@pytest.mark.parametrize("text", ["{}", "[]", "", "[" * 100_000, '{"communication": {"culprits": [{}]}}'])
def test_a_summary_that_is_damaged_is_one_line(run, tmp_path, text):
    broken = with_culprits(run, tmp_path / "broken")
    (broken / "merged" / "summary.json").write_text(text)
    with pytest.raises(DataError, match="was written by another version of distprof"):
        place(broken, finding=1)


@pytest.mark.parametrize("key", ["ranks", "missing_ranks", "step"])
def test_a_summary_of_another_version_is_one_line(run, tmp_path, key):
    broken = with_culprits(run, tmp_path / "broken", culprit(p_value=0.5))
    file = broken / "merged" / "summary.json"
    file.write_text(json.dumps({name: value for name, value in json.loads(file.read_text()).items() if name != key}))
    with pytest.raises(DataError, match="was written by another version of distprof"):
        place(broken, finding=1)


@pytest.mark.parametrize(("damage", "message"), [
    (lambda merged: shutil.rmtree(merged / "events.parquet"),
     "no events.parquet in .*, which --rank, --step and --finding need"),
    (lambda merged: (merged / "events.parquet" / "rank00000.parquet").write_bytes(b"PAR1"),
     "cannot read the tables beside"),
    (lambda merged: (merged / "trace.json.gz").write_bytes(gzip.compress(b'{"traceEvents": []}')),
     "does not end like a trace from distprof merge"),
    (lambda merged: (merged / "trace.json.gz").write_bytes(b""), "does not end like a trace from distprof merge")])
def test_a_damaged_merge_is_one_line(run, tmp_path, damage, message):
    broken = tmp_path / "broken"
    shutil.copytree(run, broken)
    damage(broken / "merged")
    with pytest.raises(DataError, match=message) as failed:
        place(broken, step=1)
    assert len(str(failed.value).splitlines()) == 1 and "hint: " in str(failed.value)


def test_an_archive_has_no_places(run, tmp_path):
    merge(run, out=tmp_path / "tar", options=MergeOptions(format="perfetto-tar"))
    assert place(tmp_path / "tar") == Place()
    with pytest.raises(DataError, match="--rank, --step and --finding need a Chrome trace"):
        place(tmp_path / "tar", rank=0)


def test_what_a_merge_says_of_itself_is_found_behind_any_number_of_ranks(run, tmp_path):
    merge(run, out=tmp_path / "one", options=MergeOptions(ranks=NumberRanges.of("1", "--ranks")))
    assert set(trace_metadata(tmp_path / "one" / "trace.json.gz")["ranks"]) == {"1"}
    trace = run / "merged" / "trace.json.gz"
    assert set(trace_metadata(trace)["ranks"]) == {"0", "1"}
    large = tmp_path / "large.json.gz"  # what only looks like the beginning of a member
    last = trace.read_bytes().rindex(b"\x1f\x8b\x08")
    large.write_bytes(b"\x1f\x8b\x08\x00\x00\x00\x00\x00" * 30_000 + trace.read_bytes()[last:])
    assert trace_metadata(large) == trace_metadata(trace)


@pytest.mark.long
def test_the_text_of_a_trace_is_measured_and_of_a_large_one_estimated(run, tmp_path, monkeypatch):
    trace = run / "merged" / "trace.json.gz"
    assert text_bytes(trace) == len(gzip.decompress(trace.read_bytes()))
    many = tmp_path / "many.json.gz"
    line = b"".join(b'{"name": "op %d", "ts": %d}\n' % (number % 97, number * 7919 % 1000003)
                    for number in range(200_000))
    many.write_bytes(gzip.compress(line, 1) * 10)
    monkeypatch.setattr("distprof.launch.view.merged_trace.SAMPLE_BYTES", many.stat().st_size // 4)
    assert text_bytes(many) == pytest.approx(10 * len(line), rel=0.1)
    many.write_bytes(many.read_bytes()[:1000])
    assert text_bytes(many) == 0  # damaged: Perfetto says how
