"""Launchers and ranks that come to one run directory at the same time; attempts of a job that torchrun restarts are one
run, and what is left is that of the last.
"""

from __future__ import annotations

import errno
import json
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from distprof.contract import rank_json
from distprof.contract.paths import RANK_JSON, RUN_JSON, rank_folder
from distprof.contract.rank_json import RankJson, write
from distprof.contract.run_json import RunJson
from distprof.errors import OutputError
from distprof.process.identity import Identity, local_rank, rank_and_size
from distprof.recording.job import claim as module
from distprof.recording.job.claim import LOCK, claim, join_or_make, locked, set_aside
from distprof.recording.run_directory import RankFolder, make_run_directory, run_id_of, this_launch
from support.jobs import called
from support.recording import train

TIMES = 20


def launch(run_id: str, key: str = "") -> RunJson:
    return this_launch(run_id=run_id, plan="wait=1", world_size=8, sizes={}, key=key)


def old_run(run: Path, key: str = "", *, ended: bool = True) -> Path:
    (run / rank_folder(0)).mkdir(parents=True)
    rank_json.write(run / RUN_JSON, RunJson(run_id="old", launch_key=key, end_ns=1 if ended else None))
    rank_json.write(run / rank_folder(0) / RANK_JSON, RankJson(run_id="old", status="complete", rank=0, world_size=1))
    return run


@pytest.mark.long
@pytest.mark.parametrize("exists", [False, True])
def test_ranks_at_once_make_one_directory_and_nobody_s_folder_is_lost(tmp_path, exists):
    for number in range(TIMES):
        run = tmp_path / str(number)
        if exists:
            old_run(run)

        def rank(number: int, run: Path = run) -> Path:
            claim(run, launch("new"), made_as=None, force=True)
            folder = RankFolder(run, number, run_id="new", force=True, tags=dict)
            folder.write_rank(RankJson(run_id="new", status="recording", rank=number, world_size=8))
            return folder.path

        with ThreadPoolExecutor(8) as ranks:
            folders = list(ranks.map(rank, range(8)))
        assert all(json.loads((folder / RANK_JSON).read_text())["run_id"] == "new" for folder in folders)
        assert {path.name for path in run.iterdir()} == {RUN_JSON, *(folder.name for folder in folders)}


@pytest.mark.parametrize("force", [False, True])
def test_launchers_at_once_share_one_run(tmp_path, force):
    for number in range(TIMES):
        run = old_run(tmp_path / str(number), key="job") if force else tmp_path / str(number)
        with ThreadPoolExecutor(4) as launchers:
            ids = list(launchers.map(
                lambda node, run=run: join_or_make(run, launch(f"id{node}", "job"), elastic=False, force=force),
                range(4)))
        assert len(set(ids)) == 1 and json.loads((run / RUN_JSON).read_text())["run_id"] == ids[0]
        assert not (run / rank_folder(0)).exists(), "that of the old run"


def test_force_replaces_all_that_the_old_run_left_and_nothing_else(tmp_path):
    run = old_run(tmp_path / "run")
    for name in ("attempt0000/rank00000", "attempt0001/rank00001.partial", "rank00007.partial", "merged", "summaries",
                 "columns", ".merged.tmp", "mine"):
        (run / name).mkdir(parents=True)
        (run / name / "file").touch()
    for name in ("report.html", "notes.txt"):
        (run / name).touch()
    # without it the folder may be that of a rank of the new run, which has just made it
    rank_json.write(run / "rank00007.partial" / RANK_JSON, RankJson(
        run_id="old", status="partial", rank=7, world_size=8))
    claim(run, launch("new"), made_as=None, force=True)
    assert {path.name for path in run.iterdir()} == {RUN_JSON, "mine", "notes.txt"}
    assert json.loads((run / RUN_JSON).read_text())["run_id"] == "new"


@pytest.mark.parametrize("key", ["job", "another job"])
def test_a_directory_with_ranks_of_an_earlier_job_is_refused(tmp_path, key):
    run = old_run(tmp_path / "run", key="job", ended=False)
    with pytest.raises(OutputError, match="is not empty"):
        join_or_make(run, launch("new", key), elastic=False, force=False)
    with pytest.raises(OutputError, match="is not empty"):
        claim(run, launch("new"), made_as="other", force=False)
    assert json.loads((run / RUN_JSON).read_text())["run_id"] == "old" and not (run / LOCK).exists()


def test_what_the_launcher_of_a_host_made_gets_the_id_that_the_ranks_agreed_on(tmp_path):
    run = tmp_path / "run"
    given = join_or_make(run, launch("mine", "job"), elastic=False, force=False)
    identity = json.loads((run / RUN_JSON).read_text())["directory_id"]
    claim(run, launch("agreed"), made_as=given, force=False)
    about = json.loads((run / RUN_JSON).read_text())
    assert (about["run_id"], about["launch_key"], about["directory_id"]) == ("agreed", "job", identity)


def test_a_lock_of_a_killed_process_is_not_waited_for_for_ever(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "LOCK_S", 0.05)
    (tmp_path / "run" / LOCK).mkdir(parents=True)
    claim(tmp_path / "run", launch("new"), made_as=None, force=False)
    assert not (tmp_path / "run" / LOCK).exists()


def taken(lock: Path) -> None:
    """Another process makes the lock, after whoever had it."""
    if lock.exists():
        lock.rmdir()
    lock.mkdir()
    os.utime(lock, ns=(1, time.time_ns() + 10**9))


def test_of_those_that_wait_for_a_killed_process_together_one_at_a_time_has_the_lock(tmp_path, monkeypatch):
    lock, now = tmp_path / LOCK, 0.0
    lock.mkdir()
    # of another one, that was killed; and of one that waits as long as this process, and is faster
    events = iter([lambda: None, lambda: taken(lock), lambda: None, lock.rmdir])

    def sleep(_: float) -> None:
        nonlocal now
        now += module.LOCK_S * 0.6
        next(events)()

    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now, sleep=sleep))
    with locked(tmp_path):
        assert next(events, None) is None, "it was free then"
        assert lock.exists()
    assert not lock.exists()


def test_a_process_that_lost_its_lock_leaves_that_of_another_alone(tmp_path):
    with locked(tmp_path):
        taken(tmp_path / LOCK)
    assert (tmp_path / LOCK).exists()


@pytest.mark.parametrize("busy", [False, True])
def test_nobody_waits_for_ever(tmp_path, monkeypatch, busy):
    """For a lock that cannot be removed, or that one after the other has."""
    lock, now = tmp_path / LOCK, 0.0
    (lock if busy else lock / "of somebody").mkdir(parents=True)

    def sleep(_: float) -> None:
        nonlocal now
        now += module.LOCK_S / 4
        if busy:
            taken(lock)

    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now, sleep=sleep))
    with locked(tmp_path):
        assert now <= 3 * module.LOCK_S
    assert lock.exists()


@pytest.mark.parametrize(("environ", "expected"), [
    ({"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2",
      "SLURM_LOCALID": "0"}, ((3, 8), 1)),
    ({"SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "8", "SLURM_LOCALID": "1"}, ((3, 8), 1)),
    ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_LOCALID": "0"}, (None, None)),  # the shell of a batch job
    ({"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "2"}, ((3, 4), 2)),
    ({"PMI_RANK": "3", "PMI_SIZE": "4"}, ((3, 4), None)),
    ({"PMI_RANK": "3", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1"}, ((3, 4), 1)),
    ({"MV2_COMM_WORLD_RANK": "3", "MV2_COMM_WORLD_SIZE": "4", "MV2_COMM_WORLD_LOCAL_RANK": "2"}, ((3, 4), 2)),
    ({"WORLD_SIZE": "8", "LOCAL_RANK": "2"}, (None, 2)),  # Lightning
    ({"RANK": "", "WORLD_SIZE": ""}, (None, None)), ({"RANK": "x", "WORLD_SIZE": "2"}, (None, None)),
    ({}, (None, None)),
])
def test_variables_of_launchers(environ, expected):
    """The local rank is that of rank 3, or of the rank that a process group knows."""
    assert (rank_and_size(environ), local_rank(environ, 3)) == expected


@pytest.mark.parametrize(("number", "hint"), [(errno.EROFS, "choose a writable place with --out DIR"),
                                              (errno.ENOSPC, "free some space there, or choose another")])
def test_where_no_run_can_be_made_the_hint_fits_the_reason(tmp_path, monkeypatch, number, hint):
    def refused(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Path, "mkdir", refused)
    with pytest.raises(OutputError, match="cannot write the run directory") as raised:
        make_run_directory(tmp_path / "a", launch("new"), force=False)
    assert hint in raised.value.hint


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
