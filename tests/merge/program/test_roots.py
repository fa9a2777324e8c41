"""Roots of collectives: whether they meet the other ranks is read from the times."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from distprof.merge.program.parts import meeting_roots

ROOT = 1


def rows(*ends: tuple[int, int], came: tuple[int, int] = (1000, 50)) -> pl.DataFrame:
    """Collectives of rank 0 and the root, which come at `came` and leave at each of `ends`."""
    found = [(number, rank, came[rank], end[rank]) for number, end in enumerate(ends) for rank in (0, ROOT)]
    return pl.DataFrame(found, schema=["collective", "rank", "arrival_ns", "end_ns"], orient="row")


def roots_of(table: pl.DataFrame, *, root_sends: bool = True) -> list[int]:
    is_root, rooted = table["rank"].to_numpy() == ROOT, np.ones(len(table), bool)
    return meeting_roots(table, np.zeros(len(table), np.int64), rooted, is_root, is_root == root_sends).tolist()


def test_a_root_that_stays_until_the_others_are_there_meets_them():
    assert roots_of(rows((1010, 1020), (1010, 1005))) == [1, 1, 3, 3]


def test_a_root_that_leaves_before_the_others_are_there_sends_into_buffers():
    assert roots_of(rows((1010, 70), (1010, 80), (1010, 1020))) == [-1] * 6


def test_roots_that_come_last_show_nothing():
    assert roots_of(rows((1010, 1020), came=(20, 1000))) == [-1, -1]


def test_ranks_that_send_to_a_late_root_and_stay_meet_it():
    table = rows((1010, 1005), came=(50, 1000))
    assert roots_of(table, root_sends=False) == [1, 1]
    assert roots_of(rows((60, 1005), came=(50, 1000)), root_sends=False) == [-1, -1]


@pytest.mark.parametrize("wait", [70, 1020])
def test_ends_that_were_noted_late_are_no_later_than_a_thread_went_on(wait):
    table = rows((1010, 1020)).with_columns(wait_end_ns=pl.Series([1010, wait]))
    assert (roots_of(table)[0] >= 0) == (wait > 1000)


def test_a_collective_without_its_root_is_none():
    table = rows((1010, 1020), (1010, 1020)).filter((pl.col("collective") == 0) | (pl.col("rank") == 0))
    assert roots_of(table) == [1, 1, -1]
