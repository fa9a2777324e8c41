"""Changes of the mean in series whose truth is known."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from distprof.merge.watch import shifts
from distprof.merge.watch.shifts import Series, filled


def remembering(number: int, keep: float, seed: int) -> Any:
    """AR(1) of variance 1."""
    noise = np.random.default_rng(seed).normal(0, np.sqrt(1 - keep * keep), number)
    found, now = np.empty(number), 0.0
    for place, value in enumerate(noise):
        found[place] = now = keep * now + value
    return found


def test_noise_of_independent_values_is_their_standard_deviation() -> None:
    values = np.random.default_rng(1).normal(5, 2, (4000, 8))
    assert shifts.noise(values, np.ones(4000)) == pytest.approx(2, rel=0.1)


def test_noise_that_remembers_counts_as_in_means_of_long_stretches() -> None:
    values = np.stack([remembering(8000, 0.7, seed) for seed in range(8)], axis=1)
    # the variance of long means of AR(1) is that of independent values times (1 + keep) / (1 - keep)
    truth = ((1 + 0.7) / (1 - 0.7)) ** 0.5
    assert shifts.noise(values, np.ones(8000)) == pytest.approx(truth, rel=0.25)


def test_a_change_is_no_noise() -> None:
    values = np.random.default_rng(2).normal(0, 1, (300, 4))
    before = shifts.noise(values, np.ones(300))
    values[150:] += 20
    assert shifts.noise(values, np.ones(300)) == pytest.approx(before, rel=0.3)


def test_segments_are_those_that_were_planted() -> None:
    values = np.random.default_rng(3).normal(0, 1, 600)
    values[200:260] += 3
    values[400:] += 2
    found = shifts.segments(values, np.ones(600), 1.0)
    assert [part.begin for part in found] == pytest.approx([0, 200, 260, 400], abs=3)
    assert [part.mean for part in found] == pytest.approx([0, 3, 0, 2], abs=0.5)


@pytest.mark.parametrize("seed", range(5))
def test_noise_alone_has_one_segment(seed: int) -> None:
    values = np.stack([remembering(2000, 0.5, 100 * seed + one) for one in range(4)], axis=1)
    sigma = shifts.noise(values, np.ones(2000))
    assert [len(shifts.segments(values[:, one], np.ones(2000), sigma[one])) for one in range(4)] == [1, 1, 1, 1]


def test_a_joined_value_counts_as_the_values_it_stands_for() -> None:
    fine = np.random.default_rng(4).normal(0, 1, 400)
    fine[200:] += 2
    joined = np.append(fine[:100].reshape(25, 4).mean(axis=1), fine[100:])
    weight = np.append(np.full(25, 4.0), np.ones(300))
    whole = shifts.strongest(fine[:, None], np.ones(400), np.ones(1))
    part = shifts.strongest(joined[:, None], weight, np.ones(1))
    assert part[0] == pytest.approx(whole[0], rel=1e-6)
    assert part[1] + 75 == whole[1]


def test_the_turning_point_needs_both_levels_alone() -> None:
    signals = np.array([[0, 10], [0, 10], [0, 50], [1, 12], [1, 12], [1, 12]], float)
    at = shifts.turning_point(signals, np.array([0.0, 10.0]), np.array([1.0, 12.0]), np.array([0.1, 0.5]))
    assert at == 3


def test_a_rank_and_the_job_together_are_surer_than_each() -> None:
    draw = np.random.default_rng(5)
    job, ranks = draw.normal(0, 1, (200, 1)), draw.normal(0, 1, (200, 3))
    job[120:] += 1
    ranks[120:, 1] += 1
    series = [Series(values=values, weight=np.ones(200), step=np.arange(200), sigma=np.ones(values.shape[1]))
              for values in (job, ranks)]
    strength, where = shifts.joint(*series)
    alone = shifts.strongest(ranks, np.ones(200), np.ones(3))[0]
    assert strength[1] > alone[1]
    assert where[1] == pytest.approx(120, abs=8)
    assert strength[[0, 2]].max() < 6


def test_what_other_series_explain_is_taken_away_and_a_jump_stays() -> None:
    draw = np.random.default_rng(4)
    load, noise = np.cumsum(draw.normal(0, 1, (400, 2)), axis=0), draw.normal(0, 0.3, 400)
    jump = np.where(np.arange(400) >= 250, 20.0, 0.0)
    left = shifts.adjusted(3 * load[:, 0] - load[:, 1] + noise + jump, load)
    assert np.std(left - jump) < 1 < 5 < np.std(load)
    few = np.arange(5.0)
    assert shifts.adjusted(few, few[:, None] * 2).tolist() == few.tolist()


def test_a_series_without_values_is_like_the_others():
    unknown = np.nan
    assert filled(np.array([[1.0, unknown], [3.0, unknown]])).tolist() == [[1, 1], [3, 3]]
    assert filled(np.array([[1.0, 5.0], [3.0, unknown]])).tolist() == [[1, 5], [3, 6]]
