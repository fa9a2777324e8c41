"""Rows come back from parts as they went in, from memory as from files."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distprof.merge.spill import Parts

ROW = st.tuples(st.integers(0, 3), st.none() | st.integers(-2**63, 2**63 - 1), st.none() | st.text(max_size=3),
                st.none() | st.lists(st.integers(0, 9), max_size=3))
SCHEMA = {"part": pl.Int64, "number": pl.Int64, "text": pl.Categorical, "list": pl.List(pl.Int64)}


@given(st.lists(st.lists(ROW, max_size=6), max_size=6), st.booleans(), st.integers(0, 9))
def test_a_part_has_its_rows_in_the_order_in_which_they_came(adds, in_files, room):
    every = pl.DataFrame([row for rows in adds for row in rows], schema=SCHEMA, orient="row")
    with tempfile.TemporaryDirectory() as folder:
        parts = Parts(Path(folder) if in_files else None, "x", room=room)
        for rows in adds:
            frame = pl.DataFrame(rows, schema=SCHEMA, orient="row")
            parts.add(frame, frame["part"].to_numpy())
        assert len(parts) == len(every) and list(parts.numbers) == sorted(set(every["part"]))
        for number in parts.numbers:
            expected = every.filter(pl.col("part") == number)
            assert parts.read(number).rows() == expected.rows() and parts.count(number) == len(expected)
            assert pl.concat(list(parts.pieces(number))).rows() == expected.rows()
            assert parts.take(number).rows() == expected.rows()
        assert not len(parts) and not list(Path(folder).iterdir())


def test_no_more_rows_are_held_than_there_is_room_for(tmp_path):
    parts = Parts(tmp_path, "x", room=10)
    for _ in range(100):
        parts.add(pl.DataFrame({"number": np.arange(4)}), np.arange(4))
        assert sum(len(frame) for frames in parts._held.values() for frame in frames) <= 10
    assert [len(parts.read(part)) for part in range(4)] == [100] * 4


def test_what_a_full_disk_refuses_is_an_error(tmp_path):
    parts = Parts(tmp_path / "gone", "x", room=1)
    with pytest.raises(OSError, match="gone"):
        parts.add(pl.DataFrame({"number": [1, 2]}), 0)
