"""Process groups in exports: those of equal ranks stay apart, since each has an order of its own."""

from __future__ import annotations

from collections.abc import Iterable

import polars as pl
import pytest

from distprof.merge.execution.process_groups import ProcessGroups, groups_of


def rows(*found: tuple[int, str | None, str | None]) -> pl.DataFrame:
    return pl.DataFrame(list(found), {"rank": pl.Int64, "group": pl.String, "group_ranks": pl.String}, orient="row")


def number(groups: ProcessGroups, name: str | None, ranks: str | None) -> int | None:
    return groups.number({"group": name, "group_ranks": ranks})


def both(*names: str | None) -> Iterable[tuple[int, str | None, str]]:
    return [(rank, name, "0-1") for name in names for rank in (0, 1)]


def test_groups_of_equal_ranks_are_told_apart():
    found = groups_of(rows(*both("10", "0"), (2, "3", "2-3"), (3, "3", "2-3")), 4)
    assert [ranks for ranks, _ in found] == [(0, 1, 2, 3), (0, 1), (0, 1), (2, 3)]
    assert [number(found, name, "0-1") for name in ("0", "10", None, "other")] == [1, 2, 1, 1]
    assert number(found, "3", "2-3") == 3 and number(found, None, None) is None and number(found, "3", "1-3") is None


def test_the_group_of_all_ranks_that_was_made_first_is_the_default():
    found = groups_of(rows(*both("2", "0", "1")), 2)
    assert len(found) == 3 and [number(found, name, "0-1") for name in "012"] == [0, 1, 2]


@pytest.mark.parametrize("given", [[(0, "1", "0-1"), (1, "2", "0-1")], both(None), [*both("1"), (0, "2", "0-1")]])
def test_names_that_ranks_do_not_share_tell_nothing(given):
    found = groups_of(rows(*given), 2)
    assert len(found) == 1 and {number(found, name, "0-1") for name in ("1", "2", None)} == {0}
