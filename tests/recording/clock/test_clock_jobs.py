"""Ranks of real jobs compare their clocks: what they write down, and that no job hangs or keeps anything."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from support import forked
from support.jobs import PATIENCE_S, SCRIPTS, clean_environ, distprof, merged, torchrun
from support.ports import free_port


def rank_json(run: Path, rank: int) -> dict:
    found = [run / f"rank{rank:05d}{suffix}" / "rank.json" for suffix in ("", ".partial")]
    return json.loads(next(path for path in found if path.exists()).read_text())


def test_ranks_of_a_job_compare_their_clocks_where_passes_begin_and_end(ddp):
    assert rank_json(ddp, 0)["clock_sync"] == []
    for rank in (1, 2, 3):
        info = rank_json(ddp, rank)
        samples = info["clock_sync"]
        assert len(samples) == 4 and {sample["peer"] for sample in samples} == {0}
        times = [sample["at_ns"] for sample in samples]
        assert times == sorted(times) and info["clock"][0]["realtime_ns"] < times[0]
        answered = [sample for sample in samples if sample["offset_ns"] is not None]
        assert answered, info["clock_note"]
        # the truth is known: they read the clock of one kernel
        assert all(abs(sample["offset_ns"]) <= sample["bound_ns"] and sample["rounds"] >= 1 for sample in answered)
    summary = json.loads((ddp / "merged" / "summary.json").read_text())["clock"]
    assert (summary["method"], summary["aligned"], summary["num_clocks"], summary["uncertainty_ns"]) == (
        "shared", True, 1, 0)
    assert summary["causality"]["num_collectives"] > 0 and not summary["causality"]["violations"]
    assert summary["residual_ns"]["p50"] <= summary["residual_ns"]["max"]


def test_the_clock_is_a_line_of_merge_and_stats(ddp):
    told = distprof("merge", "--force", ddp).stdout
    line = next(line for line in told.splitlines() if line.startswith("clock: "))
    assert line.startswith("clock: one host: all ranks use the same clock; ") and "samples agree" in line
    assert line in distprof("stats", ddp).stdout
    assert "Invalid value for '--align'" in distprof("merge", "--align", "guess", ddp).stderr


def test_a_job_of_one_rank_compares_nothing(alone):
    info = rank_json(alone, 0)
    assert (info["clock_sync"], info["clock_note"]) == ([], None)


class Apart:
    """Two ranks of one process group, the store of which lives in rank 0."""

    def __init__(self, out: Path, stop: int, **environ_of_0: str) -> None:
        self.out = out
        whole = clean_environ() | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2",
                                   "LOCAL_WORLD_SIZE": "2", "DISTPROF_RUN_ID": "apart"}
        self.jobs = [forked.popen(
            [sys.executable, SCRIPTS / "apart.py", out, str(stop)], stderr=subprocess.PIPE, text=True,
            env=whole | {"RANK": str(rank), "LOCAL_RANK": str(rank)} | (environ_of_0 if not rank else {}))
            for rank in (0, 1)]

    def wait(self, rank: int) -> None:
        while not Path(f"{self.out}.{rank}.waits").exists():
            assert self.jobs[rank].poll() is None, self.jobs[rank].communicate()[1]
            time.sleep(0.02)

    def go(self, rank: int) -> None:
        Path(f"{self.out}.{rank}.go").touch()

    def __enter__(self) -> Apart:
        return self

    def __exit__(self, *_: object) -> None:
        for job in self.jobs:
            job.kill()
            job.communicate()


@pytest.mark.job
@pytest.mark.parametrize(("stop", "number"), [
    (2, signal.SIGKILL), *(pytest.param(*case, marks=pytest.mark.stress) for case in (
        (0, signal.SIGSTOP), (0, signal.SIGKILL), (2, signal.SIGSTOP)))])
def test_a_rank_0_that_freezes_or_dies_holds_nobody_up(tmp_path, stop, number):
    """stop 0: before the ranks have met, and the store freezes or dies with rank 0; stop 2: afterwards."""
    with Apart(tmp_path / "run", stop) as both:
        both.wait(0), both.wait(1)
        both.jobs[0].send_signal(number)
        both.go(1)
        assert both.jobs[1].wait(timeout=PATIENCE_S) == 0
        info = rank_json(tmp_path / "run", 1)
    assert (info["status"], info["num_steps"]) == ("complete", 4)
    samples = info["clock_sync"]
    assert len(samples) == 4 and info["clock_note"]
    assert all(sample["offset_ns"] is sample["bound_ns"] is None and not sample["rounds"] for sample in samples[stop:])


@pytest.mark.job
def test_a_rank_0_that_does_not_record_is_missed_and_no_more(tmp_path):
    with Apart(tmp_path / "run", 4, DISTPROF_DISABLE="1") as both:
        both.wait(1)
        both.go(0), both.go(1)
        assert [job.wait(timeout=PATIENCE_S) for job in both.jobs] == [0, 0]
    info = rank_json(tmp_path / "run", 1)
    assert (info["status"], info["clock_note"]) == ("complete", "none of ranks [0] is recording")
    assert len(info["clock_sync"]) == 4 and not any(sample["rounds"] for sample in info["clock_sync"])
    path = tmp_path / "run" / "rank00001" / "rank.json"
    other = Path(str(path).replace("00001", "00000"))
    other.parent.mkdir()
    other.write_text(json.dumps(info | {"rank": 0, "clock_sync": [], "clock_note": None, "files": {}}))
    path.write_text(json.dumps(info | {"boot_id": "another"}))
    told = distprof("merge", tmp_path / "run").stdout
    assert ("clocks are not aligned (rank 1): the ranks ran on several hosts, and no clock offsets were measured "
            "(rank 1: none of ranks [0] is recording)") in told
    assert "clock: each rank's own, not aligned" in told


@pytest.mark.stress
def test_a_rank_0_that_comes_late_is_asked_later(tmp_path):
    with Apart(tmp_path / "run", 0) as both:
        both.go(0)
        assert both.jobs[0].wait(timeout=PATIENCE_S) == 0  # it has ended its recording, and itself
        both.wait(1)
        both.go(1)
        assert both.jobs[1].wait(timeout=PATIENCE_S) == 0
    assert rank_json(tmp_path / "run", 1)["status"] == "complete"


@pytest.mark.job
def test_nothing_is_left_open_and_no_thread_runs_after_the_last_pass(tmp_path):
    torchrun(2, SCRIPTS / "left_behind.py", tmp_path / "run")
    ranks = [json.loads(Path(f"{tmp_path / 'run'}.{rank}.json").read_text()) for rank in (0, 1)]
    for seen in ranks:
        assert seen["after"] == seen["before"] | {"ours": 1}, "one writes what the watch notes"
        assert len(seen["recording"]["sockets"]) > len(seen["before"]["sockets"]), "the test sees what it looks for"
        assert seen["before"]["ours"] == 0 and seen["recording"]["ours"] >= 2
        assert seen["recording"]["threads"] == seen["before"]["threads"], "a script sees none of ours"
    assert max(seen["recording"]["ours"] for seen in ranks) >= 3, "one answers to questions about its clock"


def test_a_merged_run_of_one_host_stays_aligned_without_samples(tmp_path, ddp):
    """As recorded by a version that did not compare clocks."""
    run = Path(shutil.copytree(ddp, tmp_path / "run", ignore=shutil.ignore_patterns("merged")))
    for path in run.glob("rank*/rank.json"):
        info = json.loads(path.read_text())
        path.write_text(json.dumps({key: value for key, value in info.items() if not key.startswith("clock_")}))
    told = json.loads((merged(run) / "merged" / "summary.json").read_text())
    assert (told["clock"]["method"], told["problems"]) == ("shared", [])


def test_what_is_smaller_than_the_clocks_are_good_for_is_said(tmp_path, ddp):
    run = Path(shutil.copytree(ddp, tmp_path / "run", ignore=shutil.ignore_patterns("merged")))
    path = run / "rank00003" / "rank.json"
    info = json.loads(path.read_text())
    samples = [sample | {"offset_ns": 0, "bound_ns": 10**11, "rounds": 1} for sample in info["clock_sync"]]
    path.write_text(json.dumps(info | {"boot_id": "another", "clock_sync": samples}))
    assert "2 clocks on 2 hosts aligned within 100.00 s" in distprof("stats", run).stdout
    told = distprof("comms", run).stdout
    number = len(json.loads(distprof("comms", "--json", run).stdout)["collectives"])
    assert f"clocks of two ranks agree within 100.00 s: {number} of {number} arrival spreads are smaller" in told
    assert "< 100 s" in told
