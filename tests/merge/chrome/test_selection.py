"""What of a run is merged: ranks, steps, a window, categories, durations, a size; and what is said of the rest."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distprof.merge.chrome.options import NumberRanges
from distprof.merge.chrome.step_selection import by_importance, within_budget
from support.jobs import distprof
from support.perfetto import ERRORS, FLOWS, ask
from support.rank_traces import slice_of, write_run


def step(number: int, start: float, dur: float) -> dict:
    return slice_of(f"ProfilerStep#{number}", start, dur, cat="user_annotation")


def rank_events(rank: int) -> list[dict]:
    """Three steps; the second is longer on rank 2."""
    longer = 100.0 if rank == 2 else 0.0
    starts = [0.0, 100.0, 200.0 + longer, 300.0 + longer]
    events = []
    for number in range(3):
        start, end = starts[number], starts[number + 1]
        events += [step(number, start, end - start), slice_of(f"op {number}", start + 10, 50, cat="cpu_op"),
                   slice_of(f"frame {number}", start + 20, 20, cat="python_function"),
                   slice_of(f"kernel {number}", start + 30, 4, pid=0, cat="kernel"),
                   {"ph": "s", "id": number, "name": "ac2g", "cat": "ac2g", "pid": 7, "tid": 7, "ts": start + 11},
                   {"ph": "f", "id": number, "name": "ac2g", "cat": "ac2g", "pid": 0, "tid": 7, "ts": start + 30,
                    "bp": "e"}]
    return events


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path / "run", *map(rank_events, range(4)))


def kept(run: Path, *flags: str) -> tuple[str, dict[int, set[str]], int]:
    """Output of the merge, names of the slices of each rank, and arrows; Perfetto has no complaint."""
    done = distprof("merge", run, "--force", *flags)
    assert done.returncode == 0, done.stderr
    path = run / "merged" / "trace.json.gz"
    names: dict[int, set[str]] = {}
    for event in json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]:
        if event["ph"] == "X":
            names.setdefault(event["pid"] // 16384, set()).add(event["name"])
    answer = ask(path, ERRORS, FLOWS)
    assert answer.results[0] == [] and answer.import_errors == []
    return done.stdout, names, len(answer.results[1])


ALL = {f"{what} {number}" for what in ("op", "frame", "kernel") for number in range(3)} | {
    f"ProfilerStep#{number}" for number in range(3)}


def test_everything_is_merged_without_flags(run):
    told, names, arrows = kept(run)
    assert names == dict.fromkeys(range(4), ALL) and arrows == 12 and "dropped" not in told


def test_ranks(run):
    told, names, arrows = kept(run, "--ranks", "1-2,0")
    assert set(names) == {0, 1, 2} and arrows == 9 and "3 of 4 ranks" in told
    done = distprof("merge", run, "--force", "--ranks", "7-9")
    assert done.returncode == 2 and "ranks with a timeline: 0-3" in done.stderr


def test_a_name_tells_two_merges_apart(run):
    kept(run, "--name", "baseline")
    answer = ask(run / "merged" / "trace.json.gz", "select distinct name from process where name is not null")
    names = {row["name"].rpartition(" | ")[0] for row in answer.results[0]}
    assert names == {f"rank {rank} | baseline | host7" for rank in range(4)}
    done = distprof("merge", run, "--force", "--format", "perfetto-tar", "--name", "b")
    assert done.returncode == 2 and "--name needs --format chrome, not perfetto-tar" in done.stderr


def test_steps(run):
    told, names, arrows = kept(run, "--steps", "1")
    inside = {"ProfilerStep#1", "op 1", "frame 1", "kernel 1"}
    assert all(inside <= mine <= inside | {"ProfilerStep#0", "ProfilerStep#2"} for mine in names.values())
    assert arrows == 4 and "events dropped" in told
    done = distprof("merge", run, "--force", "--steps", "9")
    assert done.returncode == 2 and "its steps are 0" in done.stderr.replace("0-2", "0"), done.stderr


def test_a_window(run):
    _, names, arrows = kept(run, "--window", "105us:150us")
    assert all({"op 1", "kernel 1", "frame 1"} <= mine and not mine & {"op 0", "op 2"} for mine in names.values())
    assert arrows == 4


@pytest.mark.long
def test_categories(run):
    _, names, arrows = kept(run, "--categories", "kernel, cpu_op")
    assert all(mine == {name for name in ALL if name[0] in "ko"} for mine in names.values()) and arrows == 12
    assert kept(run, "--categories", "kernel")[2] == 0, "arrows whose other end was left out go too"


@pytest.mark.long
def test_python_functions_and_short_slices(run):
    told, names, arrows = kept(run, "--no-python-functions")
    assert all(mine == {name for name in ALL if not name.startswith("frame")} for mine in names.values())
    assert arrows == 12 and "12 events dropped" in told
    _, names, arrows = kept(run, "--min-duration", "5us")
    assert all(mine == {name for name in ALL if not name.startswith("kernel")} for mine in names.values())
    assert arrows == 0


@pytest.mark.long
def test_names(run):
    told, names, arrows = kept(run, "--keep", "op *", "--keep", "kernel [0-9]", "--drop", "* 1")
    assert all(mine == {"op 0", "op 2", "kernel 0", "kernel 2"} for mine in names.values())
    assert arrows == 8 and "events dropped" in told
    _, names, arrows = kept(run, "--drop", "kernel*")
    assert all(mine == {name for name in ALL if not name.startswith("kernel")} for mine in names.values())
    assert arrows == 0
    told, names, _ = kept(run, "--keep", "KERNEL*")
    assert not any(names.values()), "as it is written"


@pytest.mark.long
def test_a_size_keeps_what_tells_most(run):
    size = sum(len(gzip.decompress(path.read_bytes())) for path in run.glob("rank*/trace.json.gz"))
    told, names, _ = kept(run, "--max-size", f"{size * 3 // 4 + 100}")
    assert set(names) == {1, 2, 3} and "dropped ranks 0;" in told
    assert all(words in told for words in ("2 (slowest)", "1 (median)", "3 (fastest)"))
    told, names, _ = kept(run, "--max-size", f"{size // 8}")
    assert set(names) <= set(range(4)) and 2 in names and "ProfilerStep#1" in names[2], told
    assert "only these steps" in told and "1 (longest)" in told
    done = distprof("merge", run, "--force", "--max-size", "100")
    assert done.returncode == 2 and "too small for even one step of a rank" in done.stderr
    summary = json.loads((run / "merged" / "summary.json").read_text())
    assert summary["ranks"] == [0, 1, 2, 3], "tables are of all ranks"


def test_what_was_left_out_is_in_the_trace(run):
    kept(run, "--max-size", "5kB")
    whole = json.loads(gzip.decompress((run / "merged" / "trace.json.gz").read_bytes()))
    assert any("dropped ranks" in line for line in whole["metadata"]["distprof"]["left_out"])


@pytest.mark.parametrize(("flags", "words"), [
    (["--ranks", "3-1"], "numbers and ranges"), (["--ranks", "a"], "numbers and ranges"), (["--steps", ""], "numbers"),
    (["--window", "5"], "a start and an end"), (["--window", "2s:1s"], "must end after its start"),
    (["--window", "x:1s"], "duration"),
    (["--min-duration", "-5us"], "a duration"), (["--max-size", "0"], "a size"), (["--max-size", "1XB"], "a size")])
def test_flags_that_make_no_sense_are_one_line(run, flags, words):
    done = distprof("merge", run, *flags)
    assert done.returncode == 2 and words in done.stderr and "hint:" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 5)), min_size=1, max_size=5))
def test_spans_hold_what_they_say(parts):
    spans = NumberRanges.of(",".join(f"{first}-{first + more}" for first, more in parts), "--ranks")
    assert {number for number in range(70) if number in spans} == {
        number for first, more in parts for number in range(first, first + more + 1)}


@given(slowness=st.dictionaries(st.integers(0, 30), st.integers(0, 5), min_size=1, max_size=10),
       size=st.integers(1, 100), steps=st.integers(0, 6), most=st.integers(0, 700))
def test_a_choice_fits_and_takes_the_slowest_first(slowness, size, steps, most):
    sizes = dict.fromkeys(slowness, size)
    shares = {rank: [(number, 1 / steps) for number in range(steps)] for rank in slowness}
    choice = within_budget(sizes, by_importance(slowness, None), shares, most)
    per_rank = size if choice.steps is None else size * len(choice.steps) / max(steps, 1)
    assert len(choice.ranks) * per_rank <= most + 1e-6
    assert set(choice.ranks) | set(choice.left_out) == set(slowness) and not set(choice.ranks) & set(choice.left_out)
    if choice.ranks and len(set(slowness.values())) > 1:
        assert max(slowness.values()) == max(slowness[rank] for rank in choice.ranks)


def test_the_late_rank_comes_second():
    order = by_importance({0: 5.0, 1: 1.0, 2: 3.0, 3: 2.0}, 3)
    assert list(order.items()) == [(0, "slowest"), (3, "most often late"), (1, "fastest"), (2, "fits")]
