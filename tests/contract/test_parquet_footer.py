"""Rows and bytes of a table by its footer: as arrow reads it, whatever else is in it; nonsense is refused at once."""

from __future__ import annotations

import io
import random
import time

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distprof.contract.parquet_footer import DamagedTableError, read_footer

ARRAYS = st.sampled_from(["int64", "double", "bool", "string", "list", "dictionary", "struct", "all null"])
VALUES = {"int64": list(range(7)), "double": [0.5] * 7, "bool": [True, None] * 3 + [False], "string": list("abcdefg"),
          "list": [[1, 2]] * 7, "struct": [{"a": 1, "b": "x"}] * 7, "all null": [None] * 7,
          "dictionary": pa.array(list("aabbccd")).dictionary_encode()}


def written(kinds: list[str], groups: int, **options: object) -> bytes:
    table = pa.table({f"{place} {kind}": VALUES[kind] for place, kind in enumerate(kinds)},
                     metadata={"notes": "x" * 300})
    target = io.BytesIO()
    with pq.ParquetWriter(target, table.schema, **options) as writer:
        for _ in range(groups):
            writer.write_table(table)
    return target.getvalue()


@given(st.lists(ARRAYS, min_size=1, max_size=20), st.integers(0, 20), st.sampled_from(["none", "zstd"]), st.booleans())
def test_it_says_what_arrow_says(kinds, groups, compression, statistics):
    content = written(kinds, groups, compression=compression, write_statistics=statistics, write_page_index=statistics)
    truth = pq.read_metadata(io.BytesIO(content))
    found = read_footer(io.BytesIO(content))
    assert found.num_rows == truth.num_rows == 7 * groups
    assert found.page_bytes == sum(truth.row_group(at).total_byte_size for at in range(truth.num_row_groups))


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
def test_nonsense_is_refused_or_read_and_ends_soon(seed):
    chance, content = random.Random(seed), written(list(VALUES), 3)
    begin = time.process_time()
    for _ in range(1000):
        damaged = bytearray(content)
        for _ in range(chance.randrange(1, 5)):
            damaged[chance.randrange(len(damaged) - 2000, len(damaged))] = chance.choice((0, 0x15, 0x19, 0xFF,
                                                                                         chance.randrange(256)))
        try:
            read_footer(io.BytesIO(damaged))
        except DamagedTableError:
            continue
    assert time.process_time() - begin < 60


@pytest.mark.parametrize("content", [b"", b"PAR1", b"\xff" * 3000, b"\x1c" * 3000 + b"\xb8\x0b\0\0PAR1",
                                     # a list, and a map, of 2^56 truth values
                                     b"\x19\xf1" + b"\xff" * 8 + b"\x01" + b"\x0c\0\0\0PAR1",
                                     b"\x1b" + b"\xff" * 8 + b"\x01\x11" + b"\x0c\0\0\0PAR1"])
def test_what_is_no_footer_is_refused(content):
    with pytest.raises(DamagedTableError):
        read_footer(io.BytesIO(content))
