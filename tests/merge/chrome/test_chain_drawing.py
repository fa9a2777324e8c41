"""Longest chains in the merged trace: what is drawn of known ones, and of a real job before the real Perfetto."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise

import numpy as np
import polars as pl
import pytest

from distprof.merge.chrome.drawing.chains import THREAD, draw_chains, links_of_devices, links_of_ranks
from distprof.merge.chrome.drawing.collectives import DrawOptions
from distprof.merge.chrome.drawing.drawn import DrawnSlice
from distprof.merge.critical.critical_path import SCHEMA
from distprof.merge.critical.device.path import SCHEMA as OF_DEVICES
from distprof.merge.layout.event_selection import Windows
from support.drawn_rows import MS, collective, frame
from support.jobs import called, distprof
from support.made_up_traces import folder, op
from support.perfetto import ERRORS, ask, rank_of

MOST = 0.8
"""Part of what is measured that a busy machine leaves alone."""

SLICES = f"""select slice.ts as ts, slice.dur as dur, process.name as process, slice.name as name,
             extract_arg(slice.arg_set_id, 'args.step') as step
             from slice join thread_track on slice.track_id = thread_track.id join thread using (utid)
             join process using (upid) where thread.name = '{THREAD}' order by slice.ts, slice.dur"""
ARROWS = f"""select so.ts as source_ts, so.dur as source_dur, po.name as source, si.ts as ts, pi.name as target
             from flow join slice so on flow.slice_out = so.id join slice si on flow.slice_in = si.id
             join thread_track tto on so.track_id = tto.id join thread tho on tto.utid = tho.utid
             join process po on tho.upid = po.upid join thread_track tti on si.track_id = tti.id
             join thread thi on tti.utid = thi.utid join process pi on thi.upid = pi.upid
             where tho.name = '{THREAD}' and thi.name = '{THREAD}'"""
BOTH = {rank: DrawOptions() for rank in range(2)}


def links(*rows: tuple[object, ...]) -> pl.DataFrame:
    """Of (step, rank, kind, start in ms, end in ms, phase, module, collective)."""
    return pl.DataFrame([(step, rank, kind, start * MS, end * MS, phase, module, None, call)
                         for step, rank, kind, start, end, phase, module, call in rows], SCHEMA, orient="row")


def drawn(*rows: tuple[object, ...], wanted: dict[int, DrawOptions] = BOTH, first_number: int = 0):
    calls = frame(collective(3, {0: (1.0, 9.0), 1: (2.0, 9.0)}))
    return draw_chains(links_of_ranks(links(*rows), calls), wanted, 0, first_number)


def test_pieces_that_follow_each_other_are_one_and_an_arrow_leads_to_the_next_rank():
    found = drawn((7, 1, "work", 0, 2, "forward", "layers.1", None), (7, 1, "work", 2, 4, "forward", "layers.1", None),
                  (7, 1, "starting", 4, 5, None, None, 3), (7, 0, "moving", 5, 9, None, None, 3),
                  (7, 0, "work", 9, 10, "forward", "", None), first_number=40)
    assert [one.slice for one in found[1]] == [DrawnSlice("layers.1 forward", 0, 4 * MS),
                                               DrawnSlice("all_reduce #3 starting", 4 * MS, 5 * MS)]
    assert [one.slice.name for one in found[0]] == ["all_reduce #3 moving", "model forward"]
    (start,), (end,) = found[1][1].arrows, found[0][0].arrows
    assert (start.phase, end.phase, start.number == end.number >= 40) == ("s", "f", True)
    assert start.at_ns < 5 * MS <= end.at_ns < 9 * MS
    assert found[0][1].arrows == () == found[1][0].arrows


def test_steps_do_not_overlap_and_no_arrow_joins_them():
    found = drawn((7, 0, "work", 0, 10, "forward", "a", None), (8, 1, "work", 6, 14, "forward", "b", None))
    assert [one.slice for one in found[1]] == [DrawnSlice("b forward", 10 * MS, 14 * MS)]
    assert not any(one.arrows for mine in found.values() for one in mine)


@pytest.mark.parametrize("wanted", [
    {1: DrawOptions()}, {0: DrawOptions(min_duration_ns=3 * MS), 1: DrawOptions()},
    {0: DrawOptions(windows_ns=Windows([(0, 4 * MS)])), 1: DrawOptions()}])
def test_what_is_left_out_takes_its_arrows_along(wanted):
    found = drawn((7, 1, "work", 0, 5, "forward", "a", None), (7, 0, "work", 5, 7, "forward", "b", None), wanted=wanted)
    assert list(found) == [1] and found[1][0].arrows == ()


@pytest.mark.job
def test_perfetto_shows_chains_without_gaps_and_arrows_where_they_change_ranks(two_late_ranks, tmp_path):
    done = distprof("merge", "--critical-path", "--out", tmp_path / "out", two_late_ranks)
    assert done.returncode == 0, done.stderr
    answer = ask(tmp_path / "out" / "trace.json.gz", ERRORS, SLICES, ARROWS)
    assert answer.import_errors == [] and answer.results[0] == []
    slices, arrows = answer.results[1:]
    steps = sorted({int(row["step"]) for row in slices})
    assert len(steps) > 3
    pairs = [pair for step in steps for pair in pairwise(row for row in slices if int(row["step"]) == step)]
    gaps = [abs(one["ts"] + one["dur"] - other["ts"]) for one, other in pairs]
    assert np.quantile(gaps, MOST) <= 10 * MS, "but for clocks, and ranks that are late to wake up"
    assert 0 < len(arrows) <= sum(one["process"] != other["process"] for one, other in pairs)
    late = [abs(row["source_ts"] + row["source_dur"] - row["ts"]) for row in arrows]
    assert np.quantile(late, MOST) <= 10 * MS, "likewise"
    assert all(rank_of(row["source"]) != rank_of(row["target"]) for row in arrows)


def test_the_path_through_a_device_is_drawn_without_gaps(tmp_path):
    """Slices of each step are as long as its path in `critical-path`."""
    (tmp_path / "traces").mkdir()
    run = folder(tmp_path / "traces", [
        *(op(f"ProfilerStep#{step}", 4000 * step, 4000, cat="user_annotation") for step in range(3)),
        *(op("cudaLaunchKernel", 1000 * call + 10, 8, cat="cuda_runtime", correlation=call + 1) for call in range(12)),
        *(op("gemm", 1000 * call + 30, 500 if call == 6 else 1000, tid=7, cat="kernel", correlation=call + 1)
          for call in range(12))])
    found = json.loads(called("critical-path", "--json", run).stdout)
    done = called("merge", "--critical-path", "--out", tmp_path / "out", run)
    assert done.returncode == 0, done.stderr
    answer = ask(tmp_path / "out" / "trace.json.gz", ERRORS, SLICES, ARROWS)
    assert answer.import_errors == [] and answer.results[0] == [] and answer.results[2] == []
    slices = answer.results[1]
    assert [one["ts"] + one["dur"] for one in slices[:-1]] == [one["ts"] for one in slices[1:]]
    of_steps = Counter[int]()
    for one in slices:
        of_steps[int(one["step"])] += one["dur"]
    assert of_steps == {one["step"]: one["end_ns"] - one["start_ns"] for one in found["steps"]}
    assert {one["name"] for one in slices} >= {"gemm", "latency"}


def test_two_devices_of_a_rank_have_a_thread_each_and_no_arrow():
    rows = [(0, device, 3, kind, start * MS, end * MS, "forward", "a", "gemm", "7")
            for device in ("0", "1") for kind, start, end in (("host", 0, 2), ("kernels", 2, 5), ("unshown", 5, 6))]
    found = draw_chains(links_of_devices(pl.DataFrame(rows, OF_DEVICES, orient="row")), BOTH, 0, 0)
    assert [(one.thread, one.slice.name) for one in found[0]] == [
        (f"critical path, device {device}", name) for device in "01"
        for name in ("host: a forward", "gemm", "not shown")]
    assert not any(one.arrows for one in found[0])


@pytest.mark.job
def test_a_merge_of_what_has_no_chain_says_so(alone, tmp_path):
    failed = distprof("merge", "--critical-path", "--out", tmp_path / "out", alone)
    assert failed.returncode == 1 and not (tmp_path / "out").exists()
    assert "no collectives with known times" in failed.stderr and "hint:" in failed.stderr


@pytest.mark.job
def test_files_that_are_packed_as_they_are_take_no_chain(two_late_ranks, tmp_path):
    failed = distprof("merge", "--critical-path", "--format", "perfetto-tar", "--out", tmp_path / "out", two_late_ranks)
    assert failed.returncode == 2 and "--critical-path needs --format chrome" in failed.stderr
