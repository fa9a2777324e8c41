"""Rows of ranks on common steps: which rank is waited for, and that clocks of ranks are never compared."""

from __future__ import annotations

import numpy as np
import pytest

from distprof.contract.watch import UNKNOWN, StepRows
from distprof.merge.watch.grid import FIELDS, Grid
from distprof.merge.watch.pieces import Columns

S = 1_000_000_000


def row(step: int, span_s: float, ahead_s: float = 0.0) -> Columns:
    """A row of one step, of a rank whose clock is ahead."""
    columns = {name: np.zeros(1, np.int64) for name in StepRows.__struct_fields__}
    return columns | {"first_step": np.array([step]), "num_steps": np.array([1]),
                      "span_ns": np.array([int(span_s * S)]),
                      "end_ns": np.array([int(((step + 1) * span_s + ahead_s + 1_700_000_000) * S)])}


def grid(num_steps: int, span_s: float, late_rows: int, ahead_s: float = 0.0) -> Grid:
    """Rows of three ranks after as many looks; those of the last rank come some looks later."""
    found = Grid()
    for rank in range(3):
        found.add_rank(rank)
    for step in range(num_steps):
        for rank in range(2):
            found.add(rank, row(step, span_s))
        if step >= late_rows:
            found.add(2, row(step - late_rows, span_s, ahead_s))
        found.advance()
    return found


@pytest.mark.parametrize("ahead_s", [-3600, -20, 0, 20, 3600])
def test_rows_that_come_a_little_later_are_waited_for_whatever_the_clock_says(ahead_s: float) -> None:
    found = grid(100, 0.2, 20, ahead_s)
    assert found.frontier() == 80
    assert len(found.first) == 80
    assert not np.isnan(found.rows[:, :, 0]).any()


def test_so_are_those_of_long_steps() -> None:
    found = grid(100, 20.0, 1)
    assert found.frontier() == 99
    assert not np.isnan(found.rows[:, :, 0]).any()


@pytest.mark.parametrize("is_over", [False, True])
def test_a_rank_without_rows_is_waited_for_while_more_may_come(is_over: bool) -> None:
    found = grid(50, 0.2, 50)
    assert found.frontier() == 0
    found.is_over = is_over
    found.advance()
    assert len(found.first) == (50 if is_over else 0)


@pytest.mark.parametrize(("span_s", "late_rows"), [(0.2, 80), (20.0, 5)])
def test_a_rank_that_lags_far_behind_is_not_waited_for(span_s: float, late_rows: int) -> None:
    found = grid(200, span_s, late_rows)
    assert found.frontier() == 200
    assert np.isnan(found.rows[:, 2, 0]).any()
    assert not np.isnan(found.rows[:, :2, 0]).any()


def test_an_unknown_phase_is_unknown_in_its_steps_only() -> None:
    """Of a rank whose rows have other borders than those of the first one."""
    found = Grid()
    for rank, length in enumerate((2, 3)):
        found.add_rank(rank)
        first = np.arange(0, 30, length)
        columns = {name: np.zeros(len(first), np.int64) for name in StepRows.__struct_fields__}
        forward = np.full(len(first), length * 100)
        forward[4 * rank] = UNKNOWN if rank else forward[0]  # steps 12 to 14
        found.add(rank, columns | {"first_step": first, "num_steps": np.full(len(first), length),
                                   "span_ns": np.full(len(first), length * S), "forward_ns": forward,
                                   "device_ns": np.full(len(first), UNKNOWN)})
    found.advance()
    forward = found.rows[:, 1, FIELDS.index("forward_ns")]
    assert found.first[np.isnan(forward)].tolist() == [12, 14]
    assert forward[~np.isnan(forward)].tolist() == [100] * 13
    assert found.rows[:, :, 0] == pytest.approx(S)
