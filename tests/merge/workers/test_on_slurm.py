"""Merges by workers that a real Slurm starts, in the two ways that docs/cluster.md shows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.dask_cluster import QUIET, wait_for
from support.jobs import PATIENCE_S, ROOT, clean_environ, distprof
from support.rank_traces import slice_of, write_run
from support.slurm import slurm, why_not

pytestmark = pytest.mark.job
DOCS = ROOT / "docs" / "cluster.md"
EVENTS = [[slice_of(f"op{rank}", 10 * number, 15 if number == 7 else 5) for number in range(2000)] for rank in range(6)]


@pytest.fixture(scope="module")
def environ(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Of whoever uses a Slurm of one node, with Python's programs before all others."""
    if why_not():
        pytest.skip(why_not())
    with slurm(tmp_path_factory.mktemp("slurm")) as found:
        path = f"{Path(sys.executable).parent}{os.pathsep}{found['PATH']}"
        yield clean_environ() | QUIET | found | {"PATH": path}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("run") / "run", *EVENTS)


def _equal_merges(run: Path, address: str, tmp_path: Path) -> None:
    for name, words in (("threads", ()), ("slurm", ("--scheduler", address))):
        done = distprof("merge", run, "--out", tmp_path / name, *words, **QUIET)
        assert (done.returncode, done.stderr) == (0, "")
    names = {file.relative_to(tmp_path / "threads") for file in (tmp_path / "threads").rglob("*") if file.is_file()}
    assert Path("trace.json.gz") in names
    for name in names:
        assert (tmp_path / "slurm" / name).read_bytes() == (tmp_path / "threads" / name).read_bytes(), name


def _shown(begin: str) -> str:
    """The block of the page that begins so."""
    blocks = DOCS.read_text().split("```python\n")
    return next(block.partition("\n```")[0] for block in blocks if block.startswith(begin))


@contextmanager
def _started(*words: object, end: Callable[[subprocess.Popen[str]], object], environ: Mapping[str, str],
             folder: Path) -> Iterator[subprocess.Popen[str]]:
    with (folder / "log").open("a") as log, subprocess.Popen(
            [*map(str, words)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, env=environ,
            cwd=folder) as process:
        try:
            yield process
        finally:
            end(process)
            try:
                process.wait(PATIENCE_S)
            finally:
                process.kill()


def test_workers_of_dask_jobqueue(environ: dict[str, str], run: Path, tmp_path: Path) -> None:
    pytest.importorskip("dask_jobqueue")
    code = _shown("from dask_jobqueue import SLURMCluster")
    # a node of this machine: 16 jobs of 8 cores would wait for ever, and its network has another name
    for shown, here in (("cores=8", "cores=1"), ('"4GB"', '"512MB"'), ('"ib0"', '"lo"'), ("jobs=16", "jobs=2")):
        assert shown in code
        code = code.replace(shown, here)
    code = code.replace("print(cluster.scheduler_address)", "print(cluster.scheduler_address, flush=True)")
    with _started(sys.executable, "-c", f"{code}\ninput()", environ=environ, folder=tmp_path,
                  end=lambda python: python.communicate("\n")) as python:
        assert python.stdout is not None
        address = python.stdout.readline().strip()
        assert address.startswith("tcp://127.0.0.1:"), (tmp_path / "log").read_text()
        _equal_merges(run, address, tmp_path)


def test_workers_of_srun_within_an_allocation(environ: dict[str, str], run: Path, tmp_path: Path) -> None:
    """The first step has all of it: without --overlap the second would wait for its end."""
    lines = next(block.partition("\n```")[0] for block in DOCS.read_text().split("```console\n") if "srun" in block)
    for shown, here in (("$ ", ""), ("-n 16", "-n 2"),
                        ("dask scheduler", "dask scheduler --host 127.0.0.1 --no-dashboard"),
                        ("dask worker", "dask worker --no-dashboard")):
        assert shown in lines
        lines = lines.replace(shown, here)
    file = tmp_path / "s.json"
    with _started("salloc", "-n", "2", "sh", "-c", f"{lines}\nwait", environ=environ, folder=tmp_path,
                  end=subprocess.Popen.terminate):
        wait_for(lambda: file.exists() and file.read_text().endswith("}"))
        _equal_merges(run, json.loads(file.read_text())["address"], tmp_path)
