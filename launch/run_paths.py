"""Rejects paths that are not runs but close to one: part of a run, or a folder of runs. The error suggests the command
that was probably meant."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from distprof.contract.paths import MERGED, RANK_JSON, RUN_JSON, SUMMARY_JSON
from distprof.contract.rank_json import read
from distprof.contract.run_json import RunJson
from distprof.errors import DataError
from distprof.launch.what_next import started_ns
from distprof.terminal import quoted

RUNS = "runs"
"""Folder in which `distprof run` creates run directories."""
SHOWN = 3


def checked(context: click.Context, _parameter: click.Parameter, value: object) -> Any:
    """A click callback that checks paths of runs.

    Raises:
        DataError: A path is part of a run, or a folder with runs.
    """
    for path in value if isinstance(value, tuple) else (value,):
        if isinstance(path, Path) and not context.resilient_parsing:
            _check(path, context.info_name or "report")
    return value


def of_hosts(context: click.Context, parameter: click.Parameter, value: tuple[Path, ...]) -> tuple[Path, ...]:
    """As `checked`, but expands a folder of the run directories that several hosts of one job wrote."""
    return tuple(part for path in checked(context, parameter, value) for part in _parts(path) or [path])


def _parts(path: Path) -> list[Path]:
    """Returns the run directories in a folder if there are several and all belong to one run, else an empty list."""
    if not path.is_dir() or (path / RUN_JSON).is_file() or any(path.glob(f"rank*/{RANK_JSON}")):
        return []
    found = sorted(file.parent for file in path.glob(f"*/{RUN_JSON}"))
    try:
        runs = {read(one / RUN_JSON, RunJson).run_id for one in found}
    except DataError:
        return []  # reading the folder will report it
    return found if len(found) > 1 and len(runs) == 1 else []


def _check(path: Path, command: str) -> None:
    run = run_of(path)
    if run is not None:
        what = "the folder of one of its ranks" if path.is_dir() else "a file of its merge"
        raise DataError(f"{path} is {what}, not a run directory", hint=f"distprof {command} {quoted(run)}")
    runs = _runs_below(path)
    if runs:
        names = ", ".join(str(one) for one in runs[:SHOWN])
        more = f" and {len(runs) - SHOWN} more" if len(runs) > SHOWN else ""
        raise DataError(f"{path} holds a run and also a folder of runs: {names}{more}",
                        hint=f"distprof {command} {quoted(runs[0])}")


def run_of(path: Path) -> Path | None:
    """Returns the run directory of a rank folder or of a file of its merge; None for all other paths."""
    is_rank = path.is_dir() and (path / RANK_JSON).is_file()
    is_merged = path.is_file() and path.absolute().parent.name == MERGED and (path.parent / SUMMARY_JSON).is_file()
    run = path.parent if is_rank else path.parent.parent
    if path.name in ("", ".", "..") or len(path.parts) < 2:
        run = path.resolve().parent if is_rank else path.resolve().parent.parent
    return run if (is_rank or is_merged) and (run / RUN_JSON).is_file() else None


def _runs_below(path: Path) -> list[Path]:
    """Returns the runs in `runs/` of a folder, newest first; none if the folder is itself a run or has traces."""
    if not path.is_dir() or (path / RUN_JSON).is_file() or any(path.glob("*.json*")) or any(path.glob("rank*")):
        return []
    return sorted((found.parent for found in path.glob(f"{RUNS}/*/{RUN_JSON}")), key=started_ns, reverse=True)
