"""Jobs that torchrun restarts: all attempts are one run, and what is left is that of the last."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn

from distprof.contract.rank_json import RankJson, write
from distprof.process.identity import Identity
from distprof.recording.job.claim import set_aside
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


@pytest.mark.long
def test_an_attempt_with_fewer_ranks_sets_all_ranks_of_the_earlier_one_aside(tmp_path, monkeypatch):
    """An elastic job goes on without the node that died."""
    run = tmp_path / "run"
    monkeypatch.setenv("DISTPROF_RUN_ID", "elastic")
    for rank, attempt, world_size in ((0, 0, 2), (1, 0, 2), (0, 1, 1)):
        for name, number in (("RANK", rank), ("TORCHELASTIC_RESTART_COUNT", attempt), ("WORLD_SIZE", world_size)):
            monkeypatch.setenv(name, str(number))
        train(run, nn.Linear(4, 4), lambda: torch.zeros(2, 4))
    assert sorted(path.name for path in run.iterdir()) == ["attempt0000", "columns", "rank00000", "run.json"]
    assert sorted(path.name for path in (run / "attempt0000").iterdir()) == ["rank00000", "rank00001"]
    told = called("stats", "--json", run)
    assert told.returncode == 0, told.stderr
    found = json.loads(told.stdout)
    assert (found["ranks"], found["problems"]) == ([0], [])


def identity_of(rank: int, world_size: int, attempt: int) -> Identity:
    return Identity(rank=rank, local_rank=rank, world_size=world_size, attempt=attempt, pid=1, host="", boot_id="")


def test_a_rank_that_has_just_begun_again_keeps_its_folder(tmp_path):
    """The first rank of the host sets aside what others left, and they begin at the same time."""
    new, gone = tmp_path / "rank00001.partial", tmp_path / "rank00002.partial"
    for folder in (new, gone):
        folder.mkdir()
    (new / ".rank.json.tmp").write_text("{")
    set_aside(tmp_path, attempt=1, identity=identity_of(0, 2, 1))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["attempt0000", "rank00001.partial"]
    set_aside(tmp_path, attempt=1, identity=identity_of(1, 2, 1))
    assert not new.exists() and sorted(path.name for path in (tmp_path / "attempt0000").iterdir()) == [
        "rank00001.partial", "rank00002.partial"], "its own folder is an old one: it has begun nothing yet"


def test_a_rank_that_was_faster_keeps_its_new_folder(tmp_path):
    """What was read of its old one is true no more when the first rank of the host comes to move it."""
    for folder in (tmp_path / "attempt0000", tmp_path):
        (folder / "rank00001.partial").mkdir(parents=True)
        (folder / "rank00001.partial" / "steps.ndjson").touch()
    (tmp_path / "rank00002.partial").mkdir()
    set_aside(tmp_path, attempt=1, identity=identity_of(0, 1, 1))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["attempt0000", "rank00001.partial"]


@pytest.mark.parametrize(("host", "rank", "world_size", "stays"), [
    ("other", 1, 2, True), ("other", 1, 3, False), ("other", 0, 2, False), ("", 1, 2, False)])
def test_a_rank_on_another_host_that_has_joined_keeps_its_folder(tmp_path, host, rank, world_size, stays):
    """It does not know yet that the job is in a later attempt, and whether its process runs cannot be seen."""
    folder = tmp_path / f"rank{rank:05d}"
    folder.mkdir()
    write(folder / "rank.json", RankJson(run_id="grows", status="recording", rank=rank, world_size=world_size,
                                         host=host, boot_id=host, pid=2**22 + 1))
    set_aside(tmp_path, attempt=1, identity=identity_of(0, 2, 1))
    assert folder.exists() == stays
