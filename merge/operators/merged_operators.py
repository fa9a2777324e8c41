"""Reads operators that a merge has already summed, if it is up to date."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import polars as pl

from distprof.contract.merged import MERGED_OPERATORS
from distprof.contract.paths import MERGED, SUMMARY_JSON
from distprof.errors import DataError
from distprof.merge.operators.rank_share import SCHEMA, Kept, RankOperators, RankShare, ShareMaker
from distprof.merge.operators.shapes import ShapeCoverage
from distprof.merge.operators.source import ABOUT, STEPS_BY_LAUNCH, Source
from distprof.merge.operators.timeline.graph_replays import Replays
from distprof.merge.run.run_model import Rank, Run
from distprof.merge.run.tables import readable
from distprof.storage.places import place

Operators = tuple[RankOperators, int]
"""Operators of a rank, and how many slices were left out."""
_DAMAGE = (OSError, ValueError, KeyError, TypeError, pl.exceptions.PolarsError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """What a user named."""

    paths: tuple[Path, ...]
    """Paths of the run."""
    merge: Path | None = None
    """The merge, if one was named in place of its run; else None."""


def run_of_merge(path: Path, *more: Path) -> Opened:
    """Returns the run of a merge, or what was named if it is not a merge.

    Raises:
        DataError: It is a merge whose run is unknown or gone.
    """
    if more or not (path / SUMMARY_JSON).is_file():
        return Opened(paths=(path, *more))
    if path.resolve().name == MERGED:
        return Opened(paths=(path.resolve().parent,), merge=path)
    first = next(iter(sorted((path / MERGED_OPERATORS.file).glob("*.parquet"))), None)
    runs = [place(run) for run in _about(first).get("runs", ())] if first is not None else []
    if not runs or not all(run.exists() for run in runs):
        raise DataError(f"{path} is a merge, not a run", hint="distprof ops RUN")
    return Opened(paths=tuple(runs), merge=path)


def merged_operators(run: Run, folder: Path | None, makers: Sequence[ShareMaker],
                     take: Callable[[RankShare, Kept], None], *, by_shapes: bool) -> bool:
    """Reads the operators of all ranks with a timeline from a merge.

    Args:
        run: The run whose ranks are wanted.
        folder: The merge; None: the one in the run.
        makers: One for each rank of the run that has a timeline.
        take: Called with what was found for each rank.
        by_shapes: Whether FLOPs are computed from shapes.

    Returns:
        False if the merge lacks some, or has them from other timelines; `take` may have been called for some ranks.
    """
    if folder is None and run.more:
        return False
    files = (folder or run.path / MERGED) / MERGED_OPERATORS.file
    if not files.is_dir():
        return False
    for maker in makers:
        try:
            one = _read(files / f"rank{maker.rank.number:05d}.parquet", maker.rank, by_shapes=by_shapes)
        except _DAMAGE:
            return False
        if one is None:
            return False
        take(*maker.of(*one))
    return bool(makers)


def _read(path: Path, rank: Rank, *, by_shapes: bool) -> Operators | None:
    about = _about(path)
    if rank.trace is None or STEPS_BY_LAUNCH not in about or about["asked_shapes"] != by_shapes:
        return None
    if about["source"] != asdict(Source.of(rank.trace)):
        return None
    found = pl.read_parquet(readable(path), columns=list(SCHEMA))
    rows = found.select(pl.col(name).cast(kind) for name, kind in SCHEMA.items())
    told = about["by_shapes"]
    return RankOperators(rows=rows, by_shapes=None if told is None else ShapeCoverage(**told),
                         replays=Replays(**about["replays"])), int(about["num_bad"])


def _about(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(pl.read_parquet_metadata(readable(path))[ABOUT])
    except _DAMAGE:
        return {}
    return found if isinstance(found, dict) else {}
