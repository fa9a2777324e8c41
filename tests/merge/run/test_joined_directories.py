"""Run directories of one job, from hosts without a common folder."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import polars as pl
import pytest

from distprof.contract import rank_json
from distprof.contract.paths import RUN_JSON
from distprof.contract.run_json import RanksDirectory, RunJson
from support.jobs import called, distprof
from support.rank_traces import slice_of, write_run

TRACES = [[slice_of(f"on{rank}", 10.0 * rank, 5)] for rank in range(4)]


def place(path: Path, ranks: list[int], host: str) -> RanksDirectory:
    return RanksDirectory(identity=f"of {path.name}", path=str(path), hosts=[host], ranks=ranks)


def apart(tmp_path: Path, *ranks_of: list[int], **changes: object) -> list[Path]:
    """One run in several directories, named a, b, ..., with their ranks."""
    whole = write_run(tmp_path / "whole", *TRACES)
    paths = [tmp_path / chr(ord("a") + index) for index in range(len(ranks_of))]
    known = [place(path, ranks, f"host-{path.name}") for path, ranks in zip(paths, ranks_of, strict=True)]
    for path, ranks in zip(paths, ranks_of, strict=True):
        path.mkdir()
        for rank in ranks:
            shutil.copytree(whole / f"rank{rank:05d}", path / f"rank{rank:05d}")
        rank_json.write(path / RUN_JSON, RunJson(run_id="made", world_size=4, directory_id=f"of {path.name}",
                                                 directories=known))
    return paths


def edit(path: Path, **values: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


@pytest.mark.long
def test_directories_of_one_run_are_joined_by_every_command(tmp_path):
    a, b = apart(tmp_path, [0, 3], [1, 2])
    done = distprof("merge", a, b)
    assert done.returncode == 0 and "4 of 4 ranks" in done.stdout and "incomplete" not in done.stdout, done.stdout
    assert f"distprof stats {a} {b}" in done.stdout
    summary = json.loads((a / "merged" / "summary.json").read_text())
    assert summary["ranks"] == [0, 1, 2, 3] and summary["joined_with"] == [str(b)]
    rows = pl.read_parquet(a / "merged" / "events.parquet")
    assert set(rows["name"].to_list()) >= {"on0", "on1", "on2", "on3"}
    for command in ("stats", "comms"):
        assert json.loads(distprof(command, "--json", "--strict", a, b).stdout)["ranks"] == [0, 1, 2, 3]
        assert json.loads(distprof(command, "--json", "--strict", b, a).stdout)["ranks"] == [0, 1, 2, 3]
    # the merge in a is that of both: a by itself is computed anew
    assert json.loads(distprof("stats", "--json", a).stdout)["ranks"] == [0, 3]
    assert json.loads(distprof("comms", "--json", a / "merged").stdout)["ranks"] == [0, 1, 2, 3]


def test_a_folder_with_all_directories_of_one_run_stands_for_them(tmp_path):
    (tmp_path / "job").mkdir()
    a, b = apart(tmp_path / "job", [0, 3], [1, 2])
    shutil.rmtree(tmp_path / "job" / "whole")
    done = called("merge", a.parent)
    assert done.returncode == 0 and "4 of 4 ranks" in done.stdout and (a / "merged").is_dir(), done.stderr
    for command in ("stats", "comms"):
        assert json.loads(called(command, "--json", a.parent).stdout)["ranks"] == [0, 1, 2, 3]
    edit(b / "run.json", run_id="another")
    assert "is a folder of several runs: a, b" in called("stats", a.parent).stderr


def test_a_directory_alone_names_those_of_the_other_ranks(tmp_path):
    a, b, c = apart(tmp_path, [0], [1], [2, 3])
    for command in ("merge", "stats", "comms"):
        told = distprof(command, a)
        assert f"ranks 1, 2 and 3 of 4 missing; recorded in host-b:{b}, host-c:{c}" in told.stdout, told.stdout
    two = distprof("stats", a, c)
    assert f"rank 1 of 4 missing; recorded in host-b:{b}: pass that directory, too" in two.stdout


def test_a_directory_given_twice_or_copied_elsewhere_is_one(tmp_path):
    a, b = apart(tmp_path, [0, 3], [1, 2])
    (tmp_path / "link").symlink_to(a)
    done = distprof("merge", a, b, tmp_path / "link")
    assert done.returncode == 0 and "incomplete" not in done.stdout
    moved = Path(shutil.move(b, tmp_path / "elsewhere"))
    (moved / "rank00001" / "trace.json.gz").unlink()
    shutil.rmtree(moved / "rank00002")
    told = distprof("stats", a, moved)
    assert "rank 2 of 4 missing\n" in told.stdout, "where it was recorded, it was looked for"
    assert "rank 1 lacks trace.json.gz" in told.stdout


@pytest.mark.long
def test_a_rank_in_both_is_taken_where_it_is_more_complete(tmp_path):
    a, b = apart(tmp_path, [0, 1], [1, 2, 3])
    edit(a / "rank00001" / "rank.json", status="partial", why="cut")
    done = distprof("merge", a, b)
    assert done.returncode == 0, done.stderr
    why = f"{b / 'rank00001'} also belongs to rank 1 and is more complete"
    assert f"{a / 'rank00001'} was skipped: {why}" in done.stdout
    assert "partial" not in done.stdout and distprof("merge", "--force", "--strict", a, b).returncode == 3


@pytest.mark.parametrize("with_run_json", [True, False])
def test_directories_of_two_runs_are_refused_with_both_ids(tmp_path, with_run_json):
    a, b = apart(tmp_path, [0, 1], [2, 3])
    edit(b / "run.json", run_id="other")
    for rank in (2, 3):
        edit(b / f"rank0000{rank}" / "rank.json", run_id="other")
    if not with_run_json:
        (a / "run.json").unlink()
        (b / "run.json").unlink()
    for command in ("merge", "stats", "comms"):
        done = distprof(command, a, b)
        assert done.returncode == 1 and len(done.stderr.splitlines()) == 1
        for word in (f"run made in {a}", f"run other in {b}", "hint:"):
            assert word in done.stderr


def test_damage_in_one_directory_is_named_and_counts_as_missing(tmp_path):
    a, b = apart(tmp_path, [0, 1], [2, 3])
    (b / "run.json").write_text("{")
    for rank in (2, 3):
        (b / f"rank0000{rank}" / "rank.json").write_text("{")
    done = distprof("merge", a, b)
    assert done.returncode == 0, done.stderr
    for word in (f"{b / 'rank00002'} cannot be read", "ranks 2 and 3 of 4 missing", str(b / "run.json")):
        assert word in done.stdout, done.stdout


def test_what_is_no_run_directory_is_refused_beside_one(tmp_path):
    a, _ = apart(tmp_path, [0, 1], [2, 3])
    (tmp_path / "traces").mkdir()
    for other in (tmp_path / "traces", tmp_path / "nowhere"):
        done = distprof("stats", a, other)
        assert done.returncode == 1 and str(other) in done.stderr and "hint:" in done.stderr


def test_the_first_failure_of_all_hosts_counts(tmp_path):
    a, b = apart(tmp_path, [0, 1], [2, 3])
    edit(a / "run.json", failed_rank=0, failed_with=1, failed_ns=2_000)
    edit(b / "run.json", failed_rank=3, failed_with=-9, failed_ns=1_000)
    assert "rank 3 failed first: killed by signal 9" in distprof("stats", a, b).stdout
    assert "rank 0 failed first" in distprof("stats", a).stdout
