"""What was run: command, when, from which commit, on which hosts, with which versions."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from distprof.contract.paths import RUN_JSON
from distprof.contract.rank_json import read
from distprof.contract.run_json import RunJson, job_command
from distprof.errors import DataError
from distprof.merge.report.sources import Sources
from distprof.merge.run.run_model import Run

SIZES = ("world_size", "mp_size", "dp_size", "topology", "topology_source", "topology_certain", "ranks",
         "missing_ranks")


def about(sources: Sources) -> dict[str, Any]:
    """The run and its ranks."""
    run = sources.run
    launch = _launch(run)
    recorded = [rank.recorded for rank in run.ranks if rank.recorded is not None]
    versions: Mapping[str, str] = recorded[0].versions if recorded else {}
    return {
        "title": run.path.resolve().name, "run_id": run.run_id,
        "command": None if launch is None or not launch.argv else shlex.join(_script(job_command(launch.argv))),
        "started_ns": None if launch is None or not launch.start_ns else launch.start_ns,
        "ended_ns": None if launch is None else launch.end_ns,
        "git_commit": None if launch is None or not launch.git_commit else launch.git_commit,
        "hosts": _hosts(run), "versions": dict(versions),
        "devices": sorted({rank.device_name for rank in run.ranks if rank.device_name is not None}),
        "foreign": not sources.is_recorded,
        "attempts": max((one.attempt for one in recorded), default=0) + 1}


def _launch(run: Run) -> RunJson | None:
    try:
        return read(run.path / RUN_JSON, RunJson) if (run.path / RUN_JSON).is_file() else None
    except DataError:
        return None  # opening the run has named it


def _script(argv: Sequence[str]) -> Sequence[str]:
    """The script and its arguments, without what started it."""
    begin = next((place for place, word in enumerate(argv) if word.endswith(".py")), 0)
    return argv[begin:]


def _hosts(run: Run) -> list[dict[str, Any]]:
    found: dict[str, list[int]] = {}
    for rank in run.ranks:
        if rank.host:
            found.setdefault(rank.host, []).append(rank.number)
    return [{"name": name, "ranks": ranks} for name, ranks in found.items()]
