"""What `distprof` alone shows of the folder it is called in, and which commands come next."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from msgspec.structs import replace

from distprof.contract import rank_json
from distprof.launch.job_end import finish
from distprof.launch.what_next import next_commands, what_next
from distprof.recording.run_directory import this_launch
from support.jobs import called
from support.rank_traces import slice_of, write_run

STARTED = this_launch(run_id="made", plan="", world_size=2, sizes={})


def run_in(folder: Path, name: str = "runs/a", **about: object) -> Path:
    """A run directory of two ranks; its run.json is as the launcher left it at the end."""
    run = write_run(folder / name, [slice_of("a", 0, 1)], [slice_of("b", 0, 1)])
    rank_json.write(run / "run.json", replace(STARTED, **{"end_ns": 1, "exit_code": 0, **about}))
    return run


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_a_merge_without_a_trace_is_not_viewed(tmp_path):
    merged = tmp_path / "merged"
    merged.mkdir()
    assert [line.split()[1] for line in next_commands(tmp_path)] == ["report", "comms", "stats"]
    (merged / "trace.json.gz").touch()
    assert [line.split()[1] for line in next_commands(tmp_path)] == ["report", "comms", "view"]


def test_an_empty_folder_has_the_first_commands():
    assert what_next(Path()) == [
        "distprof demo                               record a small job with a late rank, and find it",
        "distprof run --nproc-per-node 2 train.py    record your own script"]


@pytest.mark.parametrize(("about", "line"), [
    ({}, "distprof merge runs/a    2 ranks recorded, not merged"),
    ({"exit_code": 3}, "distprof comms runs/a    the job failed with exit code 3"),
    ({"end_ns": None, "exit_code": None}, "distprof merge runs/a    2 ranks recorded, not merged"),
])
def test_a_run_without_a_merge(tmp_path, about, line):
    run_in(tmp_path, **about)
    assert what_next(Path()) == [line]


@pytest.mark.parametrize(("suffix", "line"), [
    ("", "distprof merge runs/a    2 ranks recorded, not merged"),
    (".partial", "distprof comms runs/a    1 rank unfinished: still recording, or killed")])
def test_names_of_ranks_have_six_digits_from_100_000_on(tmp_path, capsys, suffix, line):
    run = run_in(tmp_path, end_ns=None, exit_code=None)
    (run / "rank00001").rename(run / f"rank100000{suffix}")
    assert what_next(Path()) == [line]
    finish(run, STARTED, 1, {}, merges=False)
    counts = "1 of 2 ranks recorded, 1 unfinished." if suffix else "2 of 2 ranks recorded."
    assert counts in capsys.readouterr().err


def test_a_job_that_records_still(tmp_path):
    run = run_in(tmp_path, end_ns=None, exit_code=None)
    (run / "rank00001").rename(run / "rank00001.partial")
    assert what_next(Path()) == ["distprof comms runs/a    1 rank unfinished: still recording, or killed"]


@pytest.mark.long
def test_a_merge_without_a_report_and_with_one(tmp_path):
    run = run_in(tmp_path)
    assert called("merge", run).returncode == 0
    others = ["distprof comms runs/a     which ranks wait for which ranks, and why",
              "distprof view runs/a      the timeline of all ranks, in your browser"]
    assert what_next(Path()) == ["distprof report runs/a    all findings on one page", *others]
    assert called("report", run).returncode == 0
    assert what_next(Path()) == ["distprof report runs/a    report: runs/a/merged/report.html", *others]
    os.utime(run / "rank00000" / "rank.json", ns=(2**62, 2**62))
    assert what_next(Path()) == ["distprof merge --force runs/a    the merge is older than the recording"]


@pytest.mark.long
def test_of_older_runs_there_is_one_line(tmp_path):
    for number in range(3):
        run = run_in(tmp_path, f"run{number}", start_ns=number)
        assert called("merge", run).returncode == 0
    assert [line.split()[1:3] for line in what_next(Path())] == [
        ["report", "run2"], ["comms", "run2"], ["view", "run2"], ["report", "run1"], ["report", "run0"]]


def test_the_newest_runs_come_first_and_what_is_no_run_is_left_out(tmp_path):
    for number in range(5):
        run_in(tmp_path, f"{'runs/' if number % 2 else ''}run {number}", start_ns=number)
    (tmp_path / "runs" / "other").mkdir()
    (tmp_path / "runs" / "other" / "run.json").write_text("{}")
    (tmp_path / "none").mkdir()
    rank_json.write(tmp_path / "none" / "run.json", STARTED)
    assert [line.split("    ")[0].strip() for line in what_next(Path())] == [
        "distprof merge 'run 4'", "distprof merge 'runs/run 3'", "distprof merge 'run 2'"]


def test_in_a_run_directory_it_is_the_run(tmp_path, monkeypatch):
    monkeypatch.chdir(run_in(tmp_path))
    assert what_next(Path()) == ["distprof merge .    2 ranks recorded, not merged"]


def test_distprof_alone_shows_the_help_and_this(tmp_path):
    run_in(tmp_path)
    done = called()
    assert done.returncode == 0 and not done.stderr
    assert "Commands:\n" in done.stdout and "_DISTPROF_COMPLETE=bash_source" in done.stdout
    assert done.stdout.endswith("\nNext in this folder:\n  distprof merge runs/a    2 ranks recorded, not merged\n")
    assert "Next in this folder" not in called("--help").stdout

