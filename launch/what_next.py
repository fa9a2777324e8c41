"""Suggests the next commands: for the runs in this folder, as `distprof` without arguments shows, and after a merge."""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from distprof.contract import rank_json
from distprof.contract.paths import (
    MERGED,
    PARTIAL_SUFFIX,
    RANK_JSON,
    REPORT_HTML,
    RUN_JSON,
    SUMMARY_JSON,
    TRACES,
    rank_files,
)
from distprof.contract.run_json import RunJson
from distprof.errors import DataError
from distprof.launch import commands
from distprof.terminal import quoted
from distprof.units import counted

AFTER_MERGE = {
    "report": "all findings on one page",
    "comms": "which ranks wait for which ranks, and why",
    "view": "the timeline of all ranks, in your browser",
    "stats": "totals, step times and the slowest modules",
    "critical-path": "the critical path of a step",
}
"""Command -> what it shows; the most informative first."""
SHOWN = 3


def command_names() -> list[str]:
    """Returns the names of all commands, sorted; each is a file in `commands/`."""
    return sorted(module.name.replace("_", "-") for module in pkgutil.iter_modules(commands.__path__))


def next_commands(run: Path) -> list[str]:
    """Returns command lines that show a merged run; includes `view` only if there may be a trace."""
    names = [name for name in AFTER_MERGE if name != "view" or not _lacks_trace(run / MERGED)]
    return [f"distprof {name} {quoted(run)}" for name in names[:SHOWN]]


def _lacks_trace(merged: Path) -> bool:
    """Returns whether a merge has no trace, because the job ended before its trace pass or its plan had none."""
    return merged.is_dir() and not any((merged / name).is_file() for name in TRACES)


NEWEST = 3
"""Number of runs that are shown."""
FIRST = (("distprof demo", "record a small job with a late rank, and find it"),
         ("distprof run --nproc-per-node 2 train.py", "record your own script"))
"""Commands and descriptions if there is no run yet."""


def what_next(folder: Path) -> list[str]:
    """Returns lines with commands: all for the newest run, one for each older run; if there are no runs, `FIRST`."""
    runs = sorted(runs_in(folder), key=started_ns, reverse=True)
    newest, *older = list(islice(filter(None, map(_next_steps, runs)), NEWEST)) or [FIRST]
    rows = [*newest, *(steps[0] for steps in older)]
    width = max(len(command) for command, _ in rows)
    return [f"{command:<{width}}    {why}" for command, why in rows]


def runs_in(folder: Path) -> Iterator[Path]:
    """Yields the folder itself if it is a run, the run that it is part of, or the runs in it and in `runs/`."""
    if (folder / RUN_JSON).is_file():
        yield folder
        return
    if (folder / SUMMARY_JSON).is_file() or (folder / RANK_JSON).is_file():
        yield from (run for run in (folder / "..",) if (run / RUN_JSON).is_file())
        return
    for pattern in (f"runs/*/{RUN_JSON}", f"*/{RUN_JSON}"):
        yield from (path.parent for path in folder.glob(pattern))


def started_ns(run: Path) -> int:
    """Returns when a run began, in ns since the epoch; 0 if unknown."""
    about = _about(run)
    return about.start_ns if about is not None else 0


def _about(run: Path) -> RunJson | None:
    try:
        return rank_json.read(run / RUN_JSON, RunJson)
    except DataError:
        return None


def _next_steps(run: Path) -> Sequence[tuple[str, str]]:
    """Returns the next commands for a run, each with a reason; empty if there is nothing to do with it."""
    about, where = _about(run), quoted(run)
    ranks = list(rank_files(run, RANK_JSON))
    partial = list(rank_files(run, RANK_JSON, PARTIAL_SUFFIX))
    if about is None or not (ranks or partial):
        return ()
    if about.exit_code and not about.interrupted:
        return ((f"distprof comms {where}", f"the job failed with exit code {about.exit_code}"),)
    if partial and about.end_ns is None:
        return ((f"distprof comms {where}", f"{counted(len(partial), 'rank')} unfinished: still recording, or killed"),)
    summary = run / MERGED / SUMMARY_JSON
    if not summary.is_file():
        return ((f"distprof merge {where}", f"{counted(len(ranks) + len(partial), 'rank')} recorded, not merged"),)
    if any(path.stat().st_mtime_ns > summary.stat().st_mtime_ns for path in ranks):
        return ((f"distprof merge --force {where}", "the merge is older than the recording"),)
    page = next((page for page in (run / MERGED / REPORT_HTML, run / REPORT_HTML) if page.is_file()), None)
    first, *others = next_commands(run)
    why = AFTER_MERGE["report"] if page is None else f"report: {quoted(page)}"
    return ((first, why), *((command, AFTER_MERGE[command.split()[1]]) for command in others))
