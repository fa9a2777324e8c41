"""Late ranks in jobs that an independent simulation ran; the truth is the same job without the delay."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from distprof.contract.tables import STEPS
from distprof.merge.blame.analysis import Analysis, analyse
from distprof.merge.blame.culprits import Culprit
from distprof.merge.cost.measured_run import measured_run
from distprof.merge.run.open_run import open_run
from distprof.merge.run.tables import read_table
from support.simulator.cases import Case, random_case
from support.simulator.engine import Simulation
from support.simulator.loops import random_loop
from support.simulator.program import Instruction, Program, StepEnd, Work
from support.simulator.run_folder import Recorder
from support.simulator.shapes import SHAPES, Plant, programs

pytestmark = pytest.mark.long

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
    found = measured_run(open_run(run))
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


@pytest.mark.parametrize("seed", range(4))
def test_whoever_waits_where_no_slice_shows_it_is_not_called_late(tmp_path, seed):
    """Tensor parallel ranks wait inside operators for the one that loads data; as traces of other programs show it."""
    job = simulated("tp_dp", 8, seed, 1 + seed % 2, Plant(2, "data", None, 3_000_000))
    recorder = Recorder(mp_size=TP, records_waits=False, hides_waits=frozenset(range(8)))
    found = measured_run(open_run(recorder.write(job, tmp_path / "run")))
    late = analyse(found.run, found.clock, found.collectives, read_table(found.run, STEPS).rows).culprits
    assert {one.rank for one in late if one.certain} == {2}


def test_a_rank_that_is_always_late_and_once_very_late_is_late_in_every_step(tmp_path):
    plants = Plant(2, "optimizer", None, 2_000_000), Plant(2, "host", None, 30_000_000, once=4)
    first = analysed(simulated("ddp", 4, 1, 1, *plants), tmp_path / "run", "ddp").culprits[0]
    assert (first.rank, first.certain, first.late_steps) == (2, True, list(range(1, 8)))


def test_a_rank_that_is_once_very_late_is_late_in_that_step_alone(tmp_path):
    first = analysed(simulated("ddp", 4, 1, 1, Plant(2, "host", None, 30_000_000, once=4)), tmp_path / "run",
                     "ddp").culprits[0]
    assert (first.rank, first.certain, first.late_steps) == (2, False, [4])


@dataclass
class Tally:
    """What was said of many jobs."""

    worth: int = 0
    """Delays in every step whose fixing gains at least `WORTH` of a step."""
    named: int = 0
    right: int = 0
    innocent: int = 0
    """Jobs in which somebody is called late who is not."""
    errors: list[float] = field(default_factory=list)
    """Of gains, as a part of the true one, in jobs with one delay."""

    def add(self, case: Case, found: Analysis) -> None:
        certain = {one.rank: one for one in found.culprits if one.certain}
        self.innocent += not set(certain) <= {plant.rank for plant in case.plants}
        for plant in case.plants:
            step_ns, gain_ns = case.planted.step_ns(plant.rank), case.gain_ns(plant)
            if not is_habit(case, plant) or gain_ns < WORTH * step_ns:
                continue
            one = certain.get(plant.rank)
            self.worth += 1
            self.named += one is not None
            self.right += one is not None and is_right(plant, one)
            if one is not None and len(case.plants) == 1:
                self.errors.append(abs(one.gain_ns / gain_ns - 1))


def is_habit(case: Case, plant: Plant) -> bool:
    """In every step, and recorded: not on a rank whose waits left nothing, nor on clocks that nothing compares."""
    every_step = plant.every == 1 and plant.once is None and plant.chance >= 1
    return every_step and plant.rank not in case.recorder.misses_waits


def is_right(plant: Plant, one: Culprit) -> bool:
    """Of delays that touch many kinds of work, any cause is."""
    if plant.kind not in KINDS or not one.causes:
        return bool(one.causes)
    first = one.causes[0]
    return first.kind in (plant.kind, "whole") and (first.where is None or plant.where is None
                                                    or plant.where.startswith(first.where))


def judged_case(case: Case, folder: Path) -> Analysis:
    found = measured_run(open_run(case.write(folder)))
    return analyse(found.run, found.clock, found.collectives, read_table(found.run, STEPS).rows)


@dataclass
class LoopTally:
    """What was said of training loops in which at most one rank is late."""

    worth: int = 0
    """Delays that cost at least `WORTH` of a step."""
    named: int = 0
    right: int = 0
    innocent: int = 0
    untrue: list[str] = field(default_factory=list)
    """Causes whose times are not those that the rank and its peers take."""

    def add(self, case: Case, found: Analysis) -> None:
        certain = {one.rank: one for one in found.culprits if one.certain}
        self.innocent += not set(certain) <= {plant.rank for plant in case.plants}
        if not case.plants:
            return
        rank = case.plants[0].rank
        step_ns = case.planted.step_ns(rank)
        if step_ns - case.without_all().step_ns(rank) < WORTH * step_ns:
            return
        self.worth += 1
        self.named += rank in certain
        if rank in certain and names_place(case.plants, certain[rank]):
            self.right += 1
            self.untrue += untrue_times(case, certain[rank])


def names_place(plants: Sequence[Plant], one: Culprit) -> bool:
    """Of a single delay the exact place; of two, either, the module that holds both, or that it is spread."""
    if not one.causes:
        return False
    first = one.causes[0]
    if any((first.kind, first.where) == (plant.kind, plant.where) for plant in plants):
        return True
    return len(plants) > 1 and (first.kind == "whole" or all(
        plant.kind == first.kind and str(plant.where).startswith(str(first.where)) for plant in plants))


def untrue_times(case: Case, one: Culprit) -> list[str]:
    """What is said of the time that the rank and the median peer spend on a place, where they spend another time."""
    first = one.causes[0]
    truth = [np.mean([sum(work.ns for work in step if isinstance(work, Work) and (work.kind, work.where) == (
        first.kind, first.where)) for step in steps_in(program)[1:]]) for program in case.planted.programs]
    mine, others = truth[one.rank], float(np.median(np.delete(truth, one.rank)))
    if (first.kind, first.where) not in {(plant.kind, plant.where) for plant in case.plants}:
        return []
    most = 0.1 * (mine - others) + 0.4 * others  # a core is shared with what moves data
    return [f"{case}: {name} {said / 1e6:.2f} ms, in truth {true / 1e6:.2f}"
            for name, said, true in (("it takes", first.spent, mine), ("peers take", first.of_peers, others))
            if abs(said - true) > most]


def steps_in(program: Program) -> list[list[Instruction]]:
    """Instructions of each step."""
    steps: list[list[Instruction]] = [[]]
    for one in program:
        if isinstance(one, StepEnd):
            steps.append([])
        else:
            steps[-1].append(one)
    return steps[:-1]


def tally_of_loops(seeds: range, folder: Path) -> LoopTally:
    tally = LoopTally()
    for seed in seeds:
        case = random_loop(seed)
        tally.add(case, judged_case(case, folder))
        shutil.rmtree(folder)
    return tally


@pytest.mark.core
def test_in_training_loops_the_place_is_named_and_nobody_else(tmp_path):
    """Gradients are accumulated, the script works between the parts of a step, and most steps have no timeline."""
    tally = tally_of_loops(range(12), tmp_path / "run")
    assert tally.worth == tally.named == tally.right > 8 and not tally.innocent and not tally.untrue, tally


@pytest.mark.stress
def test_in_many_training_loops_the_place_is_named_and_nobody_else(tmp_path):
    tally = tally_of_loops(range(1000, 1300), tmp_path / "run")
    assert min(tally.named / tally.worth, tally.right / tally.named) >= 0.98 and not tally.innocent, tally
    assert len(tally.untrue) <= 0.02 * tally.right, tally


@pytest.mark.parametrize("seed", [5086, 5192])
def test_work_that_may_be_waiting_blames_nobody(tmp_path, seed):
    """Waits are hidden, and ends are noted up to 1 ms late: a rank that waits for a late one seems to work longer."""
    case = random_case(seed)
    late = {one.rank for one in judged_case(case, tmp_path / "run").culprits if one.certain}
    assert late <= {plant.rank for plant in case.plants}


@pytest.mark.stress
@pytest.mark.parametrize(("first", "number", "ranks"), [(5000, 500, (8, 64)), (9000, 20, (512, 512))])
def test_of_many_random_jobs_late_ranks_are_named_with_their_cause_and_nobody_else(tmp_path, first, number, ranks):
    tally = Tally()
    for seed in range(first, first + number):
        case = random_case(seed, ranks)
        if not (case.comparable and case.recorder.records_waits):
            continue
        found = judged_case(case, tmp_path / "run")
        shutil.rmtree(tmp_path / "run")
        if found.blind is None:
            tally.add(case, found)
    assert tally.named >= 0.97 * tally.worth and tally.right >= 0.97 * tally.named, tally
    assert tally.innocent <= 0.005 * number + 1, tally
    assert np.median(tally.errors) <= 0.02 and np.quantile(tally.errors, 0.9) <= 0.1, tally


@pytest.mark.stress
def test_what_is_late_now_and_then_is_named_with_its_rhythm(tmp_path):
    for every, seed in [(3, 1), (3, 2), (4, 3), (4, 4)]:
        plant = Plant(2, "host", None, 8_000_000, every=every)
        job = Simulation(programs(SHAPES["ddp"], 4, 25, seed, plants=(plant,)), lanes=2)
        found = measured_run(open_run(Recorder().write(job, tmp_path / str(seed))))
        first = analyse(found.run, found.clock, found.collectives, read_table(found.run, STEPS).rows).culprits[0]
        assert (first.rank, first.certain, first.causes[0].kind) == (2, True, "host")
        assert set(np.diff(first.late_steps)) == {every}


@pytest.mark.stress
@pytest.mark.parametrize("name", SYMMETRIC)
def test_balanced_jobs_have_no_culprit(tmp_path, name):
    named = 0
    for seed in range(50):
        found = analysed(simulated(name, 8, seed, 1 + seed % 2), tmp_path / str(seed), name)
        named += any(one.certain for one in found.culprits)
    assert named <= 1


def test_lateness_that_shifts_is_no_rank_s(tmp_path):
    """Each step, another rank has a longer batch."""
    naps = [Plant(rank, "forward", "layers.1", 8_000_000, every=4, offset=rank) for rank in range(4)]
    job = Simulation(programs(SHAPES["ddp"], 4, 25, 3, plants=naps))
    found = measured_run(open_run(Recorder().write(job, tmp_path / "run")))
    late = analyse(found.run, found.clock, found.collectives, read_table(found.run, STEPS).rows)
    assert late.shifting is not None and late.shifting.ranks == [0, 1, 2, 3]
    assert late.shifting.late_ns == pytest.approx(8e6, rel=0.1) and not any(one.certain for one in late.culprits)
    balanced = analysed(simulated("ddp", 4, 3, 1), tmp_path / "balanced", "ddp")
    assert balanced.shifting is None
