"""Runs are read where there is no Linux: Python then lacks what macOS or Windows lack, and files are those of Windows.

Nothing here runs on these systems. What they lack is what the stubs of mypy say; `support/pretended/sitecustomize.py`
makes a Python lack it.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from support.bare import in_turn
from support.jobs import PATIENCE_S, ROOT, called, clean_environ
from support.missing import missing
from support.other_systems import MODULES, POSIX, environ_of, pretended
from support.rank_traces import slice_of, write_run
from support.reading import reading_commands

needs_stubs = pytest.mark.skipif(bool(missing("mypy")), reason=missing("mypy"))
ELSEWHERE = [pytest.param(name, marks=needs_stubs) for name in ("darwin", "win32")]
NAMES = {"darwin": "macOS", "win32": "Windows"}
RECORDS = ("distprof/recording", "distprof/profiling", "distprof/compat", "distprof/integrations", "launch/job.py",
           "distprof/helper.py", "launch/hosts", "launch/worker.py", "launch/job_progress.py",
           "launch/upload/job_upload.py", "launch/watching/readings", "launch/watching/alerts.py",
           "launch/watching/window_causes.py", "launch/watching/triggered.py", "launch/watching/watcher.py")
"""What records, or shows a job that is recorded: on Linux."""
KNOWS = ("distprof/system.py", "launch/guarded.py")
"""What knows what a system lacks, and what it imports where nothing is lacking."""


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where commands write to: a path that they print."""
    return tmp_path_factory.mktemp("written")


@pytest.fixture(scope="module")
def expected(everything: Path, ddp: Path, written: Path) -> list[subprocess.CompletedProcess]:
    """What commands say here, with torch."""
    firsts = {words[0]: words for words in reversed(reading_commands(everything, ddp, written))}
    return [called(*words) for words in reversed(firsts.values())]


@pytest.mark.job
@pytest.mark.parametrize("system", [
    "linux", pytest.param("win32", marks=needs_stubs), pytest.param("darwin", marks=[needs_stubs, pytest.mark.stress])])
def test_every_reading_command_says_what_it_says_here_with_torch(system, bare, expected, tmp_path):
    """In the first form of each; Windows lacks almost all that macOS lacks."""
    environ = {} if system == "linux" else environ_of(system, tmp_path)
    commands = [*(known.args for known in expected), ["stats", "s3://bucket/run"]]
    *done, remote = in_turn(bare / "bin" / "python", commands, **environ)
    for found, known in zip(done, expected, strict=True):
        assert found.returncode == 0 and found.stdout, found
        assert (found.stdout, found.stderr) == (known.stdout, ""), found.args
    assert remote.returncode == 2 and "hint: pip install 'distprof[s3]'" in remote.stderr


@pytest.mark.job
@pytest.mark.stress
def test_every_form_of_a_reading_command_says_the_same_without_torch(bare, everything, ddp, written):
    commands = reading_commands(everything, ddp, written)
    known = [called(*words).stdout for words in commands]
    assert [one.stdout for one in in_turn(bare / "bin" / "python", commands)] == known


@pytest.mark.job
@needs_stubs
def test_the_engine_in_python_merges_on_windows_with_processes(bare, tmp_path):
    run = write_run(tmp_path / "run", *([slice_of(f"op {rank}", 10, 5)] for rank in range(3)))
    environ = environ_of("win32", tmp_path) | {"DISTPROF_PLAIN_ENGINE": "1"}  # there is no compiled one
    merge, again, answer = in_turn(bare / "bin" / "python", [
        ["merge", "--workers", "2", str(run)], ["merge", "--workers", "2", "--force", str(run)],
        ["ops", "--json", str(run)]], **environ)
    assert merge.returncode == again.returncode == answer.returncode == 0, (merge, again, answer)
    assert merge.stdout == again.stdout and "3 of 3 ranks" in merge.stdout


@pytest.mark.job
@pytest.mark.parametrize("system", ELSEWHERE)
def test_what_records_says_that_it_needs_linux(system, bare, tmp_path):
    run, doctor, count = in_turn(bare / "bin" / "python", [
        ["run", "train.py"], ["doctor", "--out", str(tmp_path)], ["count", "m.py:f"]], **environ_of(system, tmp_path))
    why = f"that needs Linux, but this is {NAMES[system]}"
    assert (run.returncode, run.stdout) == (1, "") and run.stderr.startswith(f"distprof: cannot record: {why}  hint: ")
    verdict = f"This machine can read runs but cannot record: {why}; no torch"
    assert doctor.returncode == 1 and doctor.stdout.splitlines()[-1] == verdict
    assert count.returncode == 1 and count.stderr.startswith("distprof: cannot count: no torch")


@pytest.mark.job
@needs_stubs
def test_a_script_that_would_be_recorded_runs_on(tmp_path):
    (tmp_path / "train.py").write_text(
        "import distprof, torch\n"
        "with distprof.record('out') as rec:\n"
        "    model = torch.nn.Linear(2, 2)\n"
        "    model(torch.ones(1, 2)).sum().backward()\n"
        "    rec.step()\n"
        "print('trained')\n")
    environ = environ_of("win32", tmp_path)
    environ["PYTHONPATH"] += f":{ROOT}"
    done = subprocess.run([sys.executable, tmp_path / "train.py"], cwd=tmp_path, capture_output=True, text=True,
                          timeout=PATIENCE_S, env=clean_environ() | environ, check=False)
    assert (done.returncode, done.stdout) == (0, "trained\n"), done.stderr
    assert len(done.stderr.splitlines()) == 1 and "needs Linux, but this is Windows" in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.long
@needs_stubs
@pytest.mark.parametrize("system", ["darwin", "win32"])
def test_what_reads_asks_one_file_for_what_a_system_lacks(system):
    lacks = pretended(system).lacks
    found = [f"{path}:{line}: {module}.{name}" for path, module, name, line in uses()
             if name in lacks.get(module, ()) or (system == "win32" and module in POSIX)]
    assert found == []


@cache
def uses() -> tuple[tuple[str, str, str, int], ...]:
    """File, module, name and line of each use of a module that a system may lack, or lack a part of."""
    return tuple(_uses())


def _uses() -> Iterator[tuple[str, str, str, int]]:
    for path in sorted(path for folder in ("distprof", "launch", "merge") for path in (ROOT / folder).rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        if name.startswith((*RECORDS, *KNOWS, "distprof/merge", "distprof/launch")):
            continue
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            match node:
                case ast.Attribute(value=ast.Name(id=module), attr=attribute) if module in MODULES:
                    yield name, module, attribute, node.lineno
                case ast.ImportFrom(module=str(module)):
                    yield from ((name, module, alias.name, node.lineno) for alias in node.names)
                case ast.Import():
                    yield from ((name, alias.name, "", node.lineno) for alias in node.names)
