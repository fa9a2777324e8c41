"""The merged Chrome trace before the real Perfetto engine."""

from __future__ import annotations

import gzip
import json
import shutil
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import polars as pl
import pytest

from distprof.contract.problems import TraceDamaged
from distprof.merge.chrome.merged_trace import merge_traces
from distprof.merge.chrome.options import MergeOptions
from distprof.merge.chrome.rank_surveys import RankSurveys
from distprof.merge.clock.choose import recorded_clock
from distprof.merge.run.open_run import open_run
from distprof.merge.scan.engine import PLAIN, is_compiled
from support.jobs import distprof
from support.perfetto import ERRORS, FLOWS, SLICES, THREADS, ask, rank_of
from support.usual_merge import usual_merge


def rank_traces(run: Path) -> list[Path]:
    return sorted(run.glob("rank?????/trace.json.gz"))


@lru_cache(maxsize=5)
def recorded(path: Path) -> dict:
    """A trace; nobody changes it."""
    return json.loads(gzip.decompress(path.read_bytes()))


def merged_events(run: Path) -> list[dict]:
    return recorded(run / "merged" / "trace.json.gz")["traceEvents"]


def thread_names(events: list[dict]) -> dict[tuple[int, int], str]:
    return {(event["pid"], event["tid"]): event["args"]["name"] for event in events
            if event["ph"] == "M" and event["name"] == "thread_name"}


@pytest.fixture(scope="module", params=["ddp", "tp"])
def run(request, recordings) -> Iterator[Path]:
    yield request.getfixturevalue(request.param)
    recorded.cache_clear()


@pytest.fixture(scope="module")
def answer(run):
    return ask(run / "merged" / "trace.json.gz", ERRORS, SLICES, THREADS, FLOWS)


def test_perfetto_imports_it_without_any_error(answer):
    assert answer.import_errors == []
    assert answer.results[0] == []


@pytest.mark.core
def test_every_slice_that_a_rank_recorded_is_there(run, answer):
    shown = {rank_of(row["process"]): row["n"] for row in answer.results[1]}
    wanted = {rank: sum(event["ph"] == "X" for event in recorded(path)["traceEvents"])
              for rank, path in enumerate(rank_traces(run))}
    drawn = Counter(event["pid"] // 16384 for event in merged_events(run)
                    if event["ph"] == "X" and event["cat"] == "distprof")
    assert {rank: count - wanted[rank] for rank, count in shown.items()} == drawn, "and what the merge draws"
    assert min(wanted.values()) > 1000


def test_steps_are_drawn_on_a_track_of_each_rank(run):
    whole = recorded(run / "merged" / "trace.json.gz")
    origin = whole["metadata"]["distprof"]["origin_ns"]
    table = pl.read_parquet(run / "merged" / "steps.parquet").filter(pl.col("pass") == "trace")
    wanted = {(row["rank"], f"step {row['step']}", max(row["start_ns"] - origin, 0), row["end_ns"] - origin)
              for row in table.to_dicts()}
    names = thread_names(whole["traceEvents"])
    drawn = [event for event in whole["traceEvents"] if event.get("cat") == "distprof" and event["ph"] == "X"
             and names[event["pid"], event["tid"]] == "steps"]
    assert {(event["pid"] // 16384, event["name"], round(event["ts"] * 1000),
             round((event["ts"] + event["dur"]) * 1000)) for event in drawn} == wanted and len(wanted) >= 8


def test_only_arrows_that_the_merge_draws_join_two_ranks(run, answer):
    flows = answer.results[3]
    ours = sum(event["ph"] == "s" and event["cat"] == "distprof" for event in merged_events(run))
    assert sum(row["source"] != row["target"] for row in flows) == ours
    starts = sum(event["ph"] == "s" for path in rank_traces(run) for event in recorded(path)["traceEvents"])
    assert len(flows) == starts + ours and starts > 100


def test_names_are_kept_and_say_rank_place_and_host(run, answer):
    threads = answer.results[2]
    for rank, path in enumerate(rank_traces(run)):
        mine = [row for row in threads if row["process"] and rank_of(row["process"]) == rank]
        assert {row["process"] for row in mine} and all("dp" in row["process"] for row in mine)
        raw = {event["args"]["name"] for event in recorded(path)["traceEvents"]
               if event["ph"] == "M" and event["name"] == "thread_name"}
        shown = {row["thread"] for row in mine}
        assert "pt_gloo_runloop" in str(shown) or "pt_gloo_runloop" not in str(raw)  # torch 2.8 gives no such names
        # Kineto names some threads twice; every thread still has one of its names
        assert {name.split(" (")[0] for name in raw} <= {str(name).split(" (")[0] for name in shown}


def test_pids_and_tids_are_small_numbers_of_one_rank(answer):
    threads = answer.results[2]
    assert len({row["tid"] for row in threads}) == len(threads)
    main = [row for row in threads if row["tid"] == row["pid"]]
    assert [row["thread"].split(" (")[0] for row in main] == [
        f"thread {row['process'].split('pid ')[1].rstrip(')')}" for row in main] and len(main) == 4
    assert all(0 < row["pid"] < 2**31 and 0 < row["tid"] < 2**31 for row in threads)


def test_events_pass_through_untouched_but_for_numbers(run):
    events = recorded(run / "merged" / "trace.json.gz")["traceEvents"]
    touched = ("pid", "tid", "ts", "id", "s")
    for rank, path in enumerate(rank_traces(run)):
        mine = [event for event in events if event["pid"] // 16384 == rank and event["ph"] != "M"
                and event.get("cat") != "distprof"]
        raw = [event for event in recorded(path)["traceEvents"] if event["ph"] != "M"]
        keep = [[{key: value for key, value in event.items() if key not in touched} for event in some]
                for some in (raw, mine)]
        assert keep[0] == keep[1]


def test_times_are_on_one_clock_and_keep_nanoseconds(run):
    whole = recorded(run / "merged" / "trace.json.gz")
    origin = whole["metadata"]["distprof"]["origin_ns"]
    assert min(event["ts"] for event in whole["traceEvents"] if "ts" in event) >= 0
    for rank, path in enumerate(rank_traces(run)):
        trace = recorded(path)
        mine = [event for event in whole["traceEvents"] if event["pid"] // 16384 == rank and event["ph"] == "X"
                and event["cat"] != "distprof"]
        raw = [event for event in trace["traceEvents"] if event["ph"] == "X"]
        for new, old in zip(mine[::97], raw[::97], strict=True):
            absolute = trace["baseTimeNanoseconds"] + round(old["ts"] * 1000)
            assert abs(origin + round(new["ts"] * 1000) - absolute) <= 1


def test_metadata_of_every_rank_is_kept(run):
    whole = recorded(run / "merged" / "trace.json.gz")
    about = whole["metadata"]["distprof"]
    assert sorted(about["ranks"], key=int) == ["0", "1", "2", "3"]
    for rank, path in enumerate(rank_traces(run)):
        one = about["ranks"][str(rank)]
        assert one["mp_size"] * one["dp_size"] == 4
        assert one["kineto"]["distributedInfo"] == recorded(path)["distributedInfo"]
        assert one["num_slices"] == sum(event["ph"] == "X" for event in recorded(path)["traceEvents"])


def test_each_rank_is_a_gzip_member(run):
    assert (run / "merged" / "trace.json.gz").read_bytes().count(b"\x1f\x8b\x08") >= 4 + 2
    assert merged_events(run)


def test_a_damaged_rank_is_named_and_the_others_are_merged(run, tmp_path):
    broken = Path(shutil.copytree(run, tmp_path / "run"))
    (broken / "rank00002" / "trace.json.gz").write_bytes(b"")
    opened, options, out = open_run(broken), MergeOptions(), fresh(tmp_path / "out")
    with RankSurveys(opened, options) as reading:
        readings = reading.read()
        found = merge_traces(opened, recorded_clock(opened), readings.ranks, reading, out, options)
    assert [one.rank for one in found.counts] == [0, 1, 3] and not found.problems and not opened.problems
    (problem,) = readings.problems
    assert isinstance(problem, TraceDamaged) and (problem.rank, problem.what) == (2, "all")
    assert "empty file" in problem.detail
    done = distprof("merge", "--force", "--strict", broken)
    assert done.returncode == 3 and "rank 2 is left out: " in done.stderr
    for rank in (0, 1, 3):
        (broken / f"rank{rank:05d}" / "trace.json.gz").write_bytes(b"")
    done = distprof("merge", "--force", broken)
    assert done.returncode == 0 and "no rank has a readable timeline" in done.stdout
    assert not (broken / "merged" / "trace.json.gz").exists()


def fresh(path: Path) -> Path:
    path.mkdir()
    return path


def test_both_engines_write_the_same(tp, tmp_path):
    """Without a C compiler events and tables are as they are with one, by processes instead of threads."""
    outs = [tmp_path / name for name in ("compiled", "plain")]
    for out, environ in zip(outs, ({}, {PLAIN: "1"}), strict=True):
        done = distprof("merge", tp, "--ranks", "0", "--out", out, **environ)
        assert done.returncode == 0, done.stderr
        assert ("merge engine: plain Python" in done.stderr) == (bool(environ) or not is_compiled())
    traces = [json.loads(gzip.decompress((out / "trace.json.gz").read_bytes())) for out in outs]
    assert traces[0] == traces[1]
    tables = [pl.read_parquet(out / "events.parquet" / "*.parquet") for out in outs]
    assert tables[0].equals(tables[1]) and len(tables[0]) > 2000


def test_the_usual_script_fails_the_same_checks(tp, tmp_path):
    output = tmp_path / "usual.json"
    usual_merge(rank_traces(tp), output)
    bad = ask(output, ERRORS, FLOWS, THREADS)
    crossing = [row for row in bad.results[1] if row["source"] != row["target"]]
    assert crossing, "arrows join slices of different ranks"
    assert Counter(row["name"] for row in bad.results[0])["flow_duplicate_id"]
    assert not any("pt_gloo_runloop" in str(row["thread"]) for row in bad.results[2])
