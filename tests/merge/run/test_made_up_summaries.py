"""What the benchmark makes up of ranks without tables is what is made of tables."""

from __future__ import annotations

import pytest
from msgspec.structs import asdict

from distprof.summaries.maker import summarise
from support.many_ranks import FEW_STEPS, PipelinedJob, Plant, Recorded, StageCalls, summary_of

JOB = PipelinedJob(pp=3, dp=3, tp=2, layers=3, microbatches=3, plants=(Plant(10, "forward", 1, 900_000),))
STEPS = FEW_STEPS


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """Of ranks of all stages: a summary of its tables, and one without."""
    run = tmp_path_factory.mktemp("run")
    recorded = Recorded(job=JOB, passes=STEPS, kept=range(JOB.num_ranks))
    times = [recorded.add(stages) for stages in JOB.steps(len(STEPS))]
    made = [summarise(recorded.write_rank(run, rank)) for rank in range(JOB.num_ranks)]
    found, per_stage = {}, JOB.dp * JOB.tp
    for stage in range(JOB.pp):
        sketches = StageCalls(recorded, stage, made[stage * per_stage])
        for step, name in enumerate(STEPS):
            if name in ("trace", "arrivals"):
                sketches.add(step, times[step][stage], recorded.windows[step][:2, stage * per_stage:][:, :per_stage])
        sketches.finish()
        for rank in range(stage * per_stage, (stage + 1) * per_stage):
            peer = made[stage * per_stage + rank % JOB.tp]
            found[rank] = made[rank], summary_of(recorded, rank, peer, sketches)
    return found


@pytest.mark.long
@pytest.mark.parametrize("rank", range(0, JOB.num_ranks, 5))
def test_they_are_equal(both, rank):
    of_tables, made_up = both[rank]
    for name in ("about", "steps", "modules", "ops", "parameters", "tables"):
        assert getattr(of_tables, name) == getattr(made_up, name), name
    one, other = of_tables.arrivals, made_up.arrivals
    for name in ("groups", "channels", "sequences", "calls", "cells", "unit_ns", "times", "numbers", "waits"):
        assert asdict(one)[name] == asdict(other)[name], name
