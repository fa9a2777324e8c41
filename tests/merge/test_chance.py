"""Habit or chance.

Chance among thousands of ranks, against all draws there are, and against deals.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from distprof.arrays import Floats
from distprof.merge import chance as module
from distprof.merge.chance import (
    AS_IS,
    CLIPPED,
    LEAST,
    chance,
    chance_of_any,
    chances,
    median_of_others,
    of_two_looks,
    tail,
)

NOISES = {
    "exponential": lambda random, shape: random.exponential(1.0, shape),
    "heavy tails": lambda random, shape: random.pareto(1.2, shape),
    "one of all": lambda random, shape: np.eye(shape[0])[random.integers(shape[0], size=shape[1])].T,
    "mostly nothing": lambda random, shape: random.exponential(1.0, shape) * (random.random(shape) < 0.2),
}


def chance_of(work, rank: int) -> float:
    """Of a rank, where there is one kind of work."""
    found = chance((work - median_of_others(work))[:, :, None], rank, 0)
    assert found is not None
    return found


def least_chance(work) -> float:
    """Of the rank that is late most, and of that which is late in most steps."""
    return min(chance_of(work, int(np.argmax(typical(work, axis=1)))) for typical in (np.mean, np.median))


@pytest.mark.long
@pytest.mark.parametrize(("tries", "most", "noise", "num_ranks", "num_steps"), [
    (100, 0.04, "heavy tails", 2, 8), (100, 0.04, "one of all", 16, 4),
    *(pytest.param(2000, 0.016, noise, *shape, marks=pytest.mark.stress)
      for noise in NOISES for shape in ((2, 8), (4, 5), (16, 4)))])
def test_equal_ranks_rarely_stand_out(noise, num_ranks, num_steps, tries, most):
    """One in a hundred does by chance; `most` is 2.5 deviations of that many tries above."""
    random = np.random.default_rng(1)
    works = [NOISES[noise](random, (num_ranks, num_steps)) for _ in range(tries)]
    assert np.mean([least_chance(work) <= 0.01 for work in works]) <= most


@pytest.mark.parametrize("alarm", [0.01, 0.05])
@pytest.mark.parametrize("second", [lambda first: 1 - first, lambda first: first, lambda first: (first + 0.5) % 1])
def test_two_looks_raise_no_more_false_alarms_than_one(alarm, second):
    """Each look alone raises one with every probability as often as it says; what they have in common differs."""
    looks = (np.arange(30_000) + 0.5) / 30_000
    found = np.array([of_two_looks(one, second(one)) for one in looks])
    assert (found <= alarm).mean() <= alarm + 1 / len(looks)
    assert max(found) <= 1.0 and of_two_looks(0.3, 0.001) < 0.01 and of_two_looks(0.005, 0.9) < 0.01
    assert (of_two_looks(None, 0.4), of_two_looks(0.4, None), of_two_looks(None, None)) == (0.4, 0.4, None)


@pytest.mark.long
def test_a_late_rank_stands_out_of_noise_and_no_other_does():
    random = np.random.default_rng(2)
    others = 0
    for _ in range(50):
        work = random.exponential(1.0, (4, 5))
        work[2] += 20
        assert chance_of(work, 2) <= 0.01
        others += any(chance_of(work, rank) <= 0.01 for rank in (0, 1, 3))
    assert others == 0


def test_a_rank_that_is_always_worst_stands_out_however_much_that_varies():
    work = np.ones((4, 6))
    work[1] = [20, 300, 50, 80, 200, 100]
    assert chance_of(work, 1) < 3 * 4 * 0.25 ** 6 + 0.001, "of all ways to deal, 4 in 4 ** 6 give one rank all of it"


@pytest.mark.parametrize(("every", "num_steps"), [(3, 16), (4, 20)])
def test_what_is_late_now_and_then_stands_out_over_many_steps(every, num_steps):
    random = np.random.default_rng(3)
    work = random.exponential(1.0, (4, num_steps))
    work[2, ::every] += 20
    assert chance_of(work, 2) <= 0.01


def test_a_rank_that_is_late_twice_does_not_hide_one_that_always_is():
    random = np.random.default_rng(5)
    work = random.normal(4, 0.2, (8, 11))
    work[0] += 0.8
    work[4, [4, 9]] += 9
    assert chance_of(work, 4) > 0.01
    assert chance_of(work, 0) <= 0.01
    assert all(chance_of(work, rank) > 0.01 for rank in (1, 2, 3, 5, 6, 7))


def test_another_kind_of_work_that_varies_more_hides_nothing():
    random = np.random.default_rng(4)
    beyond = np.stack((random.normal(0, 100, (4, 20)), random.normal(0, 1, (4, 20))), axis=2)
    beyond[1, :, 1] += 10
    found = chance(beyond, 1, 1)
    assert found is not None and found <= 0.01


def test_too_little_tells_nothing():
    assert chance(np.ones((1, 9, 1)), 0, 0) is None and chance(np.ones((4, 2, 1)), 0, 0) is None
    assert chance(np.zeros((4, 5, 1)), 0, 0) == 1


@pytest.mark.long
@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize(("tries", "most"), [(100, 0.04), pytest.param(2000, 0.016, marks=pytest.mark.stress)])
def test_equal_ranks_rarely_stand_out_in_any_of_many_kinds(noise, tries, most):
    """Of kinds that differ a thousandfold, and in which a rank has its good and bad steps in common."""
    random = np.random.default_rng(6)
    scale, found = np.logspace(0, 3, 12), []
    for _ in range(tries):
        work = np.stack([NOISES[noise](random, (4, 6)) for _ in scale], axis=2) * scale
        work += random.exponential(1.0, (4, 6, 1)) * scale
        found.append(chances(work - np.median(work, axis=0)).min() <= 0.01)
    assert np.mean(found) <= most


def test_a_rank_that_is_slow_in_a_small_kind_is_found_beside_large_ones():
    random = np.random.default_rng(7)
    work = random.normal(100, 1, (4, 6, 30)) * np.logspace(0, 4, 30)
    work[2, :, 3] *= 1.2
    found = chances(work - np.median(work, axis=0))
    assert found[3] <= 0.01 and (np.delete(found, 3) > 0.01).all()


def test_little_to_compare_has_no_chance():
    assert chances(np.ones((1, 9, 2))) is None and chances(np.ones((4, 2, 2))) is None
    assert chances(np.zeros((4, 5, 2))).tolist() == [1, 1]


@pytest.mark.parametrize("draw", ["exponential", "standard_cauchy", "standard_normal"])
def test_a_tail_is_that_of_all_draws(draw):
    values = getattr(np.random.default_rng(1), draw)(size=(5, 6))
    every = np.array([np.mean(one) for one in itertools.product(*values.T)])
    for mean in np.quantile(every, [0.1, 0.5, 0.9, 0.99]):
        near = 1e-3 * np.ptp(every)
        low, high = ((every >= mean + by).mean() for by in (near, -near))
        assert low - 1e-9 <= tail(values, np.array([mean]))[0] <= high + 1e-9


DRAWS = {
    "normal": lambda random, shape: random.normal(size=shape), "pareto": lambda random, shape: random.pareto(3, shape),
    "exponential": lambda random, shape: random.exponential(size=shape),
    "heavy tails": lambda random, shape: random.pareto(1.5, shape),
    "skewed": lambda random, shape: random.lognormal(0, 2, shape), "one of all": NOISES["one of all"]}


@pytest.mark.parametrize(("noise", "num_steps", "draws"), [
    ("pareto", 2000, 20_000), ("skewed", 200, 40_000),
    *(pytest.param(noise, num_steps, draws, marks=pytest.mark.stress) for noise in DRAWS for num_steps, draws in (
        (20, 1_000_000), (40, 1_000_000), (200, 300_000), (2000, 100_000), (20_000, 20_000)))])
def test_a_tail_over_many_steps_is_that_of_random_draws(noise, num_steps, draws):
    """The bins make it larger, never smaller; 4 deviations of that many draws are allowed for."""
    random = np.random.default_rng(num_steps)
    values, sums = DRAWS[noise](random, (200, num_steps)), np.zeros(draws)
    for column in values.T:
        sums += column[random.integers(len(column), size=draws)]
    means = np.quantile(sums, [0.5, 0.9, 0.99, 0.999]) / num_steps
    drawn = np.array([(sums / num_steps >= mean - 1e-9 * abs(mean)).mean() for mean in means])
    found, noisy = tail(values, means), 4 * np.sqrt(drawn / draws)
    most = 1.15 if num_steps <= 200 else 1.4 if num_steps <= 2000 else 4.0
    assert (found >= 0.97 * drawn - noisy).all() and (found <= most * drawn + noisy).all(), found / drawn


@pytest.mark.parametrize("num_steps", [1023, 1024, 2000])
def test_there_can_be_as_many_steps_as_bins_and_more(monkeypatch, num_steps):
    monkeypatch.setattr(module, "BINS", 1 << 10)
    values = np.random.default_rng(0).exponential(1, (20, num_steps))
    deviation = np.sqrt(values.var(axis=0).sum()) / num_steps
    low, middle, high = tail(values, values.mean() + np.array([-1, 1, 10]) * deviation)
    assert 0.8 < low <= 1 and 0.15 < middle < 0.6 and LEAST <= high < 1e-6, "0.84 and 0.16 if normal"


@pytest.mark.stress
@pytest.mark.parametrize("noise", DRAWS)
@pytest.mark.parametrize(("num_steps", "deals"), [(20, 4000), (40, 4000), (200, 2000), (2000, 500), (20_000, 60)])
def test_of_equal_ranks_over_many_steps_none_stands_out(noise, num_steps, deals):
    """Values that are dealt out to ranks anew have the same tail; 3 deviations of that many deals are allowed for."""
    random = np.random.default_rng(num_steps)
    values = DRAWS[noise](random, (200, num_steps))
    clipped = np.minimum(values, most := np.quantile(values, 1 - 1 / len(values)))
    means, clipped_means = np.empty(deals), np.empty(deals)
    for place in range(deals):
        dealt = random.permuted(values, axis=0)
        means[place] = dealt.mean(axis=1).max()
        clipped_means[place] = np.minimum(dealt, most).mean(axis=1).max()
    found = 200 * np.minimum(tail(values, means) / AS_IS, tail(clipped, clipped_means) / CLIPPED)
    for level in (0.01, 0.1):
        assert (found <= level).mean() <= level + 3 * (level / deals) ** 0.5, level


def test_what_no_draw_reaches_is_as_unlikely_as_can_be_told():
    values = np.random.default_rng(0).random((100, 24))
    assert tail(values, np.array([1.1]))[0] == LEAST and tail(values, np.array([0.0]))[0] == 1
    assert tail(np.ones((4, 5)), np.array([1.0, 2.0])).tolist() == [1.0, LEAST]
    assert tail(np.full((200, 5), 0.1), np.array([0.1, 0.2])).tolist() == [1.0, LEAST], "although their mean is not 0.1"


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


@given(hnp.arrays(np.float64, st.tuples(st.integers(1, 7), st.integers(1, 4)),
                  elements=st.sampled_from([np.nan, 0.0, 1.0, 2.5, 7.0])))
def test_the_median_of_others_leaves_out_what_is_unknown(values: Floats) -> None:
    found = median_of_others(values)
    for row, column in np.ndindex(values.shape):
        others = np.delete(values[:, column], row)
        known = others[~np.isnan(others)]
        assert np.array_equal(found[row, column], np.median(known) if len(known) else np.nan, equal_nan=True)
