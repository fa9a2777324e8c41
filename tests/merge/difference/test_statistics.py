"""Intervals and probabilities of changes: what is noise is called noise, and what is not is found."""

from __future__ import annotations

import math

import numpy as np
import pytest

from distprof.merge.difference.change import LEVEL, between_runs, exact, inverse
from distprof.merge.difference.samples import (
    USUAL,
    block_length,
    correlation,
    mean,
    quantile,
    standard_errors,
    two_sided,
)
from distprof.merge.totals.step_time import middle_half
from support.differing_runs import change_of, changed_ratio, series

QUIET = {"steps": 39, "alike": 0.5, "scatter": 0.03, "between": 0.007}


@pytest.mark.parametrize(("p", "freedom", "known"), [
    (0.05, 1, 12.7062), (0.05, 2, 4.30265), (0.01, 3, 5.84091), (0.01, 4, 4.60409), (0.05, 10, 2.22814),
    (0.001, 30, 3.64596), (0.05, 1000, 1.95996), (0.01, 7.9, 3.49948)])
def test_quantiles_are_those_of_the_tables(p, freedom, known):
    assert quantile(p, freedom) == pytest.approx(known, rel=1e-4)
    assert two_sided(known, freedom) == pytest.approx(p, rel=1e-3)


def test_nothing_is_improbable_without_degrees_of_freedom():
    assert quantile(0.05, 0.5) == math.inf and two_sided(1e9, 0) == 1
    assert two_sided(math.inf, 3) == 0 and two_sided(math.nan, 3) == 1 and two_sided(0, 3) == pytest.approx(1)


def test_steps_that_are_alike_are_drawn_in_blocks():
    random = np.random.default_rng(1)
    alone = correlation(random.normal(size=400))
    alike = correlation(np.convolve(random.normal(size=410), np.ones(11), "valid"))
    assert 0 <= alone < 0.15 and 0.85 < alike < 0.97
    assert block_length(alone, 400) <= 4 < 8 <= block_length(alike, 400) <= 400 // 3
    assert block_length(0.0, 20) == 1 and block_length(0.9, 5) == 1
    assert 0 < correlation(np.ones(20)) < 0.3
    assert correlation(np.arange(4.0)) == USUAL  # too few to tell


def test_the_error_of_a_mean_is_that_of_theory():
    values = np.random.default_rng(2).normal(size=(200, 3))
    errors, freedom = standard_errors(values, mean)
    assert errors == pytest.approx(values.std(axis=0, ddof=1) / math.sqrt(200), rel=0.15)
    assert 100 < freedom <= 199


def test_the_error_of_steps_that_are_alike_is_larger():
    found = [series(np.random.default_rng(seed), steps=200, alike=alike, scatter=0.05, between=0)
             for seed in range(5) for alike in (0.0, 0.8)]
    errors = [standard_errors(one.by_step, mean)[0][0] for one in found]
    assert sum(errors[1::2]) > 2 * sum(errors[::2])  # in theory 3 times
    five = np.random.default_rng(3).normal(size=(5, 1))
    assert standard_errors(five, mean, 0.6)[0] > 1.5 * standard_errors(five, mean, 0.0)[0]
    assert standard_errors(five, mean, 0.6)[1] < standard_errors(five, mean, 0.0)[1] == 4


def test_one_step_says_nothing_about_its_error():
    errors, freedom = standard_errors(np.ones((1, 2)), mean)
    assert np.isinf(errors).all() and freedom == 0
    found = change_of(*[[series(np.random.default_rng(0), steps=1, alike=0, scatter=0, between=0)]] * 2)
    assert found.verdict == "unknown" and found.low is None and found.p is None


def test_a_typical_step_leaves_out_what_happens_now_and_then():
    values = np.array([[10.0], [11], [12], [13], [900]])
    assert middle_half(values) == pytest.approx([12]) and mean(values) == pytest.approx([189.2])


@pytest.mark.long
def test_identical_jobs_do_not_differ():
    assert changed_ratio(150, **QUIET) <= 0.02


@pytest.mark.long
def test_runs_that_measure_how_they_differ_do_not_either():
    """Twice as much as single runs are taken to differ by."""
    kinds = {**QUIET, "between": 0.02}
    assert changed_ratio(150, runs=(3, 3), **kinds) <= 0.03
    assert changed_ratio(150, runs=(3, 3), level=1.2, **kinds) >= 0.9


@pytest.mark.long
def test_a_tenth_more_is_found():
    assert changed_ratio(100, level=1.1, **QUIET) >= 0.9


@pytest.mark.long
def test_the_interval_holds_what_is_true():
    random, inside = np.random.default_rng(5), 0
    for _ in range(150):
        found = change_of([series(random, **QUIET)], [series(random, level=1.08, **QUIET)])
        inside += found.low <= 0.08e6 <= found.high
        assert found.low < found.difference < found.high
        assert (found.p < LEVEL) == (found.low > 0 or found.high < 0)
    assert inside >= 147


def test_of_several_runs_each_counts_once():
    """Steps without any scatter: all there is, is between the runs."""
    sides = [[series(np.random.default_rng(0), steps=9, alike=0, scatter=0, between=0, level=level) for level in levels]
             for levels in ((1.0, 1.1), (1.2, 1.3))]
    found = change_of(*sides)
    assert found.difference == pytest.approx(0.2e6)
    half = quantile(LEVEL, 2) * math.sqrt(0.01e12 / 2)
    assert found.high - found.difference == pytest.approx(half / math.sqrt(1), rel=1e-6)


def test_a_number_that_each_run_has_once():
    assert between_runs([1.0], [2.0]).verdict == "unknown"
    assert between_runs([1.0, 1.1, 0.9], [1.0, 1.05]).verdict == "noise"
    assert between_runs([1.0, 1.01, 0.99], [2.0, 2.01]).verdict == "changed"


def test_what_is_counted_differs_or_does_not():
    assert exact(5, 5).verdict == "same" and exact(5, 6).verdict == "changed"
    assert exact(None, None).verdict == "unknown" and exact(None, 6).verdict == "added"
    assert exact(5, None).verdict == "removed" and exact(0, 3).ratio is None


def test_a_rate_has_the_error_of_its_time():
    time = change_of(*[[series(np.random.default_rng(seed), **QUIET)] for seed in (1, 2)])
    rate = inverse(exact(1e9 / time.base, 1e9 / time.new), time)
    assert rate.low < rate.difference < rate.high and rate.p == time.p
    assert rate.high == pytest.approx(1e9 / (time.base + time.low) - rate.base)
    assert inverse(exact(1, 2), None).verdict == "unknown"


@pytest.mark.stress
@pytest.mark.parametrize("alike", [0.0, 0.5, 0.8])
@pytest.mark.parametrize("between", [0.0, 0.005, 0.01])
def test_three_in_a_hundred_identical_pairs_differ_at_most(alike, between):
    """p < 0.01 is meant to be one in a hundred; 1 % between runs is what is assumed of single ones."""
    for steps in (19, 39, 99):
        found = changed_ratio(1000, steps=steps, alike=alike, scatter=0.05, between=between)
        print(f"{steps} steps, alike {alike}, {between:.1%} between runs: {found:.1%} of pairs changed")
        assert found <= 0.03


@pytest.mark.stress
@pytest.mark.parametrize("runs", [(1, 2), (2, 2), (3, 1), (3, 3), (5, 5)])
@pytest.mark.parametrize("between", [0.0, 0.01, 0.05])
def test_one_in_fifty_identical_sets_differs_at_most(runs, between):
    found = changed_ratio(2000, runs=runs, steps=19, alike=0.5, scatter=0.05, between=between)
    print(f"{runs[0]} against {runs[1]} runs, {between:.1%} between runs: {found:.1%} of sets changed")
    assert found <= 0.02
