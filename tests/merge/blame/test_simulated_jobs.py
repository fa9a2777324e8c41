"""Late ranks in jobs that an independent simulation ran; the truth is the same job without the delay."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from distprof.contract.tables import STEPS
from distprof.merge.blame.analysis import Analysis, analyse
from distprof.merge.cost.measured_run import measured_run
from distprof.merge.run.read_run import read_run
from distprof.merge.run.tables import read_table
from support.simulator.engine import Simulation
from support.simulator.run_folder import Recorder
from support.simulator.shapes import SHAPES, Plant, programs

KINDS = ("forward", "backward", "data", "optimizer")
SYMMETRIC = ("ddp", "tp_dp", "fsdp", "rooted")
"""Shapes in which all ranks run one program, which is what blame compares."""
WORTH = 0.02
"""Smallest gain, as a part of the step, with which a rank has to be named."""
TP = 4


def simulated(name: str, num_ranks: int, seed: int, lanes: int, *plants: Plant) -> Simulation:
    return Simulation(programs(SHAPES[name], num_ranks, 8, seed, plants=plants), lanes=lanes)


def analysed(job: Simulation, folder: Path, name: str) -> Analysis:
    run = Recorder(mp_size=TP if name == "tp_dp" else 1).write(job, folder)
    found = measured_run(read_run(run))
    return analyse(found.run, found.clock, found.collectives, read_table(found.run, STEPS).rows)


def has_cause(found: Analysis, plant: Plant) -> bool:
    first = found.culprits[0].causes[:1] if found.culprits else []
    return any(one.kind == plant.kind and (plant.where is None or one.where == plant.where) for one in first)


@pytest.mark.parametrize("lanes", [1, 2])
@pytest.mark.parametrize(("kind", "where"), [
    ("data", None), ("optimizer", None), ("host", None), ("forward", "layers.3"), ("backward", "layers.1")])
def test_the_cause_is_what_took_longer_and_not_what_came_last(tmp_path, kind, where, lanes):
    """Buckets overlap with backward: that a rank is late shows only behind backward, which took as long everywhere."""
    plant = Plant(2, kind, where, 4_000_000)
    found = analysed(simulated("ddp", 4, 1, lanes, plant), tmp_path / "run", "ddp")
    first, *others = found.culprits
    assert (first.rank, first.certain) == (2, True) and not any(one.certain for one in others)
    assert has_cause(found, plant), first.causes
    assert all(one.spent > one.of_peers for one in first.causes)


@pytest.mark.parametrize(("kind", "where"), [("data", None), ("optimizer", None), ("forward", "stage.0")])
def test_another_stage_of_a_pipeline_is_nothing_to_compare_with(tmp_path, kind, where):
    plant = Plant(2, kind, where, 4_000_000)
    found = analysed(simulated("pp_dp", 8, 1, 1, plant), tmp_path / "run", "pp_dp")
    assert [one.rank for one in found.culprits if one.certain] == [2]
    assert [(one.kind, one.where) for one in found.culprits[0].causes] == [(kind, where)]


def planted(random: np.random.Generator, name: str) -> tuple[int, Plant]:
    num_ranks = int(random.choice([8, 16] if name == "tp_dp" else [4, 8]))
    kind = str(random.choice(KINDS))
    where = f"layers.{0 if (name, kind) == ('rooted', 'backward') else random.integers(6)}"
    return num_ranks, Plant(int(random.integers(num_ranks)), kind, where if kind in ("forward", "backward") else None,
                            int(random.uniform(1e6, 5e6)))


@pytest.mark.stress
@pytest.mark.parametrize("name", SYMMETRIC)
def test_of_many_jobs_late_ranks_are_named_with_their_cause_and_nobody_else(tmp_path, name):
    random = np.random.default_rng(3)
    worth, named, right, innocent = 0, 0, 0, 0
    for trial in range(50):
        num_ranks, plant = planted(random, name)
        seed, lanes = int(random.integers(10_000)), int(random.choice([1, 2]))
        late, balanced = (simulated(name, num_ranks, seed, lanes, *plants) for plants in ((plant,), ()))
        gain = float(np.mean([late.step_ns(rank) - balanced.step_ns(rank) for rank in range(num_ranks)]))
        found = analysed(late, tmp_path / str(trial), name)
        certain = [one.rank for one in found.culprits if one.certain]
        innocent += any(rank != plant.rank for rank in certain)
        if gain >= WORTH * late.step_ns(0):
            worth += 1
            named += plant.rank in certain
            right += certain[:1] == [plant.rank] and has_cause(found, plant)
    assert worth >= 40
    assert named >= 0.8 * worth, (worth, named, right, innocent)
    assert right >= 0.97 * named and innocent == 0, (worth, named, right, innocent)


@pytest.mark.stress
@pytest.mark.parametrize("name", SYMMETRIC)
def test_balanced_jobs_have_no_culprit(tmp_path, name):
    named = 0
    for seed in range(50):
        found = analysed(simulated(name, 8, seed, 1 + seed % 2), tmp_path / str(seed), name)
        named += any(one.certain for one in found.culprits)
    assert named <= 2
