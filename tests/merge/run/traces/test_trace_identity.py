"""The mesh of a job, found by its process groups."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distprof.merge.run.open_run import open_run
from distprof.merge.run.traces.trace_identity import Group, mesh_of
from support.kineto_files import kineto, write


def groups_of(rank: int, sizes: dict[str, int]) -> list[Group]:
    """Groups of a mesh with dimensions of these names, the last one fastest."""
    found, stride = [], 1
    for name, size in reversed(sizes.items()):
        first = rank - rank // stride % size * stride
        found.append(Group(description=name, ranks=tuple(first + stride * index for index in range(size))))
        stride *= size
    return found


@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 3), st.integers(1, 3), st.data())
def test_a_mesh_is_found_by_its_groups(replicas, shards, cp, tp, data):
    sizes = {"mesh_dp_replicate": replicas, "mesh_dp_shard": shards, "mesh_cp": cp, "mesh_tp": tp}
    world_size = replicas * shards * cp * tp
    rank = data.draw(st.integers(0, world_size - 1))
    groups = data.draw(st.permutations([*groups_of(rank, sizes), Group(description="default_pg",
                                                                       ranks=tuple(range(world_size)))]))
    mesh = mesh_of(groups, rank=rank, world_size=world_size)
    if world_size == 1:
        assert mesh is None
        return
    data_parallel = {"dp": (replicas * shards, rank // (cp * tp))} if min(replicas, shards) == 1 else {
        "dp_replicate": (replicas, rank // (cp * tp * shards)), "dp_shard": (shards, rank // (cp * tp) % shards)}
    wanted = data_parallel | {"cp": (cp, rank // tp % cp), "tp": (tp, rank % tp)}
    assert mesh.sizes == {axis: size for axis, (size, _) in wanted.items() if size > 1}
    assert mesh.coordinates == {axis: index for axis, (size, index) in wanted.items() if size > 1}


@pytest.mark.parametrize("names", [("data", "model"), ("hsdp", "mp"), ("batch", "tensor"), ("dp", "tp")])
def test_a_mesh_is_found_by_any_usual_names(names):
    mesh = mesh_of(groups_of(5, {f"mesh_{names[0]}": 2, f"mesh_{names[1]}": 4}), rank=5, world_size=8)
    assert mesh.sizes == {"dp": 2, "tp": 4} and mesh.coordinates == {"dp": 1, "tp": 1}


def test_a_mesh_that_leaves_a_doubt_is_unknown():
    def named(sizes: dict[str, int], rank: int = 1, world_size: int = 4):
        return mesh_of(groups_of(rank, sizes), rank=rank, world_size=world_size)

    assert named({"default_pg": 4}) is None, "nobody says that plain DDP is all there is"
    assert named({"mesh_tp": 2}) is None, "the other factor may be anything"
    assert named({"mesh_dim_0": 2, "mesh_dim_1": 2}) is None, "dimensions without names"
    assert named({"mesh_dp": 2, "mesh_ep": 2}) is None, "experts cut across the others"
    overlapping = [Group(description="mesh_dp", ranks=(0, 1)), Group(description="mesh_tp", ranks=(0, 1))]
    assert mesh_of(overlapping, rank=0, world_size=4) is None
    megatron = named({"PIPELINE_MODEL_PARALLEL_GROUP": 2, "DATA_PARALLEL_GROUP": 2, "TENSOR_MODEL_PARALLEL_GROUP": 2},
                     rank=6, world_size=8)
    assert megatron.sizes == {"pp": 2, "dp": 2, "tp": 2} and megatron.coordinates == {"pp": 1, "dp": 1, "tp": 0}


def test_ranks_that_tell_different_meshes_leave_it_unknown(tmp_path):
    for rank in range(4):
        config = [{"pg_desc": group.description, "ranks": list(group.ranks)}
                  for group in groups_of(rank, {"mesh_dp": 2, "mesh_tp": 2} if rank else {"mesh_tp": 4})]
        write(tmp_path / f"{rank}.json", kineto(rank, 4, pg_config=config))
    run = open_run(tmp_path)
    assert not run.topology_known and run.topology_source.startswith("unknown")
