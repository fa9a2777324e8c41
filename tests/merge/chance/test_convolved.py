"""Chance among thousands of ranks, against all draws there are, and against deals."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from distprof.merge.chance.convolved import LEAST, tail
from distprof.merge.chance.significance import chance, chance_of_any


@pytest.mark.parametrize("draw", ["exponential", "standard_cauchy", "standard_normal"])
def test_a_tail_is_that_of_all_draws(draw):
    values = getattr(np.random.default_rng(1), draw)(size=(5, 6))
    every = np.array([np.mean(one) for one in itertools.product(*values.T)])
    for mean in np.quantile(every, [0.1, 0.5, 0.9, 0.99]):
        near = 1e-3 * np.ptp(every)
        low, high = ((every >= mean + by).mean() for by in (near, -near))
        assert low - 1e-9 <= tail(values, np.array([mean]))[0] <= high + 1e-9


def test_what_no_draw_reaches_is_as_unlikely_as_can_be_told():
    values = np.random.default_rng(0).random((100, 24))
    assert tail(values, np.array([1.1]))[0] == LEAST and tail(values, np.array([0.0]))[0] == 1
    assert tail(np.ones((4, 5)), np.array([1.0, 2.0])).tolist() == [1.0, LEAST]


@pytest.mark.parametrize("by", [0.0, 0.6, 0.75])
def test_it_is_the_chance_that_deals_show(by):
    """Where few ranks are compared, both can be had."""
    values = np.random.default_rng(3).exponential(1, (12, 20))
    values[4] += by
    found, dealt = chance_of_any(values, [4], 12)[0], chance(values[:, :, None], 4, 0)
    assert dealt / 2 - 0.002 <= found <= 2 * dealt + 0.002


@pytest.mark.long
def test_of_many_equal_ranks_with_heavy_tails_none_stands_out():
    named = 0
    for seed in range(100):
        values = np.random.default_rng(seed).pareto(1.5, (256, 20))
        named += (chance_of_any(values, np.arange(256), 256) <= 0.01).any()
    assert named <= 4, "1 is expected"


def test_one_that_is_always_late_shows_beside_some_that_are_once_very_late():
    values = np.random.default_rng(0).exponential(0.1, (1024, 24))
    values[7] += 1
    values[np.arange(24), np.arange(24)] += 500
    assert chance_of_any(values, [7], 1024)[0] < 1e-3
