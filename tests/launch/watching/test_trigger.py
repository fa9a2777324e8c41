"""`distprof trigger` on jobs that run: real ranks, real requests."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from distprof.contract import rank_json
from distprof.contract.rank_json import RankJson
from distprof.contract.run_json import RunJson
from distprof.contract.watch_state import WatchFinding, window_folder
from distprof.launch.watching.rank_folders import latest_step
from distprof.launch.watching.window_causes import explained
from support import forked
from support.jobs import SCRIPTS, called, clean_environ

PLAN = "wait=1,count=0,time=2,trace=2,arrivals=0"
PATIENCE_S = 300
SCRIPT = SCRIPTS / "triggered.py"


@contextmanager
def job(folder: Path, *, num_steps: int = 100_000, seconds: float = 0.02, slow_from: int = 1 << 30,
        **environ: str) -> Iterator[tuple[Path, subprocess.Popen]]:
    """Two ranks that run until they are told to stop, seen once both note their steps."""
    run = folder / "run"
    with forked.popen([sys.executable, "-m", "distprof", "run", "--no-merge", "--out", str(run), "--nproc-per-node",
                       "2", "--steps", PLAN, str(SCRIPT), str(num_steps), str(seconds), str(slow_from)],
                      stderr=subprocess.PIPE, text=True,
                      env=clean_environ() | {"NOTED": str(folder)} | environ) as ranks:
        try:
            until = time.monotonic() + PATIENCE_S
            while not run.is_dir() or latest_step(run) is None:
                assert ranks.poll() is None and time.monotonic() < until, ranks.communicate()
                time.sleep(0.1)
            yield run, ranks
        finally:
            (folder / "stop").touch()
            ranks.communicate(timeout=PATIENCE_S)


def triggered(*words: object) -> dict:
    done = called("trigger", "--json", *words)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def of_rank(folder: Path, rank: int, name: str) -> pl.DataFrame:
    return pl.read_parquet(folder / f"rank{rank:05d}" / f"{name}.parquet")


@pytest.mark.core
@pytest.mark.job
def test_all_ranks_record_the_same_steps_of_a_running_job(tmp_path):
    with job(tmp_path, slow_from=0) as (run, ranks):
        first = triggered(run)
        second = triggered(run, "--steps", "trace=2,time=2")
        assert ranks.poll() is None
        text = called("trigger", run, "--steps", "trace=2").stdout
    assert (first["number"], first["written"], first["complete"]) == (1, [0, 1], True)
    assert second["number"] == 2 and second["first_step"] > first["first_step"] + 22
    assert "2 of 2 ranks recorded steps" in text and f"distprof findings {window_folder(run, 3)}" in text
    for found in (first, second):
        folder = Path(found["run"])
        assert rank_json.read(folder / "run.json", RunJson).first_step == found["first_step"]
        ends_ns = [json.loads((tmp_path / f"{rank}.json").read_text())["ends_ns"] for rank in (0, 1)]
        for rank in (0, 1):
            about = rank_json.read(folder / f"rank{rank:05d}" / "rank.json", RankJson)
            assert (about.status, about.notes, about.clock_note) == ("complete", [], None)
            steps = of_rank(folder, rank, "steps")
            # step 0 is the step of the job that the request names, on each rank
            before, end = ends_ns[rank][found["first_step"] - 1], ends_ns[rank][found["first_step"]]
            assert before - 20e6 < steps["start_ns"][0] < end and abs(steps["end_ns"][0] - end) < 20e6
            assert of_rank(folder, rank, "modules")["module_path"].to_list() == of_rank(
                run, rank, "modules")["module_path"].to_list()
        comms = json.loads(called("comms", "--json", folder).stdout)
        assert comms["coverage"]["matched_ratio"] == 1
    # the layer that was planted, with its line
    line = next(number for number, text in enumerate(SCRIPT.read_text().splitlines(), 1) if text.endswith("# slow"))
    named = explained(run, 1, WatchFinding(id="", kind="slow_rank", onset_step=1, onset_ns=1))
    assert [(one.rank, one.module, one.line) for one in named] == [(1, "1", f"triggered.py:{line}")]
    assert f"triggered.py:{line}" in called("findings", window_folder(run, 1)).stdout
    # what was recorded first says that there is more, and counts all steps
    assert f"3 runs in {run}/windows" in called("stats", run).stdout
    assert "is over" in called("trigger", run).stderr


@pytest.mark.job
def test_a_job_that_is_stopped_inside_keeps_what_was_recorded(tmp_path):
    with job(tmp_path) as (run, ranks):
        asked = called("trigger", "--no-wait", "--steps", "time=1,trace=2,arrivals=5000", run)
        assert asked.returncode == 0, asked.stderr
        folder, until = window_folder(run, 1), time.monotonic() + PATIENCE_S
        while not all(recorded(folder, rank) > 20 for rank in (0, 1)):
            assert ranks.poll() is None and time.monotonic() < until
            time.sleep(0.1)
        ranks.send_signal(signal.SIGTERM)
        ranks.communicate(timeout=PATIENCE_S)
    for rank in (0, 1):
        found = next(folder.glob(f"rank{rank:05d}*"))
        about = rank_json.read(found / "rank.json", RankJson)
        assert about.num_steps is not None and about.num_steps > 20 and about.files["collectives.parquet"]
        assert len(pl.read_parquet(found / "steps.parquet")) == about.num_steps
        assert (about.status, found.name) == ("complete", f"rank{rank:05d}")  # arrivals may end at any step
        assert (run / f"rank{rank:05d}" / "steps.parquet").is_file()
    assert called("comms", folder).returncode == 0


def recorded(folder: Path, rank: int) -> int:
    """Steps of a rank by now."""
    return sum(len(path.read_text().splitlines()) for path in folder.glob(f"rank{rank:05d}*/steps.ndjson"))


@pytest.mark.job
def test_a_job_without_a_watch_is_asked_nothing(tmp_path):
    run = tmp_path / "run"
    environ = clean_environ() | {"NOTED": str(tmp_path), "DISTPROF_WATCH": "off"}
    with forked.popen([sys.executable, "-m", "distprof", "run", "--no-merge", "--out", str(run), "--nproc-per-node",
                       "2", "--steps", PLAN, str(SCRIPT), "100000", "0.01", "1000000"], env=environ) as ranks:
        until = time.monotonic() + PATIENCE_S
        while not (run / "rank00000").exists() or not (run / "rank00001").exists():
            assert ranks.poll() is None and time.monotonic() < until
            time.sleep(0.1)
        done = called("trigger", run)
        (tmp_path / "stop").touch()
        ranks.communicate(timeout=PATIENCE_S)
    assert done.returncode == 1 and "--watch off" in done.stderr and not (run / "watch" / "request.json").exists()


@pytest.mark.stress
def test_fifty_leave_memory_threads_files_hooks_and_step_time_as_before(tmp_path):
    with job(tmp_path, seconds=0.02) as (run, ranks):
        time.sleep(15)
        took = []
        for number in range(1, 51):
            began = time.monotonic()
            assert triggered(run, "--steps", "trace=3")["number"] == number
            took.append(time.monotonic() - began)
            assert ranks.poll() is None
        time.sleep(15)
    windows = [rank_json.read(window_folder(run, number) / "run.json", RunJson).first_step for number in range(1, 51)]
    report, held = {"files after, s": [round(float(np.quantile(took, q)), 1) for q in (0.5, 0.95, 1)]}, []
    for rank in (0, 1):
        found = json.loads((tmp_path / f"{rank}.json").read_text())
        first = [one for one in found["held"] if windows[1] < one["step"] < windows[4]][-1]
        last = found["held"][-1]
        steps_ms = np.diff(found["ends_ns"]) / 1e6
        before, after = steps_ms[60:windows[0] - 10], steps_ms[windows[-1] + 200:]
        stalls = [float(np.sum(steps_ms[step - 2:step + 5] - np.median(before))) for step in windows]
        report[f"rank {rank}"] = {
            "step ms before, 10 and 50 %": [round(float(np.quantile(before, q)), 2) for q in (0.1, 0.5)],
            "after": [round(float(np.quantile(after, q)), 2) for q in (0.1, 0.5)],
            "extra ms around a window, median and 90 %": [round(float(np.quantile(stalls, q)), 1) for q in (0.5, 0.9)],
            **{name: (first[name], last[name]) for name in first if name != "step"}}
        held.append((first, last, np.quantile(before, 0.1), np.quantile(after, 0.1)))
    print(json.dumps(report, indent=1))
    for first, last, before, after in held:
        assert last["threads"] <= first["threads"] and last["hooks"] == first["hooks"]
        assert last["python_threads"] == first["python_threads"] and last["files"] <= first["files"]
        assert last["rss_bytes"] - first["rss_bytes"] < 12 << 20
        assert after < 1.05 * before  # fast steps: other programs come and go meanwhile
