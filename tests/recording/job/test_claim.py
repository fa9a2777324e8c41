"""Launchers and ranks that come to one run directory at the same time."""

from __future__ import annotations

import errno
import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from distprof.contract import rank_json
from distprof.contract.paths import RANK_JSON, RUN_JSON, rank_folder
from distprof.contract.rank_json import RankJson
from distprof.contract.run_json import RunJson
from distprof.errors import OutputError
from distprof.process.identity import local_rank, rank_and_size
from distprof.recording.job import claim as module
from distprof.recording.job.claim import LOCK, claim, join_or_make
from distprof.recording.run_directory import RankFolder, make_run_directory, this_launch

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
