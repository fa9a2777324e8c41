"""Whatever the mesh, the clocks and the delays of a job: files of hosts tell what the tables of ranks tell."""

from __future__ import annotations

import tempfile
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distprof.merge.cost.choice import Choice
from distprof.merge.cost.measured_run import measured_run
from distprof.merge.run import recorded
from distprof.merge.run.open_run import open_run
from distprof.merge.totals.findings import findings_of
from distprof.merge.totals.many_ranks import ManyRanks
from distprof.merge.totals.recorded_tables import read_tables
from distprof.merge.totals.summary import reduce
from support.many_ranks import FEW_STEPS, PipelinedJob, Plant, write

pytestmark = pytest.mark.long
OF_TIMELINES = ("communication", "clock", "remarks")


@st.composite
def jobs(draw) -> PipelinedJob:
    pp, dp, tp = (draw(st.integers(1, 3)) for _ in range(3))
    tp += pp * dp * tp == 1  # one rank is not many
    ranks = st.integers(0, pp * dp * tp - 1)
    plants = st.lists(st.builds(Plant, ranks, st.sampled_from(("forward", "backward", "data", "optimizer")),
                                st.integers(0, 1), st.integers(1, 10**8)), max_size=2)
    return PipelinedJob(pp=pp, dp=dp, tp=tp, layers=draw(st.integers(1, 3)), microbatches=draw(st.integers(1, 3)),
                        jitter=draw(st.sampled_from((0.0, 0.02, 1.0))), plants=tuple(draw(plants)),
                        seed=draw(st.integers(0, 2**32 - 1)))


@pytest.mark.core
@settings(max_examples=settings.default.max_examples // 4)
@given(job=jobs(), clocks_ns=st.sampled_from((0, 50_000, 10**9)), is_known=st.booleans())
def test_totals_and_counts(job, clocks_ns, is_known):
    with tempfile.TemporaryDirectory() as folder, patch.object(recorded, "MANY_RANKS", 1):
        run = Path(folder) / "run"
        write(run, job, passes=FEW_STEPS, full=True, clocks_ns=clocks_ns, is_known=is_known)
        opened = open_run(run)
        tables = read_tables(opened)
        exact = reduce(measured_run(opened).noting(tables.problems), tables)[0]
        by_summaries = ManyRanks(run=open_run(run, by_host=True)).summary()
        assert {key: value for key, value in by_summaries.items() if key not in OF_TIMELINES} == {
            key: value for key, value in exact.items() if key not in OF_TIMELINES}
        mine, theirs = (findings_of(run, choice=Choice(), of_rows=one) for one in (False, True))
        assert mine.coverage == theirs.coverage
        assert [*sorted(mine.kinds, key=str)] == [*sorted(theirs.kinds, key=str)]
