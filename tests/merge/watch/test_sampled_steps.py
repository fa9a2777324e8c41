"""Own times and moving times of steps that were reckoned by hand."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
import pytest

from distprof.contract.watch import UNKNOWN, SampledStep
from distprof.merge.watch.pieces import Sample
from distprof.merge.watch.sampled_steps import SampledSteps, winsorized, winsorized_among_neighbours

PAIR = [("tp", [0, 1]), ("alone", [0])]


def sample(step: int, span: int, calls: list[tuple[int, int, int, int]]) -> Sample:
    """Calls as group, arrival, duration and time stood still."""
    group, arrived, took, blocked = (list(values) for values in zip(*calls, strict=True)) if calls else ([],) * 4
    return Sample(groups=PAIR, names=["all_reduce"], step=SampledStep(
        step=step, start_ns=0, span_ns=span, num_calls=len(calls), group=group, op=[0] * len(calls),
        arrived_ns=arrived, took_ns=took, blocked_ns=blocked))


def taken(*ranks: list[Sample]) -> SampledSteps:
    """All that is complete."""
    found = SampledSteps()
    for rank, samples in enumerate(ranks):
        found.add_rank(rank)
        found.add(rank, samples)
    found.advance(1000, set(range(len(ranks))))
    return found


def test_the_late_rank_has_more_time_of_its_own_and_the_call_moves_from_its_arrival() -> None:
    found = taken([sample(3, 100, [(0, 40, 30, 30)])], [sample(3, 100, [(0, 65, 5, 5)])])
    assert found.own.tolist() == [[70, 95]]
    assert found.moving.tolist() == [[5]]
    assert found.groups == [("tp", (0, 1), "all_reduce")]
    assert found.first.tolist() == [[40, 65]]
    assert found.after.tolist() == [[30, 30]]


def test_a_call_during_which_others_are_issued_is_not_waited_for() -> None:
    calls = [(0, 10, 50, UNKNOWN), (0, 20, 45, UNKNOWN)]
    found = taken([sample(1, 100, calls)], [sample(1, 100, calls)])
    assert found.own.tolist() == [[55, 55]]  # of both calls only the second can have held it up


def test_only_what_it_stood_still_counts() -> None:
    found = taken([sample(1, 100, [(0, 10, 50, 20)])], [sample(1, 100, [(0, 30, 30, 0)])])
    assert found.own.tolist() == [[80, 100]]


def test_calls_of_a_group_that_ranks_count_differently_are_not_matched() -> None:
    found = taken([sample(1, 100, [(0, 10, 50, 50), (0, 70, 5, 5)])], [sample(1, 100, [(0, 30, 30, 30)])])
    assert not found.moving.size
    assert found.own.tolist() == [[45, 70]]


def test_a_step_that_a_rank_did_not_sample_is_left_out() -> None:
    found = taken([sample(1, 100, []), sample(2, 100, [])], [sample(2, 100, [])])
    assert found.step.tolist() == [2]


def test_a_step_of_which_only_the_first_calls_were_logged_is_left_out() -> None:
    cut = sample(1, 100, [(0, 10, 50, 50)])
    cut = replace(cut, step=msgspec.structs.replace(cut.step, num_calls=70))
    found = taken([cut, sample(2, 100, [])], [cut, sample(2, 100, [])])
    assert found.step.tolist() == [2]


def test_a_step_that_a_device_had_not_reached_is_left_out() -> None:
    late = sample(1, 100, [(0, 10, 50, 50), (0, UNKNOWN, UNKNOWN, UNKNOWN)])
    found = taken([late, sample(2, 100, [])], [sample(1, 100, [(0, 10, 50, 50)] * 2), sample(2, 100, [])])
    assert found.step.tolist() == [2]


def test_ranks_that_do_the_same_are_peers() -> None:
    both, one = [(0, 10, 50, 50)], [(0, 10, 50, 50), (1, 70, 5, 5)]
    found = taken([sample(1, 100, one)], [sample(1, 100, both)])
    assert found.kind[0] != found.kind[1]


def test_an_outlier_counts_as_five_deviations() -> None:
    recent = np.random.default_rng(1).normal(100, 2, (31, 3))
    found = winsorized(np.array([100.0, 500.0, 101.0]), recent)
    assert found[1] == pytest.approx(110, abs=7)
    assert found[[0, 2]].tolist() == [100, 101]
    assert winsorized(np.array([100.0, 500.0]), recent[:7, :2]).tolist() == [100, 500]


def test_an_outlier_of_a_rank_shows_where_the_work_of_all_varies() -> None:
    draw = np.random.default_rng(2)
    recent = 100 * np.exp(draw.normal(0, 0.3, (31, 1))) + draw.normal(0, 1, (31, 4))
    found = winsorized(np.array([150.0, 151.0, 150.0, 190.0]), recent)
    assert found[:3].tolist() == [150, 151, 150]
    assert found[3] == pytest.approx(155, abs=3)


def test_an_outlier_of_all_ranks_and_a_rank_that_is_not_there() -> None:
    recent = np.random.default_rng(3).normal(100, 2, (31, 3))
    recent[:, 2] = np.nan
    found = winsorized(np.array([300.0, 301.0, np.nan]), recent)
    assert found[:2] == pytest.approx([111, 112], abs=6) and np.isnan(found[2])


@pytest.mark.parametrize("outlier", [0, 1, 4, 7])
def test_an_outlier_among_the_first_steps_is_clipped_and_a_level_that_changes_there_is_not(outlier: int) -> None:
    """Rank 0 is twice as slow from the fourth sampled step on, and rank 1 six times as slow in a single step."""
    noise = np.random.default_rng(3).integers(-10, 10, (2, 20))
    own = 1000 + noise + np.stack([1000 * (np.arange(20) >= 3), 5000 * (np.arange(20) == outlier)])
    found = SampledSteps()
    for rank in range(2):
        found.add_rank(rank)
    for step in range(20):  # as they come
        for rank in range(2):
            found.add(rank, [sample(step, int(own[rank, step]), [])])
        found.advance(step + 1, {0, 1})
    assert found.calm[:8, 0] == pytest.approx(own[0, :8], abs=50)
    assert found.calm[outlier, 1] == pytest.approx(1000, abs=150)


def test_a_rank_that_came_later_keeps_its_first_steps() -> None:
    own = np.array([[1000.0, np.nan]] * 3 + [[1010.0, 990.0]] * 6)
    assert winsorized_among_neighbours(own).tolist() == pytest.approx(own[:-1], nan_ok=True)
