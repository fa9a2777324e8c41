"""Traces as other programs write them: their text, their file names, and runs made of them."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from distprof.errors import DataError
from distprof.merge.run.open_run import open_run
from distprof.merge.run.run_model import Run
from distprof.merge.run.traces.ranking import Naming
from support.jobs import ROOT

DLRM = ROOT.parent / "shared" / "traces" / "dlrm8"
GLOO = ROOT.parent / "shared" / "traces" / "gloo_rank34_of_300.json.gz"
CASES = ROOT.parent / "shared" / "cases" / "traces"
needs_shared = pytest.mark.skipif(not DLRM.is_dir(), reason="needs the traces of ../shared")


def events(rank: int, *, epoch_us: int = 0) -> list[dict]:
    """Returns events with a slice that only this rank has."""
    pid = 100 + rank
    return [{"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "ts": epoch_us, "args": {"name": "python"}},
            {"ph": "X", "name": f"work of {rank}", "cat": "cpu_op", "pid": pid, "tid": pid,
             "ts": epoch_us + 10 + rank, "dur": 5, "args": {"External id": 1, "Input Dims": [[1], []]}}]


def kineto(rank: int | None, world_size: int | None = None, *, about: object = None, host: str = "node0",
           form: str = "new", **info: object) -> str:
    """Returns a trace as written by some version of Kineto."""
    told = {"backend": "gloo", "rank": rank, "world_size": world_size, **info} if about is None else about
    head: dict = {"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "H100"}]}
    after: dict = {"traceName": "/tmp/x.json"}
    base = {"host_name": host, "displayTimeUnit": "ms", "baseTimeNanoseconds": 1_790_857_026_000_000_000}
    distributed = {} if rank is None and about is None else {"distributedInfo": told}
    if form == "old":  # before torch 2.4: microseconds since the epoch without base; the info as text
        head |= {key: json.dumps(value) for key, value in distributed.items()}
        return json.dumps({**head, "traceEvents": events(rank or 0, epoch_us=1_694_128_201_435_377), **after}, indent=2)
    if form == "on demand":  # requested by a daemon: everything after the events, lists as text
        groups = [{**group, "ranks": str(group["ranks"])} for group in told.get("pg_config", [])]
        after |= {"distributedInfo": {**told, "rank": str(rank), "pg_config": groups}} | base
    else:
        head |= distributed | base
    indent = 2 if form == "pretty" else None
    whole = {**head, "traceEvents": events(rank or 0), **after}
    if form == "events first":
        whole = {"traceEvents": events(rank or 0), **head, **after}
    return json.dumps(whole, indent=indent, separators=(",", ":") if form == "compact" else None)


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text.encode()) if path.name.endswith(".gz") else text.encode())
    return path


def files_of(run: Run) -> dict[int, str]:
    """Returns rank -> file name of its trace."""
    return {rank.number: rank.trace.name for rank in run.ranks}


def plain(path: Path, names: list[str]) -> Path:
    """Writes a folder of traces that do not contain their rank."""
    for index, name in enumerate(names):
        write(path / name, kineto(None).replace("work of 0", f"work of file {index}"))
    return path


def refused(*paths: Path, naming: Naming | None = None) -> str:
    with pytest.raises(DataError) as caught:
        open_run(*paths, naming=naming)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def names_in(merged: Path) -> set[str]:
    trace = json.loads(gzip.decompress((merged / "trace.json.gz").read_bytes()))
    return {event["name"] for event in trace["traceEvents"] if event["ph"] == "X"}
