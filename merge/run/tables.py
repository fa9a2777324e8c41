"""Reads the tables that ranks recorded into polars frames with the columns of the contract, and writes merged ones."""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import polars as pl

from distprof.contract.paths import STEP_LINES
from distprof.contract.problems import Unreadable
from distprof.contract.tables import MODULES, OPS, PARAMETERS, STEPS, Table
from distprof.merge.run.group_ranks import COLUMN, with_lists
from distprof.merge.run.run_model import Rank, Run
from distprof.merge.run.summaries import JOINED, Summaries
from distprof.merge.run.summary_tables import frame_of
from distprof.storage.ahead import ahead
from distprof.storage.places import remote
from distprof.threads import thread_pool

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
ROWS_AT_ONCE, RANKS_AT_ONCE = 1 << 17, 1 << 22
"""That are written at once: rows, and ranks in their lists of ranks, of which a row has as many as the job."""
OP_KEYS = ("op", "phase", "dtype", "counted", "view")
"""Columns of operators that totals tell apart."""
OP_SUMS = ("calls", "macs", "flops", "recompute_macs", "io_bytes")
RANKS_READ = 4096
"""From so many ranks in the lists of a row on, files are read one by one."""
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
    has_lists = any(column.name == COLUMN for column in table.columns)
    at_once = max(1, min(FILES_AT_ONCE, RANKS_READ // run.world_size)) if has_lists else FILES_AT_ONCE

    def load(first: int) -> Loaded:
        some = _loaded(run.ranks[first:first + at_once], table, types)
        return replace(some, rows=prepared(some.rows))

    with thread_pool(AT_ONCE) as executor:
        begun = deque[Future[Loaded]]()
        for first in range(0, len(run.ranks), at_once):
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
    found = pl.read_parquet([readable(path) for path in paths], glob=False)
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


def write(folder: Path, table: Table, frames: pl.DataFrame | Iterable[pl.DataFrame], metadata: dict[str, str],
          longest: int = 1) -> None:
    """Writes a merged table with the columns of the contract, in their order; lists of ranks may still be categories.

    What is written takes much more memory than what it is made of. So it is made of a number of rows at a time, which
    does not depend on how they come.

    Args:
        folder: Where the file goes.
        table: Which file, with which columns.
        frames: Its rows, in one frame or in several.
        metadata: Goes into the file's schema.
        longest: Ranks that a list of ranks has at most.
    """
    from distprof.contract.parquet import write_pieces  # pyarrow takes a while, and most commands only read

    columns = [pl.col(column.name).cast(TYPES[column.type]) for column in table.columns]

    def written(piece: pl.DataFrame) -> Any:
        is_coded = piece.schema.get(COLUMN) == pl.Categorical
        return (with_lists(piece) if is_coded else piece).select(columns).to_arrow()

    at_once = max(1, min(ROWS_AT_ONCE, RANKS_AT_ONCE // longest))
    given = (frames,) if isinstance(frames, pl.DataFrame) else frames
    write_pieces(folder, table, map(written, _in_slices(given, at_once)), metadata)


def _in_slices(frames: Iterable[pl.DataFrame], num_rows: int) -> Iterator[pl.DataFrame]:
    """The same rows, so many at a time."""
    held: pl.DataFrame | None = None
    for frame in frames:
        rows = frame if held is None else pl.concat([held, frame])
        whole = len(rows) // num_rows * num_rows
        yield from rows[:whole].iter_slices(num_rows)
        held = rows[whole:] if whole < len(rows) else None
    if held is not None:
        yield held
