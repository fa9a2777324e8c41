"""Mesh axes: dimensions and process groups are known by the same words."""

from __future__ import annotations

import pytest

from distprof.contract.mesh import (
    GIVEN_AXES,
    MESH_AXES,
    axes_of_dimensions,
    axes_of_groups,
    axis_of_dimension,
    axis_of_group,
    dp_size_of,
    in_rank_order,
    mp_size_of,
    part_of,
)


@pytest.mark.parametrize(("name", "axis"), [
    ("dp", "dp"), ("dp_shard", "dp"), ("dp_replicate", "dp"), ("fsdp", "dp"), ("tp", "tp"), ("tensor", "tp"),
    ("pp", "pp"), ("cp", "cp"), ("ep", "ep"), ("Model", "tp"), ("foo", None)])
def test_a_dimension_belongs_to_an_axis_by_its_first_word(name, axis):
    assert axis_of_dimension(name) == axis


@pytest.mark.parametrize(("axis", "word"), [(axis.name, word) for axis in MESH_AXES for word in axis.words])
def test_a_group_is_known_by_every_word_that_a_dimension_is_known_by(axis, word):
    assert axis_of_dimension(word) == axis_of_dimension(f"{word}_inner") == axis
    assert axis_of_group(f"mesh_{word}") == axis_of_group(f"mesh_{word.upper()}") == axis


def test_no_word_belongs_to_two_axes():
    words = [word for axis in MESH_AXES for word in (*axis.words, axis.megatron_group) if word is not None]
    assert len(words) == len(set(words)) and set(GIVEN_AXES) <= set(words)


@pytest.mark.parametrize(("names", "axes"), [
    (("dp_replicate", "dp_shard"), ["dp_replicate", "dp_shard"]), (("replicate", "shard", "tp"), [
        "dp_replicate", "dp_shard", "tp"]), (("dp", "fsdp"), ["dp_replicate", "dp_shard"]),
    (("shard", "dp"), ["dp_shard", "dp_replicate"]), (("dp_shard", "cp"), ["dp", "cp"]), (("dp", "data"), ["dp", "dp"]),
    (("dp_shard", "fsdp"), ["dp", "dp"]), (("foo", "dp", "shard"), [None, "dp_replicate", "dp_shard"])])
def test_two_data_parallel_dimensions_are_hybrid_sharding_where_one_shards(names, axes):
    assert axes_of_dimensions(names) == axes
    if None not in axes:
        assert axes_of_groups([f"mesh_{name}" for name in names]) == axes


@pytest.mark.parametrize(("description", "axis"), [
    ("mesh_dp_replicate", "dp"), ("mesh_dp_shard", "dp"), ("mesh_dp_shard_cp", None), ("mesh_dp_cp", None),
    ("mesh_dim_0", None), ("default_pg", None), ("mesh_", None), ("tp", None), ("TENSOR_MODEL_PARALLEL_GROUP", "tp")])
def test_a_group_of_one_axis_and_no_other_counts(description, axis):
    assert axis_of_group(description) == axis


def test_sizes_are_reduced_and_ordered_by_the_rows():
    assert mp_size_of({"tp": 2, "dp": 5, "pp": 3}) == 6 and mp_size_of({}) == 1
    assert dp_size_of({"dp_shard": 2, "dp_replicate": 5, "pp": 3}) == 10 and dp_size_of({"tp": 2}) == 1
    assert list(in_rank_order({"tp": 2, "dp": 5, "pp": 3, "x": 1}).items()) == [("pp", 3), ("dp", 5), ("tp", 2)]


@pytest.mark.parametrize(("coordinates", "part"), [
    ({"dp": 3, "tp": 1}, (("tp", 1),)), ({"dp_replicate": 1, "dp_shard": 2, "pp": 1, "tp": 0}, (("pp", 1), ("tp", 0))),
    ({"dp_replicate": 1, "dp_shard": 2}, ()), (None, ())])
def test_ranks_that_only_data_parallel_axes_tell_apart_work_on_the_same_part(coordinates, part):
    assert part_of(coordinates) == part
