"""Step plans, over many values."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distprof.errors import UsageError
from distprof.recording.plan import PlanProgress, StepPlan

PLANS = st.builds(StepPlan, wait=st.integers(0, 9), count=st.integers(0, 9), time=st.integers(0, 9),
                  trace=st.integers(1, 9))


@given(PLANS)
def test_a_plan_reads_what_it_writes_and_gives_each_pass_its_steps_in_order(plan):
    assert StepPlan.parse(str(plan)) == plan
    passes = [plan.pass_of(step) for step in range(plan.num_steps + 2)]
    expected = [name for name in ("wait", "count", "time", "trace") for _ in range(plan.steps[name])]
    assert passes == [*expected, None, None]


@pytest.mark.parametrize(("ranks", "steps"), [(1, 8), (2, 32), (3, 32), (4, 20), (512, 20)])
def test_the_arrivals_pass_has_more_steps_with_fewer_ranks_and_a_few_with_one(ranks, steps):
    plan = StepPlan.parse("wait=1")
    assert plan.for_ranks(ranks).steps["arrivals"] == steps and plan.num_required == 1 + 1 + 3 + 6
    assert plan.for_ranks(ranks).pass_of(11) == ("arrivals" if steps else None)
    assert StepPlan.parse(str(plan.for_ranks(ranks))).for_ranks(7) == plan.for_ranks(ranks)


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_a_number_of_arrivals_that_is_given_wins(ranks):
    assert StepPlan.parse("arrivals=5").for_ranks(ranks) == StepPlan(arrivals=5).for_ranks(ranks)
    assert StepPlan.parse("arrivals=0").for_ranks(ranks).pass_of(12) is None
    assert StepPlan(count=0, time=0, trace=0, arrivals=3).for_ranks(ranks).num_steps == 5


def test_what_is_not_named_keeps_its_default():
    assert StepPlan.parse("time=9") == StepPlan(time=9)
    assert StepPlan.parse(" wait=1 , trace=0 ") == StepPlan(wait=1, trace=0)


@pytest.mark.parametrize("text", ["wiat=1", "wait", "wait=-1", "wait=1.5", "count=0,time=0,trace=0", "=3"])
def test_a_wrong_plan_is_a_usage_error_with_a_hint(text):
    with pytest.raises(UsageError) as caught:
        StepPlan.parse(text)
    assert caught.value.hint and caught.value.exit_code == 2


def walked(plan: StepPlan, paused: set[int], *, on_all: bool) -> tuple[Counter[str], Counter[str]]:
    """Pass -> steps of which this rank recorded something, and those that it counts as missed."""
    progress = PlanProgress(lambda: plan, tell=lambda *_: None, all_told=lambda _: on_all)
    recorded, step = Counter[str](), 0
    while (running := progress.pass_of(step)) is not None:
        if step in paused:
            progress.pause(step)
        else:
            recorded[running] += 1
        progress.step_ended(step)
        step += 1
    return recorded, progress.missed


@pytest.mark.parametrize("on_all", [False, True])
@pytest.mark.parametrize("name", ["trace", "memory"])
def test_the_rest_of_a_timeline_that_the_script_s_own_profiler_ends_is_missed(name, on_all):
    plan = StepPlan(**{"wait": 1, "count": 0, "time": 0, "arrivals": 0, name: 6}).for_ranks(2)
    recorded, lost = walked(plan, {3}, on_all=on_all)
    assert (recorded[name], lost) == (2, {name: 4})


@given(PLANS.map(lambda plan: plan.for_ranks(4)), st.sets(st.integers(0, 30)), st.booleans())
def test_each_step_of_each_pass_is_recorded_or_counts_as_missed(plan, paused, on_all):
    recorded, missed = walked(plan, paused, on_all=on_all)
    for name in set(plan.steps) - {"wait"}:
        assert recorded[name] + missed[name] == plan.steps[name], name
