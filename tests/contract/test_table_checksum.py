"""The checksum of a table: every flipped bit is found, and all readers of parquet read what was written."""

from __future__ import annotations

import io
import random
from pathlib import Path

import polars as pl
import pyarrow.parquet as pq
import pytest

from distprof.contract.parquet import write_pieces, write_table
from distprof.contract.parquet_footer import MARK, MARK_BYTES, DamagedTableError, check_checksum
from distprof.contract.tables import COLLECTIVES, STEPS, Table
from distprof.merge.run.tables import readable

NUM_ROWS = 40
DRAWN = {
    "int64": lambda chance: chance.getrandbits(60), "float64": lambda chance: chance.random(),
    "bool": lambda chance: chance.random() < 0.5, "string": lambda chance: f"é{chance.getrandbits(30)}",
    "category": lambda chance: chance.choice("abc"),
    "list<int64>": lambda chance: [chance.getrandbits(9) for _ in range(chance.randrange(4))]}


def written(folder: Path, table: Table) -> Path:
    chance = random.Random(1)
    rows = [{column.name: DRAWN[column.type](chance) for column in table.columns} for _ in range(NUM_ROWS)]
    write_table(folder, table, rows, tags={"rank": 0, "mp_size": 1, "dp_size": 1}, metadata={})
    return folder / table.file


def plain(content: bytes) -> bytes:
    """The table as pyarrow wrote it, before it had a checksum."""
    at = content.index(MARK)
    return content[:at] + content[at + MARK_BYTES:]


def is_found(content: bytes) -> bool:
    try:
        check_checksum(io.BytesIO(content))
    except DamagedTableError:
        return True
    return False


@pytest.mark.long
def test_every_flipped_bit_is_found_but_those_that_change_nothing(tmp_path):
    content = written(tmp_path, STEPS).read_bytes()
    mark = range(content.index(MARK), content.index(MARK) + len(MARK))
    for bit in range(8 * len(content)):
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        assert is_found(bytes(flipped)) == (bit // 8 not in mark), bit
    assert not is_found(content)


@pytest.mark.long
def test_what_is_cut_overwritten_or_grown_is_not_read(tmp_path):
    content = written(tmp_path, COLLECTIVES).read_bytes()
    chance = random.Random(1)
    for _ in range(300):
        begin, end = sorted(chance.sample(range(len(content)), 2))
        for damaged in (content[:begin], content[:begin] + content[end:], content + content[begin:end],
                        content[:begin] + bytes(end - begin) + content[end:]):
            if damaged != content:
                tmp_path.joinpath("x.parquet").write_bytes(damaged)
                with pytest.raises((OSError, pl.exceptions.PolarsError)):
                    pl.read_parquet(readable(tmp_path / "x.parquet"))


@pytest.mark.parametrize("table", [STEPS, COLLECTIVES])
def test_every_reader_reads_what_it_read_without(tmp_path, table):
    file = written(tmp_path, table)
    without = tmp_path / "plain.parquet"
    without.write_bytes(plain(file.read_bytes()))
    assert file.stat().st_size == without.stat().st_size + MARK_BYTES
    assert pq.read_table(file, page_checksum_verification=True).equals(pq.read_table(without))
    assert pq.read_table(file, memory_map=True).num_rows == NUM_ROWS
    assert pl.read_parquet(file).equals(pl.read_parquet(without))
    assert pl.scan_parquet(file).select(pl.len()).collect().item() == NUM_ROWS
    duckdb = pytest.importorskip("duckdb")
    with duckdb.connect() as connection:
        found = [connection.execute(f"select * from '{path}'").fetchall() for path in (file, without)]
    assert found[0] == found[1] and len(found[0]) == NUM_ROWS


def test_tables_of_others_have_none_and_are_read(tmp_path):
    pl.DataFrame({"a": range(5)}).write_parquet(tmp_path / "x.parquet")
    assert len(pl.read_parquet(readable(tmp_path / "x.parquet"))) == 5
    for content in (b"", b"P", b"PAR1", b"\xff" * 40):
        assert not is_found(content), "its reader says what is wrong with it"


def test_a_table_in_pieces_has_one(tmp_path):
    rows = pq.read_table(written(tmp_path, STEPS))
    (tmp_path / "pieces").mkdir()
    write_pieces(tmp_path / "pieces", STEPS, [rows.slice(0, 10), rows.slice(10)], {})
    content = (tmp_path / "pieces" / STEPS.file).read_bytes()
    assert content.count(MARK) == 1 and not is_found(content)
    assert pq.read_table(tmp_path / "pieces" / STEPS.file).num_rows == NUM_ROWS
