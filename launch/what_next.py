"""What `distprof` alone shows: the next command for each run in this folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from distprof.contract import rank_json
from distprof.contract.paths import MERGED, PARTIAL_SUFFIX, RANK_JSON, RUN_JSON, SUMMARY_JSON
from distprof.contract.rank_json import RunJson
from distprof.errors import DataError
from distprof.launch.next_commands import command_names, next_commands
from distprof.terminal import quoted
from distprof.units import counted

NEWEST = 3
"""Runs that are shown."""
FIRST = "distprof run --nproc-per-node 2 train.py"
REPORT_HTML = "report.html"


def what_next(folder: Path) -> list[str]:
    """A line for each of the newest runs, or one with the first command."""
    runs = sorted(runs_in(folder), key=started_ns, reverse=True)
    rows = [step for step in map(_next_step, runs) if step is not None][:NEWEST]
    if not rows:
        return [f"{FIRST}    there is no run in this folder yet"]
    width = max(len(command) for command, _ in rows)
    return [f"{command:<{width}}    {why}" for command, why in rows]


def runs_in(folder: Path) -> Iterator[Path]:
    """The folder itself, the run that it is a part of, or run directories in it and in `runs/`: paths for a command."""
    if (folder / RUN_JSON).is_file():
        yield folder
        return
    if (folder / SUMMARY_JSON).is_file() or (folder / RANK_JSON).is_file():
        yield from (run for run in (folder / "..",) if (run / RUN_JSON).is_file())
        return
    for pattern in (f"runs/*/{RUN_JSON}", f"*/{RUN_JSON}"):
        yield from (path.parent for path in folder.glob(pattern))


def started_ns(run: Path) -> int:
    """When a run began, since the epoch; 0 where that cannot be read."""
    about = _about(run)
    return about.start_ns if about is not None else 0


def _about(run: Path) -> RunJson | None:
    try:
        return rank_json.read(run / RUN_JSON, RunJson)
    except DataError:
        return None


def _next_step(run: Path) -> tuple[str, str] | None:
    """A command and why; None where nothing can be done with a run."""
    about, where = _about(run), quoted(run)
    ranks = list(run.glob(f"rank?????/{RANK_JSON}"))
    partial = list(run.glob(f"rank?????{PARTIAL_SUFFIX}/{RANK_JSON}"))
    if about is None or not (ranks or partial):
        return None
    if about.exit_code and not about.interrupted:
        return f"distprof comms {where}", f"the job ended with exit code {about.exit_code}"
    if partial and about.end_ns is None:
        return f"distprof comms {where}", f"{counted(len(partial), 'rank')} not finished: recording, or killed"
    summary = run / MERGED / SUMMARY_JSON
    if not summary.is_file():
        return f"distprof merge {where}", f"{counted(len(ranks) + len(partial), 'rank')} recorded, not merged"
    if any(path.stat().st_mtime_ns > summary.stat().st_mtime_ns for path in ranks):
        return f"distprof merge --force {where}", "its merge is older than what was recorded"
    if "report" in command_names() and not any((place / REPORT_HTML).is_file() for place in (run, run / MERGED)):
        return f"distprof report {where}", "merged, without a report"
    return next_commands(run, but=("report",))[0], "merged"
