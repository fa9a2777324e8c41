"""Returns tables of all ranks as lazy frames: only when a result is collected are files opened, and only parts read."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path, PurePosixPath

import polars as pl

from distprof.contract.paths import PARTIAL_SUFFIX
from distprof.contract.tables import ASKED_TABLES, RANK_TABLES, Table
from distprof.errors import DataError, UsageError
from distprof.merge.run.group_ranks import COLUMN
from distprof.merge.run.rank_folders import FOLDER
from distprof.merge.run.tables import CATEGORIES, empty

BY_NAME = {table.file.removesuffix(".parquet"): table for table in (*RANK_TABLES, *ASKED_TABLES)}
"""Name without suffix, like `steps`, -> the table that ranks write as steps.parquet."""


def scan_table(places: Sequence[str | Path], name: str, ranks: Collection[int] | None = None) -> pl.LazyFrame:
    """Returns a table of all ranks with the columns of the contract.

    Folders are listed, but no file is opened, since the contract has the schema. Exception: one file of a table of
    communication is opened to see whether it has format 1.

    Args:
        places: Run directories of one job: folders, or URLs that fsspec knows.
        name: Name of the table, like `steps`.
        ranks: Only files of these ranks are opened. None: all.

    Raises:
        UsageError: There is no such table.
        DataError: A place cannot be listed.
    """
    table = table_of(name)
    found = [_of_urls(str(place), table, ranks) if _is_url(place) else _of_folder(Path(place), table, ranks)
             for place in places]
    frames = [frame for frame in found if frame is not None]
    return pl.concat(frames) if frames else empty(table, CATEGORIES).lazy()


def table_of(name: str) -> Table:
    """Returns the table that ranks write under a name.

    Raises:
        UsageError: There is no such table.
    """
    if name not in BY_NAME:
        near = difflib.get_close_matches(name, BY_NAME, n=1)
        raise UsageError(f"unknown table {name!r}; choose from {', '.join(BY_NAME)}",
                         hint=f"did you mean {near[0]!r}?" if near else None)
    return BY_NAME[name]


def _is_url(place: str | Path) -> bool:
    return isinstance(place, str) and "://" in place


def _of_folder(folder: Path, table: Table, ranks: Collection[int] | None) -> pl.LazyFrame | None:
    try:
        names = [child.name for child in folder.iterdir()]
    except OSError as error:
        raise DataError(f"cannot read the run directory {folder}: {error.strerror}",
                        hint="distprof run prints the directory it writes") from error
    files = [path for name in _rank_folders(names, ranks) if (path := folder / name / table.file).is_file()]
    return pl.scan_parquet(files, glob=False, schema=_schema(table, files[0]), missing_columns="insert",
                           extra_columns="ignore") if files else None


def _schema(table: Table, file: Path) -> pl.Schema:
    """Returns the schema of the contract, but with lists of ranks, which queries get unchanged, for format 1."""
    schema = empty(table, CATEGORIES).schema
    if COLUMN in schema and pl.read_parquet_schema(file).get(COLUMN) == pl.List:
        schema[COLUMN] = pl.List(pl.Int64)
    return schema


def _rank_folders(names: Sequence[str], ranks: Collection[int] | None) -> Iterator[str]:
    """Yields one folder per rank: the finished one, if there are two."""
    found: dict[int, str] = {}
    for name in sorted(names, key=lambda name: not name.endswith(PARTIAL_SUFFIX)):
        if (match := FOLDER.fullmatch(name)) is not None and (ranks is None or int(match[1]) in ranks):
            found[int(match[1])] = name
    return (found[rank] for rank in sorted(found))


def _of_urls(url: str, table: Table, ranks: Collection[int] | None) -> pl.LazyFrame | None:
    """Scans the files with fsspec and pyarrow, which read any of its file systems, also only the needed parts."""
    import fsspec
    import pyarrow.dataset

    from distprof.contract.parquet import schema_of

    try:
        system, root = fsspec.core.url_to_fs(url)
        listed = system.glob(f"{root.rstrip('/')}/rank*/{table.file}")
        there = {PurePosixPath(path).parent.name: path for path in listed}
    except (OSError, ValueError, ImportError) as error:
        raise DataError(f"cannot read the run directory {url}: {error}",
                        hint="is it spelled correctly, and are you allowed to read it?") from error
    files = [there[name] for name in _rank_folders(list(there), ranks)]
    if not files:
        return None
    dataset = pyarrow.dataset.dataset(files, filesystem=system, format="parquet", schema=schema_of(table, {}))
    return pl.scan_pyarrow_dataset(dataset)
