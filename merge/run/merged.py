"""Reads the output of a merge that stands alone, without folders of ranks, or is as new as the run beside it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from distprof.contract.merged import CLOCK_KEYS, MERGED_COLLECTIVES, MERGED_MODULES, STEP_KEYS, SUMMARY_KEYS
from distprof.contract.paths import MERGED, RANK_JSON, SUMMARY_JSON
from distprof.contract.problems import MergeAlone, Problem, Remark, from_json
from distprof.errors import DataError
from distprof.files import MOST_LINES_BYTES, read_small
from distprof.merge.run.group_ranks import coded
from distprof.merge.run.run_model import Rank, Run
from distprof.merge.run.tables import DAMAGE, readable
from distprof.merge.run.traces.discovery import is_recorded, trace_times
from distprof.storage.places import place, real

_DAMAGED_SUMMARY = (ValueError, RecursionError, TypeError, AttributeError, OSError)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoneMerge:
    """What a merge that is read without its run holds about communication."""

    run: Run
    collectives: pl.DataFrame
    """Rows of `MERGED_COLLECTIVES` with texts as categories (`coded`); times are already on the common clock."""
    summary: Mapping[str, Any]
    """Contents of summary.json."""


def is_merge(path: Path) -> bool:
    """Returns whether a folder was written by `distprof merge`."""
    return (path / SUMMARY_JSON).is_file() and not is_recorded(path)


def origin_of(path: Path) -> tuple[Path, ...]:
    """Returns the run that a merge lies in, which has more data, and the runs that it was joined with.

    Returns the path itself if it is not a merge inside its run, or if one of the joined runs is gone.
    """
    parent = path.resolve().parent
    if not is_merge(path) or path.resolve().name != MERGED:
        return (path,)
    more = joined_with(path)
    return (parent, *more) if all(is_recorded(one) for one in more) else (path,)


def joined_with(merge: Path) -> tuple[Path, ...]:
    """Returns the run directories, besides its own, that a merge was made from; empty if that cannot be read."""
    try:
        found = json.loads(read_small(merge / SUMMARY_JSON, MOST_LINES_BYTES))["joined_with"]
        return tuple(place(one) for one in found)
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return ()


def open_merge(path: Path) -> LoneMerge:
    """Reads a merge.

    Raises:
        DataError: It cannot be read, or holds no collectives.
    """
    written = path / SUMMARY_JSON
    try:
        summary = _summary_in(written)
    except _DAMAGED_SUMMARY as error:
        raise _unreadable("a summary", written, error) from error
    if summary is None:
        raise DataError(f"{written} was written by another version of distprof", hint="merge again")
    try:
        rows = pl.read_parquet(readable(path / MERGED_COLLECTIVES.file), glob=False)
    except DAMAGE as error:
        raise DataError(f"cannot read the table {path / MERGED_COLLECTIVES.file}: {str(error).splitlines()[0]}",
                        hint="merge again") from error
    if rows.columns != MERGED_COLLECTIVES.names():
        raise DataError(f"{path / MERGED_COLLECTIVES.file} was written by another version of distprof",
                        hint="merge again")
    if rows.is_empty() and summary["kind"] == "traces":
        raise DataError(f"the merge {path} has no collectives: it is made from foreign traces",
                        hint="use distprof comms on the traces themselves, or merge them with --collectives")
    return LoneMerge(run=_run(path, summary), collectives=coded(rows), summary=summary)


def _run(path: Path, summary: Mapping[str, Any]) -> Run:
    size, is_known = summary["world_size"], summary["topology"] is not None
    return Run(
        path=path, run_id=summary["run_id"], world_size=size, mp_size=summary["mp_size"] or 1,
        dp_size=summary["dp_size"] or size, topology=summary["topology"] or {"dp": size}, topology_known=is_known,
        topology_source=summary["topology_source"], topology_certain=summary["topology_certain"] or not is_known,
        missing=summary["missing_ranks"], kind=summary["kind"],
        problems=from_json(Problem, summary["problems"]),
        remarks=(*from_json(Remark, summary["remarks"]), MergeAlone()),
        ranks=[Rank(number=number, folder=path) for number in summary["ranks"]])


def summary_of_merge(paths: Sequence[Path]) -> dict[str, Any] | None:
    """Returns the summary of a merge that is at least as new as the ranks, or None if there is none.

    Args:
        paths: The run directories of one job, or a merge.

    Raises:
        DataError: The summary is damaged, and the merge stands alone.
    """
    written = _merge_of(paths[0]) / SUMMARY_JSON
    if _up_to_date(paths, written):
        try:
            return _summary_in(written)
        except _DAMAGED_SUMMARY as error:
            _fail_if_alone(written, paths[0], "a summary", error)
    return None


def _summary_in(written: Path) -> dict[str, Any] | None:
    """Returns the content of a `summary.json`; None if its keys are those of another version.

    Raises one of `_DAMAGED_SUMMARY` if it is damaged.
    """
    # msgspec refuses escapes of bytes that are not UTF-8
    found: dict[str, Any] = json.loads(read_small(written, MOST_LINES_BYTES))
    keys = ((found, SUMMARY_KEYS), (found.get("step", {}), STEP_KEYS), (found.get("clock", {}), CLOCK_KEYS))
    if any(set(part) != set(known) for part, known in keys):
        return None
    from_json(Problem, found["problems"])
    from_json(Remark, found["remarks"])
    return found


def modules_of_merge(paths: Sequence[Path]) -> pl.DataFrame | None:
    """Returns the modules of a merge that is as new as the ranks and has the current columns, or None."""
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
    """Returns where the merge of a run is: the path itself if the path is a merge that --out has put elsewhere."""
    return path if is_merge(path) else path / MERGED


def _up_to_date(paths: Sequence[Path], written: Path) -> bool:
    """Returns whether a merge was made from exactly these directories and is as new as all of them, or stands alone."""
    if not written.is_file() or (paths[0] == written.parent and len(paths) == 1):
        return written.is_file()
    others = {real(path) for path in paths[1:]} - {real(paths[0])}
    if others != set(map(real, joined_with(written.parent))):
        return False
    return all(time <= written.stat().st_mtime_ns for path in paths for time in _times(path))


def _times(path: Path) -> Iterator[int]:
    """Yields when ranks were recorded or traces written, in ns since the epoch."""
    if not is_recorded(path):
        return trace_times(path)
    return (rank.stat().st_mtime_ns for rank in path.glob(f"rank*/{RANK_JSON}"))


def _fail_if_alone(written: Path, path: Path, what: str, error: Exception) -> None:
    """Refuses a damaged file of a merge that stands alone; if the ranks are there, the file is treated as missing.

    Raises:
        DataError: The merge stands alone.
    """
    if written.parent == path:
        raise _unreadable(what, written, error) from error


def _unreadable(what: str, written: Path, error: Exception) -> DataError:
    return DataError(f"cannot read {what} in {written}: {(str(error).splitlines() or ['nothing'])[0]}",
                     hint="merge again")
