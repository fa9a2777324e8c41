"""Step plans and topologies: pure logic, over many values."""

from __future__ import annotations

from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distprof.contract.mesh import AXES, MODEL_PARALLEL
from distprof.errors import UsageError
from distprof.process.topology import axis_of, from_sizes, requested
from distprof.recording.plan import StepPlan

PLANS = st.builds(StepPlan, wait=st.integers(0, 9), count=st.integers(0, 9), time=st.integers(0, 9),
                  trace=st.integers(1, 9))


@given(PLANS)
def test_a_plan_reads_what_it_writes_and_gives_each_pass_its_steps_in_order(plan):
    assert StepPlan.parse(str(plan)) == plan
    passes = [plan.pass_of(step) for step in range(plan.num_steps + 2)]
    expected = ["wait"] * plan.wait + ["count"] * plan.count + ["time"] * plan.time + ["trace"] * plan.trace
    assert passes == [*expected, None, None]


def test_what_is_not_named_keeps_its_default():
    assert StepPlan.parse("time=9") == StepPlan(time=9)
    assert StepPlan.parse(" wait=1 , trace=0 ") == StepPlan(wait=1, trace=0)


@pytest.mark.parametrize("text", ["wiat=1", "wait", "wait=-1", "wait=1.5", "count=0,time=0,trace=0", "=3"])
def test_a_wrong_plan_is_a_usage_error_with_a_hint(text):
    with pytest.raises(UsageError) as caught:
        StepPlan.parse(text)
    assert caught.value.hint and caught.value.exit_code == 2


@given(st.lists(st.integers(1, 4), min_size=5, max_size=5))
def test_sizes_give_every_rank_a_place_of_its_own(sizes):
    dp_size, *others = sizes
    given_sizes = dict(zip(MODEL_PARALLEL, others, strict=True))
    world_size = prod(sizes)
    ranks = [from_sizes(given_sizes, rank=rank, world_size=world_size) for rank in range(world_size)]
    assert all(one.mp_size == prod(others) and one.dp_size == dp_size for one in ranks)
    assert len({tuple(one.coordinates.values()) for one in ranks}) == world_size
    assert list(ranks[0].sizes) == list(AXES)
    if given_sizes["tp"] > 1:
        assert ranks[1].coordinates["tp"] == 1, "neighbours in rank are neighbours in tp"


def test_sizes_that_do_not_divide_the_world_are_refused():
    with pytest.raises(UsageError, match="divide 4 ranks, found tp 3 = 3"):
        from_sizes({"tp": 3}, rank=0, world_size=4)


def test_requested_sizes_come_from_the_environment():
    assert requested({"DISTPROF_TP": "2", "DISTPROF_PP": "3", "PATH": "x"}) == {"pp": 3, "tp": 2}
    with pytest.raises(UsageError, match="DISTPROF_TP, found 'two'"):
        requested({"DISTPROF_TP": "two"})


@pytest.mark.parametrize(("name", "axis"), [
    ("dp", "dp"), ("dp_shard", "dp"), ("dp_replicate", "dp"), ("fsdp", "dp"), ("tp", "tp"), ("tensor", "tp"),
    ("pp", "pp"), ("cp", "cp"), ("ep", "ep"), ("Model", "tp"), ("foo", None)])
def test_mesh_dimensions_by_their_usual_names(name, axis):
    assert axis_of(name) == axis
