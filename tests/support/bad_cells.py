"""Changes one value, or a whole column, in tables of ranks, with a correct checksum."""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from distprof.contract.parquet import schema_of
from distprof.contract.parquet_footer import add_checksum
from distprof.contract.tables import ASKED_TABLES, RANK_TABLES

TABLES = {table.file: table for table in (*RANK_TABLES, *ASKED_TABLES)}
INTEGERS = (None, -1, 0, 1, 7, 2**31, 2**40, 2**53, 2**62, 2**63 - 1, -2**63, -2**62, 10**18, 1_700_000_000 * 10**9)
VALUES: dict[str, tuple[Any, ...]] = {
    "int64": INTEGERS,
    "float64": (None, -1.0, 0.0, float("nan"), float("inf"), -float("inf"), 1e308, 1e-308, 1e18, 3.5),
    "bool": (None, True, False),
    "list<int64>": (None, [], [-1], [2**63 - 1, 2**63 - 1], [None], [0] * 5000, [1, 2]),
    "string": (
        None, "", "x", "\x1b[31m", "0-99999999999", "0-3 by 0", "[", "[[1,2],", "[[-1]]", "null", "{}", "a" * 70000,
        "é\u202e", "[[9999999999999,99999999999]]", "float4", "wait", "trace", "5", "send", "all_reduce", "cuda:0",
        "model1:", "a.b.c.d", "'")}


def write_cell(path: Path, column: str, value: Any, row: int | None = 0) -> None:
    """Writes a value to a row of a table, or to all rows."""
    rows = pq.read_table(path)
    values = rows[column].to_pylist()
    for at in range(len(values)) if row is None else (row,):
        values[at] = value
    rewrite(path, rows.to_pydict() | {column: values})


def rewrite(path: Path, columns: dict[str, list[Any]]) -> None:
    """Replaces the columns of a table; allows nulls everywhere."""
    metadata = {key: value for key, value in (pq.read_schema(path).metadata or {}).items() if key != b"ARROW:schema"}
    schema = schema_of(TABLES[path.name], {key.decode(): value.decode() for key, value in metadata.items()})
    fields = [pa.field(field.name, field.type, nullable=True) for field in schema]
    table = pa.Table.from_arrays([pa.array(columns[field.name], field.type) for field in fields],
                                 schema=pa.schema(fields, metadata=schema.metadata))
    pq.write_table(table, path, compression="zstd")
    with path.open("r+b") as file:
        add_checksum(file)


def any_table(run: Path, chance: random.Random) -> Path:
    """Returns a random table of a run that has rows."""
    return chance.choice([file for file in sorted(run.glob("rank*/*.parquet")) if pq.read_metadata(file).num_rows])


def apart(run: Path, seeds: Iterable[int], most: int) -> list[list[int]]:
    """Returns seeds in groups of at most `most`, in which each seed changes a different table."""
    groups: list[dict[Path, int]] = []
    for seed in seeds:
        table = any_table(run, random.Random(seed))
        group = next((one for one in groups if len(one) < most and table not in one), None)
        if group is None:
            groups.append(group := {})
        group[table] = seed
    return [list(group.values()) for group in groups]


def spoil(run: Path, chance: random.Random) -> tuple[Path, str]:
    """Writes a random value to a random cell or column of a random table; returns the table and a description."""
    path = any_table(run, chance)
    column = chance.choice(TABLES[path.name].columns)
    kind = "string" if column.type == "category" else column.type
    values = (*VALUES[kind], chance.getrandbits(63), -chance.getrandbits(63)) if kind == "int64" else VALUES[kind]
    value = chance.choice(values)
    row = None if chance.random() < 0.25 else chance.randrange(pq.read_metadata(path).num_rows)
    write_cell(path, column.name, value, row)
    where = "all rows" if row is None else f"row {row}"
    return path, f"{path.parent.name}/{path.name}: {column.name} of {where} is {str(value)[:60]!r}"
