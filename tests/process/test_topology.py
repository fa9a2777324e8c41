"""Topologies from given sizes, over many values."""

from __future__ import annotations

from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distprof.contract.mesh import GIVEN_AXES, MODEL_PARALLEL
from distprof.errors import UsageError
from distprof.process.live_topology import _of_wrappers
from distprof.process.topology import from_sizes, requested


@given(st.lists(st.integers(1, 4), min_size=5, max_size=5))
def test_sizes_give_every_rank_a_place_of_its_own(sizes):
    dp_size, *others = sizes
    given_sizes = dict(zip(MODEL_PARALLEL, others, strict=True))
    world_size = prod(sizes)
    ranks = [from_sizes(given_sizes, rank=rank, world_size=world_size) for rank in range(world_size)]
    assert all(one.mp_size == prod(others) and one.dp_size == dp_size for one in ranks)
    assert len({tuple(one.coordinates.values()) for one in ranks}) == world_size
    assert list(ranks[0].sizes) == list(GIVEN_AXES)
    if given_sizes["tp"] > 1:
        assert ranks[1].coordinates["tp"] == 1, "neighbours in rank are neighbours in tp"


def test_sizes_that_do_not_divide_the_world_are_refused():
    with pytest.raises(UsageError, match="must divide 4 ranks, but tp 3 = 3"):
        from_sizes({"tp": 3}, rank=0, world_size=4)
    with pytest.raises(UsageError, match="must make up 4 ranks, but dp 2 = 2"):
        from_sizes({"dp": 2}, rank=0, world_size=4)
    assert from_sizes({"dp": 2, "cp": 2}, rank=3, world_size=4).sizes == {"dp": 2, "cp": 2}


@pytest.mark.parametrize(("known", "dp"), [
    ({"tp": 2}, [0, 0, 1, 1, 2, 2, 3, 3]), ({"cp": 2, "tp": 2}, [0] * 4 + [1] * 4), ({}, list(range(8)))])
def test_ranks_that_a_mesh_does_not_tell_apart_are_data_parallel_and_far_from_each_other(known, dp):
    """Ranks of a model-parallel group are neighbours."""
    for rank in range(8):
        place = from_sizes(known, rank=rank % prod(known.values()), world_size=prod(known.values()))
        found = _of_wrappers(place if known else None, [], rank=rank, world_size=8)
        assert found.sizes == {"dp": 8 // prod(known.values()), **known} and found.basis == "assumed"
        assert found.coordinates["dp"] == dp[rank]
        assert [found.coordinates[axis] for axis in known] == [place.coordinates[axis] for axis in known]


def test_requested_sizes_come_from_the_environment():
    assert requested({"DISTPROF_TP": "2", "DISTPROF_PP": "3", "PATH": "x"}) == {"pp": 3, "tp": 2}
    with pytest.raises(UsageError, match="DISTPROF_TP must be a number above 0, not 'two'"):
        requested({"DISTPROF_TP": "two"})
