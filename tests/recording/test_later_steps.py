"""After the last pass the end of each step is noted, and nothing else."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

import distprof
from distprof.contract.step_ends import MAGIC, step_ends
from distprof.merge.totals.later_steps import job_steps, step_change
from distprof.recording import later_steps
from support.jobs import SCRIPTS, called, record_run

PLAN = "wait=1,count=0,time=2,trace=0,arrivals=0"


def hooks() -> set:
    """Those of all optimizers."""
    return {*_global_optimizer_post_hooks.values(), *_global_optimizer_pre_hooks.values()}


def train(run: Path, num_steps: int, *, explicit: bool = False, optimizers: int = 1,
          pause_s: float = 0.0) -> tuple[int, list[int]] | None:
    """What is noted of a job of so many steps."""
    model = torch.nn.Linear(4, 4)
    before = hooks()
    each = [torch.optim.SGD(model.parameters(), lr=0.01) for _ in range(optimizers)]
    with distprof.record(run, steps=PLAN) as rec:
        for step in range(num_steps):
            model(torch.ones(2, 4)).sum().backward()
            for optimizer in each:
                optimizer.step()
            if step >= num_steps // 2:
                time.sleep(pause_s)
            if explicit:
                rec.step()
        assert len(hooks() - before) == (0 if os.environ.get("DISTPROF_WATCH") == "off" else 2)
    assert hooks() == before
    file = run / "rank00000" / "step_ends.bin"
    return step_ends(file.read_bytes()) if file.exists() else None


@pytest.mark.parametrize("explicit", [False, True])
def test_each_later_step_ends_once(tmp_path, explicit):
    found = train(tmp_path / "run", 43, explicit=explicit, pause_s=0.03)  # far more than a busy machine adds
    assert found is not None
    first, times = found
    assert (first, first + len(times) - 1) == (3, 43)
    assert np.median(np.diff(times)[-20:]) > 30e6 > np.median(np.diff(times)[:15])
    summary = json.loads(called("stats", "--json", tmp_path / "run").stdout)
    assert (summary["steps"]["num_recorded"], summary["steps"]["num_run"]) == (3, 43)
    assert 18 < summary["steps"]["change"]["step"] < 26  # other programs have the processor now and then
    said = called("stats", tmp_path / "run").stdout
    assert "steps 0-2 of 43 recorded" in said and "From step 2" in said


def test_a_pattern_of_optimizers_goes_on(tmp_path):
    found = train(tmp_path / "run", 30, optimizers=2)
    assert found is not None and found[0] + len(found[1]) - 1 == 30


def test_off_nothing_stays(tmp_path, monkeypatch):
    monkeypatch.setenv("DISTPROF_WATCH", "off")
    assert train(tmp_path / "run", 12) is None


def test_whatever_is_wrong_then_harms_no_job(tmp_path, monkeypatch):
    def fail(*_: object, **__: object) -> None:
        raise KeyError("ours")

    monkeypatch.setattr(later_steps.LaterSteps, "_step_ended", fail)
    assert train(tmp_path / "run", 20) is None


@pytest.mark.job
def test_ranks_say_how_many_steps_there_were(tmp_path):
    record_run(tmp_path / "run", 2, SCRIPTS / "job.py", "fine", flags=("--steps", PLAN, "--no-merge"))
    summary = json.loads(called("stats", "--json", tmp_path / "run").stdout)["steps"]
    assert summary["num_run"] > summary["num_recorded"] == 3


@pytest.mark.filterwarnings("ignore:This process")
def test_a_child_that_is_forked_notes_nothing(tmp_path):
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with distprof.record(tmp_path / "run", steps=PLAN):
        for _ in range(8):
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
        child = os.fork()
        if not child:
            for _ in range(5):
                optimizer.step()
            os._exit(0)
        os.waitpid(child, 0)
    found = step_ends((tmp_path / "run" / "rank00000" / "step_ends.bin").read_bytes())
    assert found is not None and found[0] + len(found[1]) - 1 == 8


@given(cut=st.integers(0, 100), damage=st.binary(max_size=24))
def test_a_file_is_read_as_far_as_it_goes(cut, damage):
    times = [1_795_000_000_000_000_000 + 10**7 * step for step in range(10)]
    content = np.array([MAGIC, 7, *times], np.int64).tobytes()
    found = step_ends(content[:cut])
    assert found is None or (found[0] == 7 and found[1] == times[:len(found[1])])
    assert (found is not None) == (cut >= 32)
    step_ends(damage)
    assert step_ends(np.array([MAGIC, 7, *times], ">i8").tobytes()) == (7, times)
    broken = step_ends(np.array([MAGIC, 7, *times[:5], -3, *times[5:]], np.int64).tobytes())
    assert broken == (7, times[:5])


@pytest.mark.parametrize(("recorded_ns", "later_ns", "device_ns", "change"), [
    (20e6, [10e6] * 60, None, None),  # recording made steps longer
    (20e6, [10e6] * 40 + [30e6] * 40, None, 20 + 40),
    (20e6, [10e6] * 40 + [5e6] * 40, None, 20 + 40),
    (10e6, [20e6] * 60, None, 20),
    (10e6, [20e6] * 60, 10e6, 20),  # the host waits for its device in each step
    (4e6, [2e6] * 60, 9e6, None),  # it does not
    (4e6, [12e6] * 60, 9e6, None),
])
def test_steps_that_are_shorter_without_recording_or_on_a_host_alone_are_no_change(tmp_path, recorded_ns, later_ns,
                                                                                  device_ns, change):
    def jittered(durations):
        return (np.array(durations) * np.random.default_rng(1).lognormal(0, 0.02, len(durations))).astype(np.int64)

    rank = tmp_path / "rank00000"
    rank.mkdir()
    ends = np.cumsum(jittered([recorded_ns] * 20))
    later = int(ends[-1]) + np.cumsum(np.append(0, jittered(later_ns)))
    (rank / "step_ends.bin").write_bytes(np.array([MAGIC, 20, *later], np.int64).tobytes())
    steps = pl.DataFrame({"rank": 0, "step": range(20), "pass": "arrivals", "start_ns": np.append(0, ends[:-1]),
                          "end_ns": ends, "device_ns": None if device_ns is None else int(device_ns)})
    run = SimpleNamespace(ranks=[SimpleNamespace(folder=rank)])
    found = job_steps(run, steps)
    assert found.num_run == 20 + len(later_ns)
    assert (found.change and found.change.step) == change
    assert (found.later_ns is None) == (device_ns == 9e6)


@pytest.mark.parametrize("ratio", [0.6, 1.0, 1.1, 1.5, 10])
def test_a_change_is_found_where_there_is_one(ratio):
    random, found = np.random.default_rng(3), []
    for _ in range(40):
        durations = 1e7 * random.lognormal(0, 0.15, 300)
        durations[180:] *= ratio
        found.append(step_change(np.arange(20, 320), durations))
    if ratio in (1.0, 1.1):
        assert not any(found)
    else:
        assert all(one is not None and abs(one.step - 200) <= 5 for one in found)
        assert np.median([one.after_ns / one.before_ns for one in found if one]) == pytest.approx(ratio, rel=0.05)
