"""Secrets of a command line and of the environment are in no file of a run, and in nothing that commands say of it."""

from __future__ import annotations

import gzip
import json
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.jobs import SCRIPTS, called, run_and_merge

MARKS = {"token": "Mark4Token", "password": "Mark4Password", "key": "Mark4Key", "url": "Mark4Url",
         "environ": "Mark4Environ"}
ARGUMENTS = ("--hf-token", MARKS["token"], f"--db.password={MARKS['password']}", json.dumps({"api_key": MARKS["key"]}),
             "--tokenizer", "gpt2", f"https://alice:{MARKS['url']}@localhost/data")
STEPS = ("--steps", "wait=1,count=1,time=1,trace=1,arrivals=1")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two ranks that were given secrets, and said some when they failed; merged."""
    out = tmp_path_factory.mktemp("secrets") / "run"
    done = run_and_merge("--out", out, "--nproc-per-node", 2, *STEPS, SCRIPTS / "secretive.py", *ARGUMENTS,
                         HF_TOKEN=MARKS["environ"], WANDB_API_KEY=MARKS["environ"])
    assert done.returncode == 1, done.stderr
    said = "".join(line for line in done.stderr.splitlines(keepends=True) if line.startswith("distprof: "))
    failure = json.loads((out / "rank00000" / "rank.json").read_text())["failure"]["what"]
    assert "cannot log in to https://alice:***@localhost/data with ***" in failure
    assert not _marks_in(said.encode() + done.stdout.encode())
    assert called("merge", out).returncode == 0
    return out


def _marks_in(content: bytes) -> list[str]:
    if content[:2] == b"\x1f\x8b":
        content = gzip.decompress(content)
    return [name for name, mark in MARKS.items() if mark.encode() in content]


def _files(folder: Path) -> Iterator[Path]:
    yield from (path for path in folder.rglob("*") if path.is_file())


@pytest.mark.job
def test_no_file_of_a_run_holds_a_secret(run: Path) -> None:
    names = {path.name for path in _files(run)}
    assert {"run.json", "rank.json", "trace.json.gz", "stuck.json", "summary.json"} <= names
    assert [(path, found) for path in _files(run) if (found := _marks_in(path.read_bytes()))] == []
    argv = json.loads((run / "run.json").read_text())["argv"]
    assert argv[-7:] == ["--hf-token", "***", "--db.password=***", '{"api_key": "***"}', "--tokenizer", "gpt2",
                         "https://alice:***@localhost/data"]


@pytest.mark.job
def test_no_command_says_one(run: Path, tmp_path: Path) -> None:
    for words in (("report", run, "--out", tmp_path / "page.html"), ("report", run, "--json"), ("stats", run, "--json"),
                  ("comms", run), ("diff", run, run), ("merge", run, "--out", tmp_path / "m"),
                  ("upload", run, "memory://secrets/run")):
        done = called(*words)
        assert done.returncode in (0, 1, 3), done.stderr
        assert not _marks_in(done.stdout.encode() + done.stderr.encode()), words
    assert [path for path in _files(tmp_path) if _marks_in(path.read_bytes())] == []
    assert (tmp_path / "page.html").read_text().count("--hf-token") == 2, "shown, and in its data"


@pytest.mark.job
def test_what_older_versions_stored_is_not_shown(run: Path) -> None:
    stored = json.loads((run / "run.json").read_text())
    about = json.dumps(stored | {"argv": [*stored["argv"][:-7], *ARGUMENTS]})
    (run / "run.json").write_text(about)
    assert _marks_in(about.encode())
    try:
        for words in (("report", run, "--json"), ("diff", run, run)):
            assert not _marks_in(called(*words).stdout.encode())
    finally:
        (run / "run.json").write_text(json.dumps(stored))


@pytest.mark.job
def test_the_command_is_for_its_owner_alone(run: Path) -> None:
    assert stat.S_IMODE((run / "rank00000" / "rank.json").stat().st_mode) == 0o644, "the umask lets others read"
    assert stat.S_IMODE((run / "run.json").stat().st_mode) == 0o600


@pytest.mark.job
def test_no_argument_is_kept_where_none_is_wanted(tmp_path: Path) -> None:
    done = run_and_merge("--out", tmp_path / "run", "--no-argv", "--nproc-per-node", 1, "--no-merge", *STEPS,
                         SCRIPTS / "secretive.py", *ARGUMENTS)
    assert done.returncode == 1
    assert json.loads((tmp_path / "run" / "run.json").read_text())["argv"] == []
    assert json.loads(called("report", tmp_path / "run", "--json").stdout)["run"]["command"] is None
