"""Rhythms of steps, with what is known of the steps between."""

from __future__ import annotations

import numpy as np
import pytest

from distprof.merge.watch.rhythm import period

GOLDEN = (5 ** 0.5 - 1) / 2


@pytest.mark.parametrize("length", [7, 100, 1234])
def test_equal_distances(length: int) -> None:
    assert period(np.arange(8) * length + 17) == length


def test_a_rhythm_that_some_are_missing_of() -> None:
    assert period(np.delete(np.arange(20) * 50 + 3, [4, 5, 11])) == 50


@pytest.mark.parametrize("length", [3, 8, 10, 25])
def test_of_sampled_steps_the_shortest_that_parts_them_from_the_others(length: int) -> None:
    steps = np.arange(20_000)
    steps = steps[(steps * GOLDEN) % 1 < 1 / 64]
    hit = steps % length == 2
    assert period(steps[hit], steps[~hit]) == length


def test_random_steps_have_none() -> None:
    draw = np.random.default_rng(3)
    found = [period(np.unique(draw.integers(0, 10_000, 30))) for _ in range(10)]
    assert found == [None] * 10


def test_four_are_too_few() -> None:
    assert period([0, 10, 20, 30]) is None


@pytest.mark.parametrize("number", [5, 6, 8])
def test_a_few_random_steps_have_no_period(number):
    """Of which most steps have the event; short ones of which few have it fit by chance, and callers ignore them."""
    draw = np.random.default_rng(number)
    several = [np.sort(draw.choice(70_000, number, replace=False)) for _ in range(60)]
    found = [(steps, period(steps)) for steps in several]
    assert not [one for steps, one in found if one is not None and number >= 0.75 * (np.ptp(steps) / one + 1)]
    exact = 4000 + 703 * np.arange(number)
    assert period(exact) == pytest.approx(703, rel=0.01)
