"""The simulator of jobs, which is the truth that other tests compare with."""

from __future__ import annotations

import heapq
from collections import defaultdict
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import msgspec
import numpy as np
import polars as pl
import pytest

from distprof.contract.rank_json import RankJson
from distprof.contract.tables import COLLECTIVES, int64
from support.simulator import run_folder
from support.simulator.cases import Case, random_case
from support.simulator.engine import Moved, Simulation
from support.simulator.families import FAMILIES
from support.simulator.maker import programs, steps_of
from support.simulator.plant import Plant
from support.simulator.program import Call, Fetch, StepEnd, Wait, Work
from support.simulator.run_folder import Recorder
from support.simulator.shapes.axis import Axis
from support.simulator.shapes.ddp import Replicated
from support.simulator.shapes.layers import TensorLayers
from support.simulator.shapes.model import even
from support.simulator.shapes.parts import Closure, Data, Host, Update
from support.simulator.shapes.pipelines import gpipe, interleaved, one_f_one_b

pytestmark = pytest.mark.long

MS = 1_000_000
MODEL = even(MS, 2 * MS, 1 << 20, MS, num_layers=3)


def case_of(family: str, seed: int = 1) -> Case:
    """A short one that runs as fast beside its backend."""
    return replace(random_case(seed, (8, 8), family), num_steps=3, slowdown=0.0, plants=(), _run={})


@pytest.fixture(scope="module", params=FAMILIES)
def case(request: pytest.FixtureRequest) -> Case:
    return case_of(request.param)


def meetings(job: Simulation) -> list[list[Moved]]:
    found = defaultdict(list)
    for mine in job.moved:
        for one in mine:
            found[one.call.key].append(one)
    return list(found.values())


def step_ends(job: Simulation) -> np.ndarray:
    return np.array([job.step_ends(rank) for rank in range(len(job.programs))])


# --- what holds for every job ---------------------------------------------------------------------------------------


def test_every_call_ends_and_no_rank_leaves_early(case):
    for members in meetings(case.planted):
        call = members[0].call
        assert len({one.rank for one in members}) == len(members) == call.size
        for one in members:
            needed = {"all": members, "nobody": [], "root": [other for other in members if other.rank == call.root]}
            here = max(other.began_ns for other in [one, *needed[one.call.needs(one.rank)]])
            assert one.called_ns + one.call.latency_ns <= one.began_ns <= here
            assert one.ended_ns == here + one.call.ns


def test_queues_are_first_in_first_out_and_have_so_many_lanes(case):
    for mine in case.planted.moved:
        queues = defaultdict(list)
        for one in mine:
            if one.call.queued:
                queues[one.call.group].append(one)
        for queue in queues.values():
            busy: list[int] = []
            for one in queue:
                taken = max(one.called_ns, heapq.heappop(busy) if len(busy) == case.lanes else 0)
                assert one.began_ns == taken + one.call.latency_ns
                heapq.heappush(busy, one.ended_ns)


def test_a_thread_does_one_thing_after_the_other_and_waits_for_the_end(case):
    for done, moved in zip(case.planted.done, case.planted.moved, strict=True):
        ended = {one.call.key: one.ended_ns for one in moved}
        assert all(one.end_ns == other.start_ns for one, other in pairwise(done))
        for one in done:
            if isinstance(one.instruction, Wait):
                assert one.end_ns == max(one.start_ns, ended[one.instruction.key])


def test_the_same_seed_gives_the_same_job(case):
    again = case_of(case.family)
    assert again.planted.done == case.planted.done and again.recorder == case.recorder
    assert (step_ends(case_of(case.family, 2).planted).tolist()) != step_ends(case.planted).tolist()


def test_what_is_planted_changes_nothing_else(case):
    balanced = step_ends(case.planted)
    for kind in ("data", "host", "optimizer", "whole", "batch"):
        assert (step_ends(case.simulated((Plant(3, kind),))) == balanced).all()
    last = balanced
    for factor in (1.2, 1.5):
        late = step_ends(case.simulated((Plant(3, "whole", factor=factor),)))
        assert (late >= last).all() and (late[3] > last[3]).all()
        last = late


def test_a_step_gains_at_most_what_was_planted(case):
    plant = Plant(3, "host", None, 4 * MS)
    touched = [one for one in case.planted.programs[3] if isinstance(one, Work) and one.kind == "host"]
    gain = replace(case, plants=(plant,), _run={}).gain_ns(plant)
    assert -1000 <= gain <= 4 * MS * len(touched) / (case.num_steps - 1)


# --- single features ------------------------------------------------------------------------------------------------


def rooted(op: str, *ns: int) -> list[int]:
    """When each rank of a rooted collective ends; rank 1 is the root."""
    group = tuple(range(len(ns)))
    job = Simulation([[Work("host", None, late), Call(("x",), op, group, 4, 10, root=1), Wait(("x",))] for late in ns])
    return [one[0].ended_ns for one in job.moved]


@pytest.mark.parametrize(("op", "ends"), [
    ("broadcast", [60, 60, 110]), ("scatter", [60, 110, 110]), ("gather", [60, 110, 110]), ("reduce", [110, 110, 110])])
def test_ranks_wait_for_a_late_root_and_its_kind_decides_whom_else(op, ends):
    assert rooted(op, 1, 50, 100) == ends


def test_a_thread_works_slower_while_its_backend_moves_data():
    program = [Call(("x",), "all_reduce", (0, 1), 4, 100), Work("host", None, 200), StepEnd()]
    job = Simulation([program, [Work("host", None, 50), *program]], slowdown=0.25)
    assert [one[0].ended_ns for one in job.moved] == [150, 150]
    # of 200, 80 are done in the 100 in which data moves
    assert [job.step_ends(rank) for rank in (0, 1)] == [[220], [50 + 220]]


def test_a_loader_hides_a_late_batch_up_to_what_it_made_ahead():
    def ends(late_ns: int, workers: int) -> list[int]:
        batches = [Fetch(50 + late_ns * (number == 4), workers, 2) for number in range(8)]
        program = [one for batch in batches for one in (batch, Work("forward", "a", 100), StepEnd())]
        return Simulation([program]).step_ends(0)

    in_time = [50 + 100 * number for number in range(1, 9)]
    # one worker begins with batch 4 when batch 2 is taken, two when batch 2 is made
    assert ends(0, 1) == ends(150, 1) == ends(0, 2) == ends(300, 2) == in_time
    assert ends(300, 1) == [*in_time[:4], *(one + 150 for one in in_time[4:])]


def test_delays_come_when_they_should():
    def late(plant: Plant) -> list[int]:
        return [plant.late_ns(step, 10, 1) for step in range(6)]

    assert late(Plant(0, "host", ns=3)) == [3] * 6
    assert late(Plant(0, "host", ns=3, every=3)) == [0, 0, 3, 0, 0, 3]
    assert late(Plant(0, "host", ns=3, every=3, offset=0)) == [3, 0, 0, 3, 0, 0]
    assert late(Plant(0, "host", ns=3, once=4)) == [0, 0, 0, 0, 3, 0]
    assert late(Plant(0, "whole", factor=1.6)) == [6] * 6
    naps = late(Plant(0, "host", ns=1000, chance=0.5))
    assert 0 < sum(map(bool, naps)) < 6


@pytest.mark.parametrize(("schedule", "chunks"), [(gpipe, 1), (one_f_one_b, 1), (interleaved, 2), (interleaved, 3)])
def test_a_stage_runs_every_microbatch_forward_and_then_backward(schedule, chunks):
    for stage in range(4):
        actions = schedule(stage, 4, 8, chunks)
        assert len(set(actions)) == len(actions) == 2 * 8 * chunks
        assert all(actions.index(one._replace(phase="forward")) < number for number, one in enumerate(actions)
                   if one.phase == "backward")


# --- the files ------------------------------------------------------------------------------------------------------


def events_of(folder: Path) -> pl.DataFrame:
    return pl.read_parquet(folder / "events.parquet").with_columns(
        end_ns=pl.col("start_ns") + pl.col("duration_ns"), name=pl.col("name").cast(pl.String))


def test_waits_lie_inside_operators_and_the_optimizer_around_all(tmp_path):
    layers = TensorLayers(axis=Axis(1, 2), manner="deep")
    shape = steps_of(Closure((Data(), Replicated(model=MODEL, replicas=Axis(2), compute=layers)), 2), Host())
    job = Simulation(programs(shape, 4, 2, 1))
    events = events_of(Recorder().write(job, tmp_path / "run") / "rank00000")
    assert "Work.wait" not in set(events["name"])
    optimizer = events.filter(pl.col("name") == "Optimizer.step#LBFGS.step")
    assert len(optimizer) == 2
    inside = events.filter(pl.col("name") != "Optimizer.step#LBFGS.step")
    first = inside.filter(pl.col("step") == 0)
    assert first["start_ns"].min() >= optimizer["start_ns"][0] and first["end_ns"].max() <= optimizer["end_ns"][0]
    for moved in job.moved[0]:
        where = "Redistribute" if moved.call.phase == "forward" else "evaluate_function: Redistribute"
        if len(moved.call.group) == 2 and moved.call.group == (0, 1):
            at = run_folder.BEGAN_NS + moved.wait_start_ns
            assert len(events.filter(pl.col("name").str.contains(where) & (pl.col("start_ns") <= at)
                                     & (pl.col("end_ns") >= run_folder.BEGAN_NS + moved.wait_end_ns))) == 1


def test_waits_are_recorded_where_the_contract_has_a_place_for_them(tmp_path, monkeypatch):
    names = ("wait_start_ns", "wait_end_ns")
    others = tuple(column for column in COLLECTIVES.columns if column.name not in names)
    with_waits = replace(COLLECTIVES, columns=(*others, *(int64(name, "", nullable=True) for name in names)))
    monkeypatch.setattr(run_folder, "COLLECTIVES", with_waits)
    job = Simulation(programs(steps_of(Data(), Replicated(model=MODEL), Update()), 2, 2, 1))
    run = Recorder(misses_waits=frozenset({1})).write(job, tmp_path / "run")
    rows, missed = (pl.read_parquet(run / rank / "collectives.parquet") for rank in ("rank00000", "rank00001"))
    assert rows["wait_start_ns"].to_list() == [run_folder.BEGAN_NS + one.wait_start_ns for one in job.moved[0]]
    assert (rows["wait_end_ns"] >= rows["end_ns"]).all() and (rows["wait_start_ns"] > rows["enqueue_ns"]).all()
    assert missed["wait_start_ns"].null_count() == len(missed)
    without = Recorder(records_waits=False).write(job, tmp_path / "without")
    assert pl.read_parquet(without / "rank00000" / "collectives.parquet")["wait_start_ns"].is_null().all()


def test_a_clock_that_is_wrong_shifts_all_times_and_names_no_other_host(tmp_path):
    job = Simulation(programs(steps_of(Data(), Replicated(model=MODEL), Update()), 2, 2, 1))
    right, wrong = (Recorder(clock_error_ns=errors).write(job, tmp_path / name) / "rank00001" for name, errors in (
        ("right", {}), ("wrong", {1: 200_000})))
    for table, columns in (("collectives", ["enqueue_ns", "start_ns", "end_ns"]), ("events", ["start_ns"]),
                           ("steps", ["start_ns", "end_ns"])):
        one, other = (pl.read_parquet(folder / f"{table}.parquet") for folder in (right, wrong))
        assert all((other[name] - one[name] == 200_000).all() for name in columns)
    hosts = [msgspec.json.decode((folder / "rank.json").read_bytes(), type=RankJson).host for folder in (right, wrong)]
    assert hosts == ["host", "host"]
