"""The commit of a folder is the one that git names, wherever git keeps it; no program is run for it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from distprof.process.identity import git_commit
from distprof.recording import run_directory


def git(folder: Path, *words: str) -> str:
    settings = ("-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "init.defaultBranch=main")
    words = ("git", *settings, "-C", str(folder), *words)
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    git(folder, "init", "-q")
    git(folder, "commit", "-q", "--allow-empty", "-m", "first")
    (folder / "jobs" / "deep").mkdir(parents=True)
    return folder


def test_the_commit_of_a_branch_its_packed_form_and_a_detached_head(repository):
    first = git(repository, "rev-parse", "HEAD")
    assert git_commit(repository) == git_commit(repository / "jobs" / "deep") == first
    git(repository, "pack-refs", "--all")
    assert git_commit(repository) == first
    git(repository, "commit", "-q", "--allow-empty", "-m", "second")
    assert git_commit(repository) == git(repository, "rev-parse", "HEAD") != first
    git(repository, "checkout", "-q", "--detach", first)
    assert git_commit(repository) == first


def test_worktrees_and_submodules_have_their_own(repository, tmp_path):
    git(repository, "worktree", "add", "-q", "-b", "other", str(tmp_path / "tree"))
    git(tmp_path / "tree", "commit", "-q", "--allow-empty", "-m", "there")
    assert git_commit(tmp_path / "tree") == git(tmp_path / "tree", "rev-parse", "HEAD") != git_commit(repository)
    git(repository, "-c", "protocol.file.allow=always", "submodule", "-q", "add", str(tmp_path / "tree"), "part")
    assert git_commit(repository / "part") == git(repository / "part", "rev-parse", "HEAD")


@pytest.mark.parametrize("head", ["", "ref: refs/heads/none", "ref: ../../HEAD", "no commit", "a" * 39])
def test_where_it_is_unclear_nothing_is_said(repository, head):
    (repository / ".git" / "HEAD").write_text(head)
    assert git_commit(repository) == ""


def test_outside_of_a_repository_there_is_none(tmp_path):
    assert git_commit(tmp_path) == git_commit(tmp_path / "gone" / "far") == ""


def test_a_run_has_the_commit_of_its_script(repository, tmp_path, monkeypatch):
    script = repository / "jobs" / "train.py"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["distprof", "run", "--out", "runs/a", str(script)])
    assert run_directory.this_launch(run_id="1", plan="", world_size=1, sizes={}).git_commit == git_commit(repository)
    monkeypatch.setattr("sys.argv", ["distprof", "run", "-m", "train"])
    assert run_directory.this_launch(run_id="1", plan="", world_size=1, sizes={}).git_commit == ""
