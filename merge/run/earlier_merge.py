"""What an earlier merge of a run has worked out already, where it is as new as the run."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from distprof.contract.merged import CLOCK_KEYS, MERGED_MODULES, STEP_KEYS, SUMMARY_KEYS
from distprof.contract.paths import MERGED, RANK_JSON, SUMMARY_JSON
from distprof.contract.problems import Problem, from_json
from distprof.errors import DataError
from distprof.files import MOST_LINES_BYTES, read_small
from distprof.merge.run.merged import joined_with
from distprof.merge.run.tables import DAMAGE, readable
from distprof.merge.run.traces.discovery import is_recorded, trace_times
from distprof.storage.places import real


def summary_of_merge(paths: Sequence[Path]) -> dict[str, Any] | None:
    """The summary of a merge that is as new as the ranks; None without one.

    Args:
        paths: The run directories of one job, or a merge.

    Raises:
        DataError: It is damaged, and there is nothing else.
    """
    written = _merge_of(paths[0]) / SUMMARY_JSON
    if _up_to_date(paths, written):
        try:
            # msgspec takes no escape of a byte that is not UTF-8
            found: dict[str, Any] = json.loads(read_small(written, MOST_LINES_BYTES))
            keys = ((found, SUMMARY_KEYS), (found.get("step", {}), STEP_KEYS), (found.get("clock", {}), CLOCK_KEYS))
            if all(set(part) == set(known) for part, known in keys):
                from_json(Problem, found["problems"])
                return found
        except (ValueError, RecursionError, TypeError, AttributeError, OSError) as error:
            _fail_if_alone(written, paths[0], "a summary", error)
    return None


def modules_of_merge(paths: Sequence[Path]) -> pl.DataFrame | None:
    """The modules of a merge that is as new as the ranks and has today's columns; see `summary_of_merge`."""
    written = _merge_of(paths[0]) / MERGED_MODULES.file
    if _up_to_date(paths, written):
        try:
            found = pl.read_parquet(readable(written), glob=False)
        except DAMAGE as error:
            _fail_if_alone(written, paths[0], "a table", error)
        else:
            if found.columns == MERGED_MODULES.names():
                return found
    return None


def _merge_of(path: Path) -> Path:
    """Where the merge of a run is; the path itself where --out has made it."""
    return path if (path / SUMMARY_JSON).is_file() and not is_recorded(path) else path / MERGED


def _up_to_date(paths: Sequence[Path], written: Path) -> bool:
    """True where a merge is of these directories, and newer than all of them; or where it stands alone."""
    if not written.is_file() or (paths[0] == written.parent and len(paths) == 1):
        return written.is_file()
    others = {real(path) for path in paths[1:]} - {real(paths[0])}
    if others != set(map(real, joined_with(written.parent))):
        return False
    return all(time <= written.stat().st_mtime_ns for path in paths for time in _times(path))


def _times(path: Path) -> Iterator[int]:
    """When ranks were recorded or traces written, in ns since the epoch."""
    if not is_recorded(path):
        return trace_times(path)
    return (rank.stat().st_mtime_ns for rank in path.glob(f"rank*/{RANK_JSON}"))


def _fail_if_alone(written: Path, path: Path, what: str, error: Exception) -> None:
    """A damaged file of a merge is like none where the ranks are there.

    Raises:
        DataError: They are not.
    """
    if written.parent == path:
        raise DataError(f"cannot read {what} in {written}: {(str(error).splitlines() or ['nothing'])[0]}",
                        hint="merge again") from error
