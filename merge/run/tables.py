"""Reads tables of ranks into polars frames with the columns of the contract, and writes merged tables."""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import numpy as np
import polars as pl

from distprof.contract.parquet_footer import check_checksum
from distprof.contract.paths import STEP_LINES
from distprof.contract.problems import Unreadable
from distprof.contract.tables import COLLECTIVES, STEPS, Table
from distprof.files import MOST_LINES_BYTES, read_small
from distprof.merge.run.group_ranks import COLUMN, as_written_now
from distprof.merge.run.run_model import Rank, Run
from distprof.merge.run.summaries.frames import frame_of, rows_of_ranks
from distprof.merge.run.summaries.summaries import JOINED, Summaries
from distprof.merge.run.table_check import check_rows, check_size
from distprof.storage.places import ahead, remote
from distprof.threads import thread_pool

SPLITS = "split_bytes"
Types = Mapping[str, pl.DataType]
Prepared = Callable[[pl.DataFrame], pl.DataFrame]
TYPES: dict[str, pl.DataType] = {
    "int64": pl.Int64(),
    "float64": pl.Float64(),
    "bool": pl.Boolean(),
    "string": pl.String(),
    "category": pl.String(),
    "list<int64>": pl.List(pl.Int64()),
}
CATEGORIES: Types = TYPES | {"category": pl.Categorical()}
"""Types for tables whose category columns stay categories, which store each text once."""
NAMES: Types = {**CATEGORIES, "string": pl.Categorical()}
"""Types for tables whose names also occur on other ranks: all texts are categories."""
DAMAGE = (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError, UnicodeDecodeError)
"""What reading a damaged table raises; for some damage polars panics."""
FILES_AT_ONCE = 16
"""Files read together. More would take less time and more memory."""
WRITTEN_AT_ONCE, OF_ROW = 1 << 19, pl.lit(8)
"""Values written at once; values per row, to which the sizes of its splits, possibly thousands, are added."""
ROWS_AT_ONCE = 1 << 17
"""Rows of summaries that become a frame at once."""
AT_ONCE = 2
"""Threads: while one piece is prepared, another is read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """A table of all ranks that have it."""

    rows: pl.DataFrame
    """Rows, rank by rank."""
    ranks: Sequence[int]
    """Ranks whose file was read, even if it has no rows."""
    problems: Sequence[Unreadable]
    """Files that are damaged; all others were read."""


def read_table(run: Run, table: Table, prepared: Prepared = lambda rows: rows, types: Types = TYPES) -> Loaded:
    """Reads the rows of every rank that has the table; `prepared` reduces each piece before all are in memory.

    If the run was opened by the files of its hosts, tables that these contain are taken from there.
    """
    parts = list(pieces(run, table, prepared, types))
    return Loaded(rows=pl.concat([prepared(empty(table, types)), *(part.rows for part in parts)], rechunk=True),
                  ranks=[rank for part in parts for rank in part.ranks],
                  problems=[problem for part in parts for problem in part.problems])


def pieces(run: Run, table: Table, prepared: Prepared = lambda rows: rows, types: Types = TYPES) -> Iterator[Loaded]:
    """Yields the same in pieces of some ranks each, in the order of ranks, so that few are in memory while they are
    summed.

    Rows of summaries come first, then those of ranks that have no summary.
    """
    if run.summaries is not None and table.file == COLLECTIVES.file:
        for ranks, found in rows_of_ranks(run.summaries, mp_size=run.mp_size, dp_size=run.dp_size):
            rows = found.select(column.name for column in table.columns)
            yield Loaded(rows=prepared(_typed(rows, table, types)), ranks=ranks, problems=[])
        run = run.of_tables({rank.number for rank in run.in_folders_alone})
    if run.summaries is not None and table.file in JOINED:
        yield from _of_summaries(run, run.summaries, table, prepared, types)
        run = run.of_tables({rank.number for rank in run.in_folders_alone})

    def load(first: int) -> Loaded:
        some = _loaded(run.ranks[first:first + FILES_AT_ONCE], table, types)
        return replace(some, rows=prepared(some.rows).rechunk())  # a chunk per file would outweigh its few rows

    if len(run.ranks) <= FILES_AT_ONCE:  # a single piece is not worth a thread
        yield from (load(0),) if run.ranks else ()
        return
    with thread_pool(AT_ONCE) as executor:
        coming = deque[Future[Loaded]]()
        for first in range(0, len(run.ranks), FILES_AT_ONCE):
            coming.append(executor.submit(load, first))
            if len(coming) > AT_ONCE:  # the consumer of pieces may be slower than reading
                yield coming.popleft().result()
        while coming:
            yield coming.popleft().result()


def _of_summaries(run: Run, summaries: Summaries, table: Table, prepared: Prepared, types: Types) -> Iterator[Loaded]:
    """Yields rows of summaries, which are in memory and become frames piece by piece; each rank is in one piece."""
    joined, ranks = summaries.tables[table.file], list(summaries.frames)
    for some in joined.pieces(ROWS_AT_ONCE):
        rows = frame_of(some, table, mp_size=run.mp_size, dp_size=run.dp_size)
        yield Loaded(rows=prepared(_typed(rows, table, types)), ranks=ranks, problems=[])
        ranks = []


def _typed(rows: pl.DataFrame, table: Table, types: Types) -> pl.DataFrame:
    return rows if types is TYPES else rows.cast({column.name: types[column.type] for column in table.columns})


def _loaded(ranks: Sequence[Rank], table: Table, types: Types) -> Loaded:
    """Reads these ranks together, or one at a time if a file is missing or damaged."""
    if all(rank.has(table) for rank in ranks):
        try:
            with ahead(rank.folder / table.file for rank in ranks):
                rows = _columns(ranks, table, types)
            return Loaded(rows=rows, ranks=[rank.number for rank in ranks], problems=[])
        except DAMAGE:
            pass
    problems = list[Unreadable]()
    each = {rank.number: _frame(rank, table, types, problems) for rank in ranks}
    found = {number: frame for number, frame in each.items() if frame is not None}
    return Loaded(rows=pl.concat([empty(table, types), *found.values()]), ranks=list(found), problems=problems)


def empty(table: Table, types: Types = TYPES) -> pl.DataFrame:
    """Returns the table without rows."""
    return _without_rows(tuple((column.name, types[column.type]) for column in table.columns)).clone()


@cache
def _without_rows(columns: tuple[tuple[str, Any], ...]) -> pl.DataFrame:
    """Makes an empty frame once: a command reads the same tables many times."""
    return pl.DataFrame(schema=dict(columns))


def rank_table(rank: Rank, table: Table) -> pl.DataFrame | None:
    """Returns the table of one rank, or None if it has none that can be read."""
    return _frame(rank, table, TYPES, [])


def _frame(rank: Rank, table: Table, types: Types, problems: list[Unreadable]) -> pl.DataFrame | None:
    try:
        if rank.has(table):
            return _columns([rank], table, types)
        return _steps_of_the_dead(rank, problems) if table.file == STEPS.file else None
    except DAMAGE as error:
        problems.append(unreadable(rank, table.file if rank.has(table) else STEP_LINES, error))
        return None


def unreadable(rank: Rank, file: str, error: BaseException) -> Unreadable:
    """Describes a file of a rank that could not be read."""
    return Unreadable(rank=rank.number, file=file, detail=(str(error).splitlines() or [type(error).__name__])[0])


def _columns(ranks: Sequence[Rank], table: Table, types: Types, wanted: pl.Expr | None = None) -> pl.DataFrame:
    """Reads the columns of the table; a nullable column that an older version did not write is null.

    Raises:
        OSError: A file cannot be read, or is not what the rank wrote; also the other exceptions in `DAMAGE`.
    """
    found = pl.scan_parquet([readable(rank.folder / table.file, check_size) for rank in ranks], glob=False)
    there = found.collect_schema()
    if there.get(COLUMN) == pl.List:
        found = as_written_now(found.collect()).lazy()
    rows = found.select(
        (pl.lit(None) if column.nullable and column.name not in there else pl.col(column.name))
        .cast(types[column.type]).alias(column.name) for column in table.columns)
    read = (rows if wanted is None else rows.filter(wanted)).collect()
    check_rows(read, table, ranks)
    return read


def wanted_rows(rank: Rank, table: Table, wanted: pl.Expr) -> pl.DataFrame:
    """Returns some rows of the table of one rank, which must have it; only these are loaded into memory.

    Raises:
        OSError: The file cannot be read, or these rows are not what the rank wrote; also the others in `DAMAGE`.
    """
    return _columns([rank], table, TYPES, wanted)


def readable(path: Path, look: Callable[[BinaryIO], object] = lambda _: None) -> Any:
    """Returns what polars is given for a table: its path, or its content if polars cannot open the path because it is
    not UTF-8 or is remote.

    Args:
        path: The table.
        look: Called with the opened table before polars reads it.

    Raises:
        OSError: It cannot be read, or its checksum shows that it is damaged: polars may end the process on some damage.
    """
    if (elsewhere := remote(path)) is not None:
        from distprof.storage.fetching import fetched

        content = fetched(elsewhere)
        check_checksum(content)
        look(content)
        return content
    with path.open("rb", buffering=0) as file:
        check_checksum(file)
        look(file)
    try:
        str(path).encode()
    except UnicodeEncodeError:
        return io.BytesIO(path.read_bytes())
    return path


def _steps_of_the_dead(rank: Rank, problems: list[Unreadable]) -> pl.DataFrame | None:
    """Returns the steps that a killed rank had written line by line; the last line may be cut off."""
    if rank.recorded is None or not (rank.folder / STEP_LINES).exists():
        return None
    tags = {"rank": rank.number, "mp_size": rank.recorded.mp_size or 1, "dp_size": rank.recorded.dp_size or 1}
    schema = {column.name: TYPES[column.type] for column in STEPS.columns if column.name not in tags}
    content = read_small(rank.folder / STEP_LINES, MOST_LINES_BYTES)
    lines = [line for line in content.splitlines() if line.endswith(b"}")]
    whole = [line for line in lines if _is_object(line)]
    if len(whole) < len(lines):
        problems.append(Unreadable(rank=rank.number, file=STEP_LINES,
                                   detail=f"{len(lines) - len(whole)} of its lines are not JSON"))
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

    Converting rows for writing takes much more memory than the rows themselves, so it is done piece by piece. Which
    rows form a piece does not depend on the frames in which they come.

    Args:
        folder: Where the file goes.
        table: Which file, with which columns.
        frames: Its rows, in one frame or in several.
        metadata: Written into the file's schema.
    """
    from distprof.contract.parquet import write_pieces  # pyarrow takes a while to import, and most commands only read

    columns = [pl.col(column.name).cast(CATEGORIES[column.type]) for column in table.columns]
    given = (frames,) if isinstance(frames, pl.DataFrame) else frames
    splits = pl.col(SPLITS).list.len().fill_null(0) if SPLITS in table.names() else pl.lit(0)
    written = _written_together(given, OF_ROW + splits)
    write_pieces(folder, table, (
        piece.select(columns).to_arrow(compat_level=pl.CompatLevel.oldest()) for piece in written), metadata)


def _written_together(frames: Iterable[pl.DataFrame], values: pl.Expr) -> Iterator[pl.DataFrame]:
    """Yields the same rows in pieces of about `WRITTEN_AT_ONCE` values."""
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
