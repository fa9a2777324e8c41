"""Ranks of real jobs: the same sampled steps everywhere, the late rank in them, and what a kill leaves."""

from __future__ import annotations

import numpy as np
import pytest

from distprof.contract.watch import UNKNOWN, is_sampled
from support.jobs import SCRIPTS, distprof, record_run, torchrun
from support.watched import noted, steps_of

WATCHED = SCRIPTS / "watched.py"
OFF = ("--passes", "off", "--no-merge")


@pytest.mark.job
@pytest.mark.long
def test_ranks_sample_the_same_steps_and_the_late_one_waits_least(tmp_path):
    done = record_run(tmp_path / "run", 2, WATCHED, 240, 0.02, 1, flags=OFF)
    assert sorted(done.stdout.splitlines()) == sorted(torchrun(2, WATCHED, 240, 0, -1).stdout.splitlines())
    ranks = [noted(tmp_path / "run", rank) for rank in (0, 1)]
    for one in ranks:
        assert steps_of(one.columns) == [*range(1, 240)]
        assert all(is_sampled(sample.step.step, 3) for sample in one.samples)
    samples = [{sample.step.step: sample for sample in one.samples} for one in ranks]
    shared = sorted(samples[0].keys() & samples[1].keys())
    assert len(shared) >= 3 and len(samples[0]) < 24
    took = []
    for step in shared:
        mine, other = samples[0][step], samples[1][step]
        calls = [[(one.groups[group], one.names[op]) for group, op in zip(one.step.group, one.step.op, strict=True)]
                 for one in (mine, other)]
        assert calls[0] == calls[1] and len(calls[0]) == mine.step.num_calls == 2  # the script's, and DDP's
        assert {name for _, name in calls[0]} == {"all_reduce"} and calls[0][0][0][1] == [0, 1]
        assert np.diff(mine.step.arrived_ns).min() >= 0 and mine.step.arrived_ns[1] > 18e6
        assert UNKNOWN not in mine.step.took_ns + other.step.took_ns
        took.append((mine.step.took_ns[1], other.step.took_ns[1]))
    late = np.median(np.array(took), axis=0)
    assert late[0] - late[1] > 5e6  # 10 ms late
    blocked = [[sample.step.blocked_ns[1] for sample in found.values()] for found in samples]
    assert np.median(blocked[0]) - np.median(blocked[1]) > 5e6


@pytest.mark.job
@pytest.mark.long
@pytest.mark.parametrize("how", ["SIGKILL", "SIGTERM"])
def test_a_rank_that_is_killed_loses_little(tmp_path, how):
    done = distprof("run", "--out", tmp_path / "run", "--nproc-per-node", 2, *OFF, WATCHED, 250, 0.03, -1, ENDS_BY=how)
    assert done.returncode != 0
    piece = noted(tmp_path / "run")
    last = steps_of(piece.columns)[-1]
    assert last > 248 - (5 / 0.03 if how == "SIGKILL" else 0.5 / 0.03)
    if how == "SIGTERM":
        assert [(note.kind, note.text) for note in piece.notes][-1] == ("ended", "signal SIGTERM")


@pytest.mark.job
def test_ranks_say_how_many_steps_there_were(tmp_path):
    plan = "wait=1,count=0,time=2,trace=0,arrivals=0"
    record_run(tmp_path / "run", 2, SCRIPTS / "job.py", "fine", flags=("--steps", plan, "--no-merge"))
    said = distprof("stats", tmp_path / "run")
    assert "steps 0-2 of 13 recorded" in said.stdout


@pytest.mark.job
@pytest.mark.parametrize(("flags", "said"), [
    (("--passes", "off", "--steps", "time=2"), "--passes off contradicts --steps"),
    (("--passes", "off", "--topics", "operator"), "--passes off contradicts --topics"),
    (("--passes", "off", "--execution-trace"), "--passes off contradicts --execution-trace"),
    (("--watch-bytes", "lots"), "--watch-bytes must be a size"),
])
def test_what_makes_no_sense_is_refused(tmp_path, flags, said):
    done = distprof("run", "--out", tmp_path / "run", *flags, WATCHED, 3, 0, -1)
    assert done.returncode == 2 and said in done.stderr
    assert not (tmp_path / "run").exists()
