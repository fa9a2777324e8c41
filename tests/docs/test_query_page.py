"""The queries of docs/how-to/query.md: polars, DuckDB and Spark read what ranks wrote, and find the same."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import polars as pl
import pytest

from support.jobs import PATIENCE_S, ROOT, clean_environ
from support.simulator.engine import Simulation
from support.simulator.run_folder import Recorder
from support.simulator.shapes import SHAPES, programs

SPARK_IS_THERE = find_spec("pyspark") is not None and shutil.which("java") is not None
QUIET = {"PYSPARK_SUBMIT_ARGS": "--master local[1] --conf spark.ui.enabled=false --driver-memory 512m pyspark-shell"}


def example(title: str) -> str:
    text = (ROOT / "docs" / "how-to" / "query.md").read_text().split(f"\n## {title}\n")[1]
    return re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)[0]


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the run of the examples, of four ranks."""
    folder = tmp_path_factory.mktemp("here")
    run = Recorder().write(Simulation(programs(SHAPES["ddp"], 4, 6, 1), lanes=1), folder / "runs" / "a")
    (run / "run.json").write_text('{"format": 1, "run_id": "simulated", "world_size": 4}')
    return folder


@pytest.fixture(scope="module")
def truth(here) -> list[tuple]:
    """The same, counted row by row."""
    sums: dict[tuple, list] = {}
    for file in sorted((here / "runs" / "a").glob("rank*/collectives.parquet")):
        for row in pl.read_parquet(file).iter_rows(named=True):
            if row["phase"] == "backward":
                one = sums.setdefault((row["rank"], row["op"], row["group_size"]), [0, 0, 0])
                one[0] += 1
                one[1] = max(one[1], row["wait_end_ns"])
                one[2] += row["wait_end_ns"] - row["wait_start_ns"]
    return [(*key, calls, last_ns, pytest.approx(ns / 1e6)) for key, (calls, last_ns, ns) in sorted(sums.items())]


def test_polars(here, truth, monkeypatch):
    monkeypatch.chdir(here)
    names: dict = {}
    exec(example("polars"), names)
    assert names["waited"].rows() == truth and len(truth) >= 4
    assert truth[0][4] > 1 << 60, "no digit of a time is lost"


def test_duckdb(here, truth, monkeypatch):
    duckdb = pytest.importorskip("duckdb", reason="needs duckdb")
    monkeypatch.chdir(here)
    names: dict = {}
    exec(example("DuckDB").replace("print(waited)", ""), names)
    assert names["waited"].fetchall() == truth
    types = dict(zip(names["waited"].columns, map(str, names["waited"].types), strict=True))
    assert (types["op"], types["last_ns"], types["rank"]) == ("VARCHAR", "BIGINT", "BIGINT")
    every = duckdb.sql("select distinct rank from 'runs/a/rank*/events.parquet' order by rank")
    assert [row[0] for row in every.fetchall()] == [0, 1, 2, 3]


@pytest.mark.long
@pytest.mark.skipif(not SPARK_IS_THERE, reason="needs pyspark and java: pip install pyspark, apt install "
                                               "openjdk-17-jre-headless")
def test_spark(here, truth):
    told = ("\nimport json\nprint(json.dumps([list(row) for row in waited.collect()]))\n"
            "print(json.dumps(dict(calls.dtypes)))\nspark.stop()\n")
    done = subprocess.run([sys.executable, "-c", example("Spark") + told], cwd=here, capture_output=True, text=True,
                          env=clean_environ() | QUIET, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    *_, rows, types = done.stdout.splitlines()
    assert list(map(tuple, json.loads(rows))) == truth
    found = json.loads(types)
    assert (found["op"], found["enqueue_ns"], found["group_ranks"]) == ("string", "bigint", "string")
