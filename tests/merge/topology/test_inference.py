"""The topology that ranks show: drawn meshes are found again, and what fits no mesh is doubted."""

from __future__ import annotations

from itertools import product
from math import prod

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distprof.contract.collective_ops import text_of
from distprof.contract.tables import COLLECTIVES, PARAMETERS
from distprof.merge.run.tables import empty
from distprof.merge.topology.evidence import evidence_of
from distprof.merge.topology.inference import Inferred, chains_of, inferred

AXES = ("pp", "dp", "cp", "ep", "tp")


class Job:
    """Tables of a job on a mesh whose places are dealt out to ranks at random."""

    def __init__(self, sizes: dict[str, int], ranks: list[int], *, cp_by: str = "send", both_ways: bool = True) -> None:
        self.sizes, self.cp_by, self.both_ways = sizes, cp_by, both_ways
        places = [dict(zip(AXES, place, strict=True)) for place in product(*(range(sizes[axis]) for axis in AXES))]
        self.where = dict(sorted(zip(ranks, places, strict=True)))
        self.calls: list[dict] = []

    def rank_at(self, place: dict[str, int]) -> int:
        return next(rank for rank, other in self.where.items() if other == place)

    def along(self, rank: int, axis: str) -> list[int]:
        return [self.rank_at(self.where[rank] | {axis: place}) for place in range(self.sizes[axis])]

    def parameters(self) -> pl.DataFrame:
        rows = []
        for rank, at in self.where.items():
            layer = f"layers.{at['pp']}"
            values = {"norm": (at["pp"],), "attention": (at["pp"], at["tp"]), "expert": (at["pp"], at["tp"], at["ep"])}
            rows += [{"rank": rank, "module_path": layer, "name": name, "params": 4, "checksum": hash((name, *value))}
                     for name, value in values.items()]
            rows.append({"rank": rank, "module_path": layer, "name": "constant", "params": 4, "checksum": None})
        return pl.concat([empty(PARAMETERS), pl.DataFrame(rows, schema_overrides={"checksum": pl.Int64})],
                         how="diagonal")

    def call(self, rank: int, op: str, *, peer: int | None = None, group: list[int] | None = None,
             inside: bool = True) -> None:
        self.calls.append({"rank": rank, "op": op, "peer": peer, "step": 3,
                           "group_ranks": text_of(group or [*self.where]),
                           "enqueue_ns": len(self.calls), "module_path": "layers" if inside else None,
                           "phase": "forward" if inside else None})

    def collectives(self) -> pl.DataFrame:
        for rank, at in self.where.items():
            stages, replicas, experts, parts = (self.along(rank, axis) for axis in ("pp", "cp", "ep", "tp"))
            if at["pp"]:
                self.call(rank, "recv", peer=stages[at["pp"] - 1], inside=False)
            if self.sizes["cp"] > 1 and self.cp_by == "send":
                self.call(rank, "send", peer=replicas[(at["cp"] + 1) % len(replicas)])
                self.call(rank, "recv", peer=replicas[at["cp"] - 1])
            elif self.sizes["cp"] > 1:
                self.call(rank, "all_to_all", group=replicas)
            for op, group in (("all_to_all", experts), ("all_reduce", parts)):
                if len(group) > 1:
                    self.call(rank, op, group=group)
            if at["pp"] + 1 < len(stages):
                self.call(rank, "send", peer=stages[at["pp"] + 1], inside=False)
            self.call(rank, "all_reduce", inside=False)  # gradients, and what the script logs
        return pl.concat([empty(COLLECTIVES), pl.DataFrame(self.calls, schema_overrides={
            "peer": pl.Int64, "module_path": pl.String, "phase": pl.String})], how="diagonal")

    def found(self, **more: object) -> object:
        evidence = evidence_of([self.parameters()], self.collectives(), world_size=len(self.where), **more)
        return inferred(evidence)


SIZES = st.lists(st.integers(1, 3), min_size=5, max_size=5).filter(lambda sizes: prod(sizes) <= 16).map(
    lambda sizes: dict(zip(AXES, sizes, strict=True)))
CP_BY = st.sampled_from(["send", "all_to_all"])


@given(SIZES, CP_BY, st.permutations(AXES))
def test_a_mesh_is_found_again_in_any_order_of_its_axes(sizes, cp_by, order):
    places = [dict(zip(order, place, strict=True)) for place in product(*(range(sizes[axis]) for axis in order))]
    ranks = [places.index(dict(zip(AXES, place, strict=True))) for place in product(*(
        range(sizes[axis]) for axis in AXES))]
    job = Job(sizes, ranks, cp_by=cp_by)
    found = job.found()
    assert isinstance(found, Inferred), found
    assert {axis: size for axis, size in found.sizes.items() if size > 1} == {
        axis: size for axis, size in sizes.items() if size > 1}
    for rank, at in job.where.items():
        assert {axis: found.coordinates[rank].get(axis, 0) for axis in AXES} == at


@given(SIZES, CP_BY, st.data())
def test_a_mesh_is_right_or_doubted_wherever_its_ranks_stand(sizes, cp_by, data):
    job = Job(sizes, data.draw(st.permutations(range(prod(sizes.values())))), cp_by=cp_by)
    found = job.found()
    if not isinstance(found, Inferred):
        assert found in ("no_mesh", "parameters_differ")
        return
    assert {axis: size for axis, size in found.sizes.items() if size > 1} == {
        axis: size for axis, size in sizes.items() if size > 1}
    for rank, at in job.where.items():
        assert found.coordinates[rank].get("pp", 0) == at["pp"], "stages are in the order of the model"


def test_stages_in_a_ring_are_in_their_order():
    links = [(0, 1), (1, 2), (2, 3), (0, 3)]
    assert chains_of(links).ordered({0}) == [(0, 1, 2, 3)]
    assert chains_of(links).ordered({0, 2}) is None, "who begins?"
    assert chains_of([(0, 5), (3, 5)]).ordered({3}) == [(3, 5, 0)]
    assert chains_of([(0, 1), (0, 2), (0, 3)]).ordered({0}) is None, "a star is no pipeline"


def job(ranks: int, **axes: int) -> Job:
    sizes = {axis: axes.get(axis, 1) for axis in AXES}
    sizes["dp"] = ranks // prod(size for axis, size in sizes.items() if axis != "dp")
    return Job(sizes, [*range(ranks)])


def test_replicas_that_join_results_inside_modules_are_doubted():
    doubtful = job(4)
    for rank in range(4):
        doubtful.call(rank, "all_gather", group=[0, 1, 2, 3])
    assert doubtful.found() == "replicas_join"
    assert isinstance(doubtful.found(statistics=["layers"]), Inferred), "but not those of a SyncBatchNorm"


def test_ranks_that_hold_different_parameters_and_never_meet_are_doubted():
    apart = job(2, tp=2)
    parameters = apart.parameters()
    quiet = pl.concat([empty(COLLECTIVES), job(2).collectives()])
    assert inferred(evidence_of([parameters], quiet, world_size=2)) == "parameters_differ"
    assert inferred(evidence_of([parameters], None, world_size=2)) == "not_recorded"
    assert inferred(evidence_of([job(2).parameters()], None, world_size=2)) == "not_recorded"
    replicas = inferred(evidence_of([job(2).parameters()], empty(COLLECTIVES), world_size=2))
    assert isinstance(replicas, Inferred) and replicas.sizes == {"dp": 2}, "inference needs no communication"


def test_what_fits_no_mesh_is_doubted():
    server = job(4)
    for rank in (1, 2, 3):  # a parameter server: all send to one
        server.call(rank, "send", peer=0, inside=False)
    parameters = server.parameters().with_columns(pl.col("checksum") + pl.col("rank"))
    assert inferred(evidence_of([parameters], server.collectives(), world_size=4)) == "no_mesh"
    uneven = job(4)
    for rank in (0, 1, 2):
        uneven.call(rank, "all_reduce", group=[0, 1, 2])
    assert inferred(evidence_of([parameters], uneven.collectives(), world_size=4)) == "no_mesh"


@pytest.mark.parametrize("ranks", [1, 3])
def test_nothing_is_judged_where_ranks_are_missing_or_values_say_nothing(ranks):
    parameters = job(4).parameters().filter(pl.col("rank") < ranks)
    assert evidence_of([parameters], empty(COLLECTIVES), world_size=4) is None
    assert evidence_of([parameters.with_columns(checksum=pl.lit(None, pl.Int64))], empty(COLLECTIVES),
                       world_size=ranks) is None
