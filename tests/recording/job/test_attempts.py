"""Jobs that torchrun restarts: all attempts are one run, and what is left is that of the last."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn

from distprof.recording.run_directory import run_id_of
from support.jobs import called
from support.recording import train

FIRST = {"TORCHELASTIC_RUN_ID": "job-7", "MASTER_ADDR": "a", "MASTER_PORT": "1"}


@pytest.mark.parametrize(("changes", "same"), [
    ({}, True), ({"MASTER_ADDR": "b", "MASTER_PORT": "2"}, True), ({"TORCHELASTIC_RUN_ID": "job-8"}, False),
    ({"DISTPROF_RUN_ID": "given"}, False)])
def test_all_attempts_of_a_job_have_one_id(changes, same):
    assert (run_id_of(FIRST | changes, Path("run")) == run_id_of(FIRST, Path("run"))) == same


@pytest.mark.parametrize("job", [{"TORCHELASTIC_RUN_ID": "none"}, {}])
def test_jobs_without_a_name_are_told_apart_by_where_they_meet(job):
    one, other = ({**job, "MASTER_ADDR": "a", "MASTER_PORT": port} for port in ("1", "2"))
    assert run_id_of(one, Path("run")) != run_id_of(other, Path("run"))


def test_an_attempt_with_fewer_ranks_sets_all_ranks_of_the_earlier_one_aside(tmp_path, monkeypatch):
    """An elastic job goes on without the node that died."""
    run = tmp_path / "run"
    monkeypatch.setenv("DISTPROF_RUN_ID", "elastic")
    for rank, attempt, world_size in ((0, 0, 2), (1, 0, 2), (0, 1, 1)):
        for name, number in (("RANK", rank), ("TORCHELASTIC_RESTART_COUNT", attempt), ("WORLD_SIZE", world_size)):
            monkeypatch.setenv(name, str(number))
        train(run, nn.Linear(4, 4), lambda: torch.zeros(2, 4))
    assert sorted(path.name for path in run.iterdir()) == ["attempt0000", "rank00000", "run.json", "summaries"]
    assert sorted(path.name for path in (run / "attempt0000").iterdir()) == ["rank00000", "rank00001"]
    told = called("stats", "--json", run)
    assert told.returncode == 0, told.stderr
    found = json.loads(told.stdout)
    assert (found["ranks"], found["problems"]) == ([0], [])
