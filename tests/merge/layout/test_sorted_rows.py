"""Rows come back sorted, however few of them there is room for."""

from __future__ import annotations

from itertools import chain

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distprof.merge.layout.sorted_rows import SortedRows

KINDS = {"thread": np.int32, "time": np.int64, "row": np.int64, "value": np.uint8}
small, large = st.integers(-3, 3), st.sampled_from([-(2**62) + 1, -5, 0, 1, 2**40, 2**62 - 1])
parts = st.lists(st.lists(st.tuples(st.integers(-2, 2) | st.sampled_from([-(2**31), 2**31 - 1]), small | large,
                                    st.integers(0, 255)), max_size=9), max_size=12)


def filled(parts: list[list[tuple[int, int, int]]], num_keys: int, room: int) -> tuple[SortedRows, list[tuple]]:
    """Rows that arrived in these parts, and the same as a list in the order of arrival."""
    rows, numbered, row = SortedRows(KINDS, num_keys, room=room), list[tuple](), 0
    for part in parts:
        some = [(thread, time, number, value) for number, (thread, time, value) in enumerate(part, row)]
        rows.add(*(np.array([one[index] for one in some], kind) for index, kind in enumerate(KINDS.values())))
        numbered += some
        row += len(part)
    return rows, numbered


def listed(blocks: list) -> list[tuple]:
    return list(chain(*(zip(*(column.tolist() for column in block), strict=True) for block in blocks)))


@given(parts=parts, room=st.sampled_from([1, 2, 3, 10, 1000]))
def test_rows_come_back_in_order(parts, room):
    rows, wanted = filled(parts, 3, room)
    assert len(rows) == len(wanted)
    assert sorted(listed(list(rows.parts()))) == sorted(wanted)
    blocks = list(rows.blocks())
    assert listed(blocks) == sorted(wanted)
    assert [column.dtype for column in blocks[0]] == list(KINDS.values()) if blocks else not wanted
    assert all(len(block[0]) for block in blocks)
    assert sorted(listed(list(rows.parts()))) == sorted(wanted), "they are still there"
    rows.close()
    assert len(rows) == 0


@pytest.mark.long
@given(parts=parts, room=st.sampled_from([2, 1000]))
def test_without_keys_rows_have_no_order(parts, room):
    rows, wanted = filled(parts, 0, room)
    assert sorted(listed(list(rows.parts()))) == sorted(wanted)
    rows.close()


def test_no_block_is_longer_than_the_room():
    """Nor is what is held while they are read; equal times do not join blocks."""
    rows, room, chance = SortedRows({"time": np.int64, "row": np.int64}, 2, room=100), 100, np.random.default_rng(5)
    for first in range(0, 3000, 20):
        rows.add(chance.integers(0, 3, 20), np.arange(first, first + 20))
    blocks = list(rows.blocks())
    rows.close()
    assert sum(len(times) for times, _ in blocks) == 3000 and len(blocks) >= 30
    assert max(len(times) for times, _ in blocks) <= room


def test_the_temporary_file_is_where_it_should_be_and_goes(tmp_path):
    """In the folder of the merge, not in /tmp, which may be memory; and without a name, so that nobody finds it."""
    rows = SortedRows({"row": np.int64}, 1, tmp_path, room=2)
    rows.add(np.arange(5))
    assert not list(tmp_path.iterdir())
    rows.close()
    gone = SortedRows({"row": np.int64}, 1, tmp_path / "gone", room=2)
    with pytest.raises(FileNotFoundError):
        gone.add(np.arange(5))
