"""Packed columns are what two other readers of Parquet find in the file, and equal in both engines."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distprof.merge.chrome.parquet_file import Page, ParquetFile, constant_page, empty_page, integers_page, words_page
from distprof.merge.scan import compiled_engine, reference
from distprof.merge.scan.rows import NONE
from support.engines import ENGINES, needs_compiled

INT64 = st.integers(-(2**63), 2**63 - 1)


def repeated(values: Any) -> Any:
    """Columns as timelines have them: long runs, short ones and single values, across all sizes of blocks."""
    runs = st.lists(st.tuples(values, st.one_of(st.just(1), st.integers(1, 12), st.integers(1, 700))), max_size=40)
    return runs.map(lambda found: [value for value, count in found for _ in range(count)])


integers = st.one_of(repeated(INT64), repeated(st.integers(-3, 3)), repeated(INT64 | st.just(NONE)),
                     st.lists(INT64, max_size=300),
                     st.lists(st.integers(0, 5000), max_size=600).map(lambda steps: np.cumsum(steps, dtype=np.int64)))
numbers = st.one_of(repeated(st.integers(-1, 3)), repeated(st.integers(-1, 300)), repeated(st.just(-1)),
                    st.lists(st.integers(-1, 70), max_size=1500))


@needs_compiled
@settings(deadline=None)
@given(integers, st.booleans())
def test_both_engines_pack_integers_alike(values, optional):
    column = np.array(values, np.int64)
    one, other = (engine.pack_integers(column, optional=optional) for engine in (compiled_engine, reference))
    assert one == other


@needs_compiled
@settings(deadline=None)
@given(numbers, st.booleans())
def test_both_engines_pack_words_alike(values, optional):
    column = np.array(values, np.int32)
    column = column if optional else column[column >= 0]
    (one, used), (other, also_used) = (
        engine.pack_words(column, 301, optional=optional) for engine in (compiled_engine, reference))
    assert one == other
    assert used.tolist() == also_used.tolist()


@pytest.mark.parametrize("engine", ENGINES)
def test_words_that_are_not_there_are_refused(engine):
    with pytest.raises(ValueError, match="below 3"):
        engine.pack_words(np.array([0, 3], np.int32), 3, optional=False)
    with pytest.raises(ValueError, match="2 dimensions"):
        engine.pack_integers(np.zeros((2, 2), np.int64), optional=False)


WORDS = pa.dictionary(pa.int32(), pa.string())
SCHEMA = pa.schema([
    pa.field("number", pa.int64(), nullable=False, metadata={"doc": "each row has one"}),
    pa.field("maybe", pa.int64()), pa.field("constant", pa.int64(), nullable=False),
    pa.field("word", WORDS, nullable=False), pa.field("perhaps", WORDS), pa.field("no number", pa.int64()),
    pa.field("no word", WORDS)], metadata={"kind": "test"})


def pages(values: list[int], words: list[int]) -> list[Page]:
    """The columns of a row group, of equal length."""
    column, number = np.array(values, np.int64), np.array(words, np.int32)
    texts = [f"wörd {index}".encode() for index in range(301)]
    return [integers_page(column, optional=False, bounded=True), integers_page(column, optional=True),
            constant_page(-7, len(column)), words_page(np.abs(number), texts, optional=False),
            words_page(number, texts, optional=True), empty_page(len(column)), empty_page(len(column))]


@settings(deadline=None)
@given(groups=st.lists(st.tuples(integers, numbers).filter(lambda group: min(map(len, group)) > 0), max_size=3))
def test_other_readers_find_what_was_packed(groups, tmp_path_factory):
    path = tmp_path_factory.mktemp("packed") / "table.parquet"
    file, expected = ParquetFile(path, SCHEMA), {name: [] for name in SCHEMA.names}
    for values, words in groups:
        count = min(len(values), len(words))
        values, words = list(map(int, values[:count])), words[:count]
        file.write(pages(values, words), count)
        for name, column in {
            "number": values, "maybe": [None if value == NONE else value for value in values], "constant": [-7] * count,
            "word": [f"wörd {abs(word)}" for word in words],
            "perhaps": [None if word < 0 else f"wörd {word}" for word in words],
            "no number": [None] * count, "no word": [None] * count,
        }.items():
            expected[name] += column
    file.close()
    found = pq.read_table(path)
    found.validate(full=True)
    assert found.schema.equals(SCHEMA, check_metadata=True)
    assert found.to_pydict() == expected
    assert pl.read_parquet(path).to_dict(as_series=False) == expected
    for index, (values, words) in enumerate(groups):
        bounds = pq.ParquetFile(path).metadata.row_group(index).column(0).statistics
        kept = [int(value) for value, _ in zip(values, words, strict=False)]
        assert (bounds.min, bounds.max) == (min(kept), max(kept))
