"""Habit or chance."""

from __future__ import annotations

import math

import numpy as np
import pytest

from distprof.merge.blame.significance import binomial_above, p_values, student_above

NOISES = {
    "exponential": lambda random, shape: random.exponential(1.0, shape),
    "heavy tails": lambda random, shape: random.pareto(1.2, shape),
    "one of all": lambda random, shape: np.eye(shape[0])[random.integers(shape[0], size=shape[1])].T,
    "mostly nothing": lambda random, shape: random.exponential(1.0, shape) * (random.random(shape) < 0.2),
}


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 5, 9, 30])
def test_student_is_the_integral_of_its_density(freedom):
    scale = math.gamma((freedom + 1) / 2) / math.sqrt(freedom * math.pi) / math.gamma(freedom / 2)
    for t in (-3.0, 0.0, 0.5, 2.0, 7.0):
        angles = np.linspace(math.atan(t / math.sqrt(freedom)), math.pi / 2, 200_001)  # x = sqrt(freedom) tan(angle)
        density = scale * math.sqrt(freedom) * np.cos(angles) ** (freedom - 1)
        assert student_above(t, freedom) == pytest.approx(float(np.trapezoid(density, angles)), abs=1e-9)
    assert student_above(math.inf, freedom) == 0 and student_above(-math.inf, freedom) == 1


def test_binomial():
    assert binomial_above(0, 5, 0.25) == pytest.approx(1)
    assert binomial_above(5, 5, 0.25) == pytest.approx(0.25 ** 5)
    assert binomial_above(1, 3, 0.5) == pytest.approx(1 - 0.5 ** 3)


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize(("num_ranks", "num_steps"), [(2, 8), (4, 5), (16, 4)])
@pytest.mark.parametrize(("tries", "most"), [(500, 0.0202), pytest.param(10_000, 0.0123, marks=pytest.mark.stress)])
def test_equal_ranks_rarely_stand_out(noise, num_ranks, num_steps, tries, most):
    """One in a hundred does by chance; `most` is 2.3 deviations of that many tries above."""
    random = np.random.default_rng(1)
    found = [np.nanmin(p_values(NOISES[noise](random, (num_ranks, num_steps)))) <= 0.01 for _ in range(tries)]
    assert sum(found) <= most * len(found)


def test_a_late_rank_stands_out_of_noise():
    random = np.random.default_rng(2)
    others = 0
    for _ in range(300):
        cost = random.exponential(1.0, (4, 5))
        cost[2] += 20
        chances = p_values(cost)
        assert chances[2] <= 0.01
        others += (np.delete(chances, 2) <= 0.01).any()
    assert others <= 6, "0.01 of 300, and what they leave to chance"


def test_so_do_two():
    random = np.random.default_rng(3)
    for _ in range(100):
        cost = random.exponential(1.0, (8, 8))
        cost[2] += 20
        cost[5] += 15
        chances = p_values(cost)
        assert set(np.flatnonzero(chances <= 0.01)) >= {2, 5}


def test_a_rank_that_is_always_worst_stands_out_however_much_that_varies():
    cost = np.ones((4, 6))
    cost[1] = [2, 300, 5, 80, 2, 1000]
    assert p_values(cost)[1] == pytest.approx(2 * 4 * 0.25 ** 6)


def test_too_little_tells_nothing():
    assert np.isnan(p_values(np.ones((1, 9)))).all() and np.isnan(p_values(np.ones((4, 2)))).all()
    assert (p_values(np.zeros((4, 5))) == 1).all() and (p_values(np.ones((4, 5))) == 1).all()
