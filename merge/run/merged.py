"""Opens a merge that stands alone, without the folders of its ranks: its summary and its collectives."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import polars as pl

from distprof.contract.merged import CLOCK_KEYS, MERGED_COLLECTIVES, STEP_KEYS
from distprof.contract.paths import MERGED, SUMMARY_JSON
from distprof.contract.problems import MergeAlone, Problem, Remark, from_json
from distprof.errors import DataError
from distprof.files import MOST_LINES_BYTES, read_small
from distprof.merge.run.group_ranks import coded
from distprof.merge.run.run_model import Rank, Run
from distprof.merge.run.tables import DAMAGE, readable
from distprof.merge.run.traces.discovery import is_recorded
from distprof.storage.places import place


@dataclass(frozen=True, slots=True, kw_only=True)
class LoneMerge:
    """What a merge holds of the communication of its run."""

    run: Run
    collectives: pl.DataFrame
    """`MERGED_COLLECTIVES`, `coded`; times are on the common clock already."""
    summary: Mapping[str, Any]
    """summary.json."""


def is_merge(path: Path) -> bool:
    """True where a folder is what `distprof merge` wrote."""
    return (path / SUMMARY_JSON).is_file() and not is_recorded(path)


def origin_of(path: Path) -> tuple[Path, ...]:
    """The run that a merge lies in, which has more, with those that it was joined with.

    The path itself where it is no merge, or where one of them is gone.
    """
    parent = path.resolve().parent
    if not is_merge(path) or path.resolve().name != MERGED:
        return (path,)
    more = joined_with(path)
    return (parent, *more) if all(is_recorded(one) for one in more) else (path,)


def joined_with(merge: Path) -> tuple[Path, ...]:
    """Run directories beside its own that a merge was made of; none where that cannot be read."""
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
    summary = msgspec.json.decode(read_small(path / SUMMARY_JSON, MOST_LINES_BYTES), type=dict[str, Any])
    if set(summary["clock"]) != set(CLOCK_KEYS) or set(summary["step"]) != set(STEP_KEYS):
        raise DataError(f"{path / SUMMARY_JSON} was written by another version of distprof",
                        hint="merge again")
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
