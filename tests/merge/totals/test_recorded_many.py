"""Jobs of real processes: what the files of their hosts tell is what their tables tell."""

from __future__ import annotations

import polars as pl
import pytest

from distprof.contract.tables import COLLECTIVES
from distprof.merge.cost.choice import Choice
from distprof.merge.cost.measured_run import measured_run
from distprof.merge.run import recorded
from distprof.merge.run.open_run import open_run
from distprof.merge.run.tables import read_table
from distprof.merge.totals.findings import findings_of
from distprof.merge.totals.many_ranks import ManyRanks
from distprof.merge.totals.modules import read_modules
from distprof.merge.totals.recorded_tables import read_tables
from distprof.merge.totals.summary import reduce

OF_TIMELINES = ("communication", "clock", "remarks")


@pytest.fixture(scope="module", params=["ddp", "tp", "sharded", "two_late_ranks"])
def run(request, recordings):
    return request.getfixturevalue(request.param)


@pytest.fixture
def opened(run, monkeypatch):
    """By its summaries, and by its tables."""
    monkeypatch.setattr(recorded, "MANY_RANKS", 1)
    by_summaries = open_run(run, by_host=True)
    assert by_summaries.by_host
    return by_summaries, open_run(run)


def test_totals(opened):
    by_summaries, exact = opened
    tables = read_tables(exact)
    expected = reduce(measured_run(exact).noting(tables.problems), tables)[0]
    found = ManyRanks(run=by_summaries).summary()
    assert {key: value for key, value in found.items() if key not in OF_TIMELINES} == {
        key: value for key, value in expected.items() if key not in OF_TIMELINES}


def test_modules(opened):
    by_summaries, exact = opened
    assert read_modules(by_summaries).rows.equals(read_tables(exact).modules)


def test_calls(run, opened):
    mine, theirs = (findings_of(run, choice=Choice(), of_rows=one) for one in (False, True))
    assert mine.coverage == theirs.coverage
    assert [*sorted(mine.kinds, key=str)] == [*sorted(theirs.kinds, key=str)]


def test_rows(opened):
    mine, theirs = (read_table(one, COLLECTIVES).rows.drop("split_bytes") for one in opened)
    different = [name for name in mine.columns if not mine[name].equals(theirs[name])]
    assert not different, [mine.select(name).with_columns(other=theirs[name]).filter(pl.col(name).ne_missing(
        pl.col("other"))) for name in different]


def test_the_split_of_steps_is_near_that_of_timelines(run, opened):
    """Timelines show waits that no recorder saw."""
    mine, theirs = (findings_of(run, choice=Choice(), of_rows=one).analysis for one in (False, True))
    assert mine is not None and theirs is not None
    ratios = [_exposed(found.breakdown) for found in (mine, theirs)]
    assert ratios[0] == pytest.approx(ratios[1], abs=0.1)


def _exposed(breakdown: pl.DataFrame) -> float:
    """Share of a step that is communication in which nothing is computed."""
    parts = breakdown["waiting_ns"].sum() + breakdown["moving_ns"].sum()
    return parts / breakdown["duration_ns"].sum()
