"""Jobs of real processes: what their summaries tell is what their tables tell."""

from __future__ import annotations

import polars as pl
import pytest

from distprof.merge.cost.choice import Choice
from distprof.merge.cost.measured_run import measured_run
from distprof.merge.run import recorded
from distprof.merge.run.open_run import open_run
from distprof.merge.totals.level_totals import level_modules, level_totals
from distprof.merge.totals.read_findings import findings_of
from distprof.merge.totals.recorded_tables import read_tables
from distprof.merge.totals.summary import reduce

RESTS_ON_CALLS = ("communication", "clock", "remarks", "read")


@pytest.fixture(scope="module", params=["ddp", "tp", "sharded", "two_late_ranks"])
def run(request, recordings):
    return request.getfixturevalue(request.param)


@pytest.fixture
def opened(run, monkeypatch):
    """By its summaries, and by its tables."""
    monkeypatch.setattr(recorded, "MANY_RANKS", 1)
    by_summaries = open_run(run, exact=False)
    assert by_summaries.summaries is not None
    return by_summaries, open_run(run)


def test_totals(opened):
    by_summaries, exact = opened
    tables = read_tables(exact)
    expected = reduce(measured_run(exact).noting(tables.problems), tables)[0]
    found = level_totals(by_summaries).summary()
    assert {key: value for key, value in found.items() if key not in RESTS_ON_CALLS} == {
        key: value for key, value in expected.items() if key not in RESTS_ON_CALLS}


def test_modules(opened):
    by_summaries, exact = opened
    assert level_modules(by_summaries).equals(read_tables(exact).modules)


def test_calls(run, opened):
    mine, theirs = (findings_of(run, choice=Choice(), exact=one) for one in (False, True))
    assert (mine.coverage.num_collectives, mine.coverage.num_complete) == (
        theirs.coverage.num_collectives, theirs.coverage.num_complete)
    counts = [sorted((one.op, one.group, one.num_ranks or 0, one.num_calls, one.min_bytes, one.max_bytes)
                     for one in found.kinds) for found in (mine, theirs)]
    assert counts[0] == counts[1]


def test_the_split_of_steps_is_near_that_of_timelines(run, opened):
    """A rank is known to wait as long; of two kinds of it kept calls tell only about how much each is."""
    mine, theirs = (findings_of(run, choice=Choice(), exact=one).analysis for one in (False, True))
    assert mine is not None and theirs is not None
    ratios = [_exposed(found.breakdown) for found in (mine, theirs)]
    assert ratios[0] == pytest.approx(ratios[1], abs=0.1)


def _exposed(breakdown: pl.DataFrame) -> float:
    """Share of a step that is communication in which nothing is computed."""
    parts = breakdown["waiting_ns"].sum() + breakdown["moving_ns"].sum()
    return parts / breakdown["duration_ns"].sum()
