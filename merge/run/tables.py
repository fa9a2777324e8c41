"""Reads the tables that ranks recorded into polars frames with the columns of the contract, and writes merged ones."""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import polars as pl

from distprof.contract.paths import STEP_LINES
from distprof.contract.problems import Unreadable
from distprof.contract.tables import MODULES, OPS, PARAMETERS, STEPS, Table
from distprof.merge.run.group_ranks import as_written_now
from distprof.merge.run.run_model import Rank, Run
from distprof.merge.run.summaries import JOINED, Summaries
from distprof.merge.run.summary_tables import frame_of
from distprof.storage.ahead import ahead
from distprof.storage.places import remote
from distprof.threads import thread_pool

SPLITS = "split_bytes"
Types = Mapping[str, pl.DataType]
TYPES: dict[str, pl.DataType] = {
    "int64": pl.Int64(),
    "float64": pl.Float64(),
    "bool": pl.Boolean(),
    "string": pl.String(),
    "category": pl.String(),
    "list<int64>": pl.List(pl.Int64()),
}
CATEGORIES: Types = TYPES | {"category": pl.Categorical()}
"""Of tables whose texts stay as they are written: once each."""
DAMAGE = (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError, UnicodeDecodeError)
"""What reading a damaged table raises; polars panics at some."""
FILES_AT_ONCE = 16
"""More take less time and more memory."""
WRITTEN_AT_ONCE, OF_ROW = 1 << 19, pl.lit(8)
"""Values that are written at once; so many of a row, and the sizes of its splits, of which there may be thousands."""
OP_KEYS = ("op", "phase", "dtype", "counted", "view")
"""Columns of operators that totals tell apart."""
OP_SUMS = ("calls", "macs", "flops", "recompute_macs", "io_bytes")
AT_ONCE = 2
"""While some are prepared, others are read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """A table of all ranks that have it."""

    rows: pl.DataFrame
    """Rank by rank."""
    ranks: Sequence[int]
    """Those whose file was read; it may have no rows."""
    problems: Sequence[Unreadable]
    """Files that are damaged; the others are read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedTables:
    """The tables that totals are made of; each is read once a command and passed on."""

    steps: pl.DataFrame
    ops: pl.DataFrame
    """`OPS` without modules and shapes: a row for each rank and `OP_KEYS`, with the sums `OP_SUMS`."""
    modules: pl.DataFrame
    parameters: pl.DataFrame
    problems: Sequence[Unreadable]


def read_tables(run: Run, steps: Loaded | None = None, *, parameters: Loaded | None = None) -> RecordedTables:
    """Reads the tables of all ranks.

    Args:
        run: The run.
        steps: Its `STEPS`, where they were read already.
        parameters: Likewise its `PARAMETERS`.
    """
    ops, modules = read_table(run, OPS, _op_sums), read_table(run, MODULES)
    parameters = parameters or read_table(run, PARAMETERS)
    steps = steps or read_table(run, STEPS)
    return RecordedTables(
        steps=steps.rows, ops=ops.rows, modules=modules.rows, parameters=parameters.rows,
        problems=[problem for one in (ops, steps, modules, parameters) for problem in one.problems])


def _op_sums(rows: pl.DataFrame) -> pl.DataFrame:
    """Rows of modules and shapes are most of what ranks recorded of their operators."""
    return rows.group_by("rank", *OP_KEYS, maintain_order=True).agg(pl.col(OP_SUMS).sum())


def read_table(run: Run, table: Table, prepared: Callable[[pl.DataFrame], pl.DataFrame] = lambda rows: rows,
               types: Types = TYPES) -> Loaded:
    """The rows of every rank that has the table; `prepared` makes them smaller before all are there.

    Of a run that was opened by its summaries, the tables that these have are theirs.
    """
    if run.summaries is not None and table.file in JOINED:
        return _of_summaries(run, run.summaries, table, prepared, types)
    parts = list(read_batches(run, table, prepared, types))
    return Loaded(rows=pl.concat([prepared(empty(table, types)), *(part.rows for part in parts)], rechunk=True),
                  ranks=[rank for part in parts for rank in part.ranks],
                  problems=[problem for part in parts for problem in part.problems])


def read_batches(run: Run, table: Table, prepared: Callable[[pl.DataFrame], pl.DataFrame] = lambda rows: rows,
                 types: Types = TYPES) -> Iterator[Loaded]:
    """The same of a few ranks at a time, in their order, from the files of the ranks; `AT_ONCE` are read ahead."""
    def load(first: int) -> Loaded:
        some = _loaded(run.ranks[first:first + FILES_AT_ONCE], table, types)
        return replace(some, rows=prepared(some.rows))

    with thread_pool(AT_ONCE) as executor:
        begun = deque[Future[Loaded]]()
        for first in range(0, len(run.ranks), FILES_AT_ONCE):
            begun.append(executor.submit(load, first))
            if len(begun) > AT_ONCE:
                yield begun.popleft().result()
        while begun:
            yield begun.popleft().result()


def _of_summaries(run: Run, summaries: Summaries, table: Table, prepared: Callable[[pl.DataFrame], pl.DataFrame],
                  types: Types) -> Loaded:
    """Rows of summaries, and of the tables of ranks that have none."""
    own = read_table(run.of_tables({rank.number for rank in run.without_summary}), table, prepared, types)
    joined = summaries.tables[table.file]
    rows = frame_of(joined, table, mp_size=run.mp_size, dp_size=run.dp_size)
    if types is not TYPES:
        rows = rows.cast({column.name: types[column.type] for column in table.columns})
    rows = prepared(rows)
    return Loaded(rows=pl.concat([rows, own.rows]) if len(own.rows) else rows, ranks=[*summaries.frames, *own.ranks],
                  problems=own.problems)


def _loaded(ranks: Sequence[Rank], table: Table, types: Types) -> Loaded:
    """All these ranks together, or one at a time where a file is missing or damaged."""
    if all(rank.has(table) for rank in ranks):
        try:
            paths = [rank.folder / table.file for rank in ranks]
            with ahead(paths):
                rows = _columns(paths, table, types)
            return Loaded(rows=rows, ranks=[rank.number for rank in ranks], problems=[])
        except DAMAGE:
            pass
    problems = list[Unreadable]()
    each = {rank.number: _frame(rank, table, types, problems) for rank in ranks}
    found = {number: frame for number, frame in each.items() if frame is not None}
    return Loaded(rows=pl.concat([empty(table, types), *found.values()]), ranks=list(found), problems=problems)


def empty(table: Table, types: Types = TYPES) -> pl.DataFrame:
    """The table without rows."""
    return pl.DataFrame(schema={column.name: types[column.type] for column in table.columns})


def _frame(rank: Rank, table: Table, types: Types, problems: list[Unreadable]) -> pl.DataFrame | None:
    try:
        if rank.has(table):
            return _columns([rank.folder / table.file], table, types)
        return _steps_of_the_dead(rank, problems) if table is STEPS else None
    except DAMAGE as error:
        problems.append(unreadable(rank, table.file if rank.has(table) else STEP_LINES, error))
        return None


def unreadable(rank: Rank, file: str, error: BaseException) -> Unreadable:
    """What is said of a file of a rank that could not be read."""
    return Unreadable(rank=rank.number, file=file, detail=(str(error).splitlines() or [type(error).__name__])[0])


def _columns(paths: list[Path], table: Table, types: Types) -> pl.DataFrame:
    """Columns that an older version did not write yet are null, where they may be."""
    found = as_written_now(pl.read_parquet([readable(path) for path in paths], glob=False))
    return found.select(
        (pl.lit(None) if column.nullable and column.name not in found.columns else pl.col(column.name))
        .cast(types[column.type]).alias(column.name) for column in table.columns)


def readable(path: Path) -> Any:
    """What polars is given for a file: its path, or its content where polars cannot open the path: it is not UTF-8, or
    lies elsewhere.
    """
    if (elsewhere := remote(path)) is not None:
        from distprof.storage.fetching import fetched

        return fetched(elsewhere)
    try:
        str(path).encode()
    except UnicodeEncodeError:
        return io.BytesIO(path.read_bytes())
    return path


def _steps_of_the_dead(rank: Rank, problems: list[Unreadable]) -> pl.DataFrame | None:
    """Steps that a killed rank had written down line by line; the last line may be cut."""
    if rank.recorded is None or not (rank.folder / STEP_LINES).exists():
        return None
    tags = {"rank": rank.number, "mp_size": rank.recorded.mp_size or 1, "dp_size": rank.recorded.dp_size or 1}
    schema = {column.name: TYPES[column.type] for column in STEPS.columns if column.name not in tags}
    lines = [line for line in (rank.folder / STEP_LINES).read_bytes().splitlines() if line.endswith(b"}")]
    whole = [line for line in lines if _is_object(line)]
    if len(whole) < len(lines):
        problems.append(Unreadable(rank=rank.number, file=STEP_LINES,
                                   detail=f"{len(lines) - len(whole)} of its lines are no JSON"))
    if not whole:
        return None
    frame = pl.read_ndjson(b"\n".join(whole), schema=schema)
    return frame.with_columns(pl.lit(value, pl.Int64).alias(name) for name, value in tags.items()).select(
        column.name for column in STEPS.columns)


def _is_object(line: bytes) -> bool:
    try:
        msgspec.json.decode(line, type=dict[str, int | float | str | None])
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return False
    return True


def write(folder: Path, table: Table, frames: pl.DataFrame | Iterable[pl.DataFrame],
          metadata: dict[str, str]) -> None:
    """Writes a merged table with the columns of the contract, in their order.

    What is written takes much more memory than what it is made of. So some rows are written at a time; which of them
    together, does not depend on the frames in which they come.

    Args:
        folder: Where the file goes.
        table: Which file, with which columns.
        frames: Its rows, in one frame or in several.
        metadata: Goes into the file's schema.
    """
    from distprof.contract.parquet import write_pieces  # pyarrow takes a while, and most commands only read

    columns = [pl.col(column.name).cast(CATEGORIES[column.type]) for column in table.columns]
    given = (frames,) if isinstance(frames, pl.DataFrame) else frames
    pieces = _pieces(given, OF_ROW + (pl.col(SPLITS).list.len().fill_null(0) if SPLITS in table.names() else 0))
    write_pieces(folder, table, (
        piece.select(columns).to_arrow(compat_level=pl.CompatLevel.oldest()) for piece in pieces), metadata)


def _pieces(frames: Iterable[pl.DataFrame], values: pl.Expr) -> Iterator[pl.DataFrame]:
    """The same rows, as many at a time as have `WRITTEN_AT_ONCE` values."""
    held, piece, seen = list[pl.DataFrame](), 0, 0
    for frame in frames:
        until = seen + np.cumsum(frame.select(values.cast(pl.Int64).alias("n"))["n"].to_numpy())
        pieces = (until - 1) // WRITTEN_AT_ONCE
        firsts = np.flatnonzero(np.diff(pieces, prepend=piece))
        for first, end in pairwise([0, *firsts.tolist(), len(frame)]):
            if first in firsts and held:
                yield pl.concat(held)
                held = []
            held.append(frame[first:end])
        if len(frame):
            piece, seen = int(pieces[-1]), int(until[-1])
    if held:
        yield pl.concat(held)
