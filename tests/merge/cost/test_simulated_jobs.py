"""Jobs that an independent simulation ran: what is measured of them is what happened in it."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distprof.contract.collective_ops import WAITING_FOR_ALL, ranks_of
from distprof.merge.cost.measured_run import MeasuredRun, measured_run
from distprof.merge.run.open_run import open_run
from support.simulator.engine import Moved, Simulation
from support.simulator.program import Call, Wait, Work
from support.simulator.run_folder import BEGAN_NS, Recorder
from support.simulator.shapes import SHAPES, Plant, programs

pytestmark = pytest.mark.long

SIZES = {"tp_dp": 8}
MP_SIZES = {"tp_dp": 4}


def simulated(name: str, *, lanes: int = 1, seed: int = 1, plants: tuple[Plant, ...] = (),
              num_steps: int = 4) -> Simulation:
    return Simulation(programs(SHAPES[name], SIZES.get(name, 4), num_steps, seed, plants=plants), lanes=lanes)


def recorded(job: Simulation, folder: Path, **how: object) -> MeasuredRun:
    return measured_run(open_run(Recorder(**how).write(job, folder / "run")))


def collectives(job: Simulation) -> dict[object, list[Moved]]:
    found: dict[object, list[Moved]] = {}
    for mine in job.moved:
        for one in mine:
            found.setdefault(one.call.key, []).append(one)
    return found


@pytest.mark.parametrize("lanes", [1, 2])
@pytest.mark.parametrize("name", SHAPES)
def test_every_collective_is_found_and_costs_what_it_cost(tmp_path, name, lanes):
    job = simulated(name, lanes=lanes, plants=(Plant(1, "forward", "layers.2", 3_000_000),))
    rows = recorded(job, tmp_path, mp_size=MP_SIZES.get(name, 1)).collectives
    truth = {(one.rank, BEGAN_NS + one.called_ns, one.call.op, one.call.group): (key, one, members)
             for key, members in collectives(job).items() for one in members}
    assert len(rows) == len(truth) and rows["complete"].all()
    numbers: dict[object, int] = {}
    for row in rows.with_columns(pl.col("group_ranks").cast(pl.String)).iter_rows(named=True):
        group = ranks_of(row["group_ranks"])
        key, one, members = truth[row["rank"], row["enqueue_ns"], row["op"], group]
        assert numbers.setdefault(key, row["collective"]) == row["collective"]
        last = max(other.began_ns for other in members)
        assert row["arrival_ns"] == BEGAN_NS + one.began_ns
        assert row["arrival_spread_ns"] == (None if row["op"] in ("send", "recv") else last - min(
            other.began_ns for other in members))
        if row["op"] in WAITING_FOR_ALL:
            assert (row["wait_ns"], row["transfer_ns"]) == (last - one.began_ns, one.call.ns)
            assert last == next(other.began_ns for other in members if other.rank == row["late_rank"])
    assert len(set(numbers.values())) == len(numbers)


@pytest.mark.parametrize("name", ["ddp", "fsdp", "tp_dp"])
@settings(max_examples=10)
@given(off_ns=st.lists(st.integers(-10**9, 10**9), min_size=2, max_size=3), seed=st.integers(0, 99))
def test_clocks_of_hosts_are_found_within_their_uncertainty(tmp_path_factory, name, off_ns, seed):
    job = simulated(name, seed=seed, num_steps=5)
    ahead = dict(enumerate(off_ns, start=1))
    clock = recorded(job, tmp_path_factory.mktemp("clocks"), clock_off_ns=ahead).clock
    for rank, ahead_ns in ahead.items():
        bound_ns = clock.pair_uncertainty_ns([0, rank])
        there, here = (int(clock.to_common_ns(one, BEGAN_NS + off)) for one, off in ((rank, ahead_ns), (0, 0)))
        assert bound_ns is not None and abs(there - here) <= bound_ns


@pytest.mark.parametrize("name", SHAPES)
def test_ends_that_are_noted_late_cost_only_what_they_are_late(tmp_path, name):
    job, late_ns = simulated(name), 50_000
    exact, late = (recorded(job, tmp_path / how, late_end_ns=ns).collectives for how, ns in (
        ("exact", 0), ("late", late_ns)))
    by = ["rank", "enqueue_ns", "op", "sequence"]
    both = exact.sort(by).select(*by, "wait_ns", "transfer_ns").hstack(late.sort(by).select(
        late_wait_ns="wait_ns", late_transfer_ns="transfer_ns"))
    assert (both["wait_ns"].drop_nulls() == both["late_wait_ns"].drop_nulls()).all()
    assert (both["late_transfer_ns"] - both["transfer_ns"]).drop_nulls().is_between(0, late_ns).all()


# --- the simulation itself ------------------------------------------------------------------------------------------


def test_a_rank_that_is_late_makes_the_other_wait():
    def program(ns: int) -> list:
        return [Work("forward", "a", ns), Call(("x",), "all_reduce", (0, 1), 4, 10, 5), Wait(("x",))]

    job = Simulation([program(100), program(300)])
    assert [(one[0].called_ns, one[0].began_ns, one[0].ended_ns) for one in job.moved] == [
        (100, 105, 315), (300, 305, 315)]
    assert [(one.start_ns, one.end_ns) for one in job.done[0][1:]] == [(100, 100), (100, 315)]


@pytest.mark.parametrize(("lanes", "ends"), [(1, [110, 210, 310]), (2, [110, 110, 210])])
def test_a_queue_is_first_in_first_out_over_its_lanes(lanes, ends):
    keys = [(number,) for number in range(3)]
    program = [*(Call(key, "all_reduce", (0, 1), 4, 100, 0) for key in keys), *map(Wait, keys)]
    job = Simulation([[Work("host", None, 10), *program]] * 2, lanes=lanes)
    assert [one.ended_ns for one in job.moved[0]] == ends


def test_readers_wait_for_the_root_and_the_root_for_nobody():
    def program(ns: int) -> list:
        return [Work("host", None, ns), Call(("x",), "broadcast", (0, 1, 2), 4, 10, 0, root=1), Wait(("x",))]

    job = Simulation([program(1), program(50), program(100)])
    assert [one[0].ended_ns for one in job.moved] == [60, 60, 110]


@pytest.mark.parametrize("name", SHAPES)
def test_what_was_planted_on_one_rank_delays_the_job_by_no_more(name):
    late = simulated(name, plants=(Plant(1, "optimizer", None, 4_000_000),))
    gain = late.step_ns(0) - simulated(name).step_ns(0)
    # stages of a pipeline have time to spare
    assert (500_000 if name in ("pipeline", "pp_dp") else 3_500_000) < gain <= 4_000_000
