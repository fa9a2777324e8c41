"""Waiting, moving and bandwidth against numbers worked out by hand, and against each other."""

from __future__ import annotations

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distprof.contract.collective_ops import COLLECTIVE_OPS, POINT_TO_POINT, WAITING_FOR_ALL, bus_factor
from distprof.merge.clock.model import Alignment, Clock
from distprof.merge.cost.collective_sums import bandwidths, coverage, per_collective
from distprof.merge.cost.measures import MEASURED, with_costs
from distprof.merge.match.matching import match
from support.comm_rows import call, frame

HOSTS = {rank: f"host{rank // 2}" for rank in range(8)}


def clock_of(*uncertainties: int | None, shared: bool = False) -> Clock:
    """A clock a rank; all read one where they share it."""
    return Clock(method="shared" if shared else "samples", num_hosts=1, ranks={
        rank: Alignment(uncertainty_ns=off, clock=0 if shared else rank) for rank, off in enumerate(uncertainties)})


ONE = clock_of(*[0] * 8, shared=True)


def measured(*calls: dict, clock: Clock = ONE, world_size: int = 2) -> pl.DataFrame:
    rows = match(frame(*calls), ended=(), world_size=world_size)
    return with_costs(rows, clock, HOSTS).sort("collective", "rank", maintain_order=True)


def together(op: str, *times: tuple[int | None, int | None], of: tuple[int, ...] | None = None, **columns):
    """One collective: start and end of each rank."""
    members = tuple(range(len(times))) if of is None else of
    return [call(rank, op, of=members, sequence=0, group_sequence=0, start_ns=start, end_ns=end,
                 **{name: value[rank] if isinstance(value, tuple) else value for name, value in columns.items()})
            for rank, (start, end) in enumerate(times)]


def test_by_hand():
    found = measured(*together("all_reduce", (100, 1100), (900, 1120), (400, 1090), size_bytes=3000), world_size=3)
    assert found["arrival_ns"].to_list() == [100, 900, 400]
    assert set(found["arrival_spread_ns"]) == {800} and set(found["late_rank"]) == {1}
    assert set(found["end_spread_ns"]) == {30}
    assert found["wait_ns"].to_list() == [800, 0, 500] and found["transfer_ns"].to_list() == [200, 220, 190]
    assert found["clock_free_wait_ns"].to_list() == [780, 0, 470]
    assert set(found["clock_free_transfer_ns"]) == {220}
    assert found["unsure"].to_list() == found["disagrees"].to_list() == [False] * 3
    assert found["algbw"].to_list() == [pytest.approx(3000 / 220e-9)] * 3
    assert found["busbw"].to_list() == [pytest.approx(3000 / 220e-9 * 4 / 3)] * 3


@pytest.mark.long
@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)), min_size=2, max_size=6),
       st.sampled_from(WAITING_FOR_ALL))
def test_waiting_and_moving_add_up_and_both_ways_agree_where_all_leave_at_once(times, op):
    size = len(times)
    found = measured(*together(op, *((start, start + held) for start, held in times)), world_size=size)
    held = found["end_ns"] - found["arrival_ns"]
    assert (found["wait_ns"] + found["transfer_ns"] == held).all()
    assert (found["clock_free_wait_ns"] + found["clock_free_transfer_ns"] == held).all()
    assert found["wait_ns"].min() >= 0 and found["transfer_ns"].min() >= 0
    last = max(start for start, _ in times)
    found = measured(*together(op, *((start, last + 7) for start, _ in times)), world_size=size)
    assert found["wait_ns"].to_list() == found["clock_free_wait_ns"].to_list()
    assert found["wait_ns"].to_list() == [last - start for start, _ in times]
    assert not found["disagrees"].any()


def test_arrivals_are_starts_of_all_or_calls_of_all():
    calls = together("all_reduce", (100, 300), (None, 310), enqueue_ns=(50, 60))
    assert measured(*calls)["arrival_ns"].to_list() == [50, 60]
    calls = together("all_reduce", (100, 300), (None, 310), enqueue_ns=(None, 60))
    assert measured(*calls)["arrival_ns"].to_list() == [100, 60]
    assert measured(*together("all_reduce", (100, 300), (120, 310)))["arrival_ns"].to_list() == [100, 120]


def test_what_does_not_wait_for_all_has_no_waiting():
    for op in COLLECTIVE_OPS:
        found = measured(*together(op, (100, 300), (200, 310)))
        known = op in WAITING_FOR_ALL
        for column in ("wait_ns", "transfer_ns", "clock_free_wait_ns", "clock_free_transfer_ns"):
            assert found[column].is_not_null().all() == known, (op, column)
        if op not in POINT_TO_POINT:
            assert set(found["arrival_spread_ns"]) == {100} and set(found["late_rank"]) == {1}


def test_what_is_missing_is_unknown():
    found = measured(*together("all_reduce", (100, 300), (200, None)))
    assert found["wait_ns"].to_list() == [100, None] and found["transfer_ns"].to_list() == [100, None]
    assert found["arrival_spread_ns"].to_list() == [100, 100]
    for column in ("end_spread_ns", "clock_free_wait_ns", "algbw", "busbw"):
        assert found[column].null_count() == 2, column
    for calls in (together("all_reduce", (1, 2), of=(0,)), together("all_reduce", (1, 2), of=(0, 1))):
        found = measured(*calls, world_size=1)
        assert all(found[name].null_count() == 1 for name in MEASURED if name not in ("arrival_ns", "between_hosts"))
    found = measured(*together("all_reduce", (1, 20), (2, 21), size_bytes=0))
    assert found["algbw"].null_count() == 2 and found["wait_ns"].to_list() == [1, 0]
    found = measured(*together("barrier", (1, 20), (2, 21), size_bytes=0))
    assert found["busbw"].null_count() == 2


# --- clocks -----------------------------------------------------------------------------------------------------------


def test_a_spread_within_what_clocks_may_be_wrong_is_unsure():
    calls = together("all_reduce", (100, 500), (300, 510))
    for off, unsure in ((99, False), (100, True), (None, True)):
        assert measured(*calls, clock=clock_of(off, off))["unsure"].to_list() == [unsure] * 2
    # the common clock is that of one of both
    assert measured(*calls, clock=clock_of(0, 199))["unsure"].to_list() == [False] * 2


def test_only_clocks_of_its_own_ranks_count():
    calls = [one for pair in ((0, 1), (2, 3)) for one in [
        call(rank, of=pair, group=str(pair), sequence=0, group_sequence=0, start_ns=100 * rank, end_ns=900)
        for rank in pair]]
    found = measured(*calls, clock=clock_of(0, 1, 10**6, 10**6), world_size=4)
    assert found.sort("rank")["unsure"].to_list() == [False, False, True, True]


def test_clocks_that_were_not_compared_and_cannot_be_true_say_nothing():
    good, bad = [(100, 500), (300, 510)], [(100, 200), (10_000, 10_100)]
    found = measured(*together("all_reduce", *good), clock=clock_of(0, None))
    assert set(found["arrival_spread_ns"]) == {200} and set(found["unsure"]) == {True}
    # by durations: nobody knows when the last one came
    assert found["algbw"][0] == pytest.approx(16 / 210e-9)
    found = measured(*together("all_reduce", *bad), clock=clock_of(0, None))
    for column in ("arrival_spread_ns", "late_rank", "end_spread_ns", "wait_ns", "transfer_ns", "unsure"):
        assert found[column].null_count() == 2, column
    assert found["clock_free_wait_ns"].to_list() == [0, 0]


def test_ranks_that_leave_before_all_have_come_are_not_believed():
    found = measured(*together("all_reduce", (100, 200), (1000, 1100)), clock=clock_of(0, 10))
    assert set(found["unsure"]) == {True}


def test_both_ways_apart_by_more_than_clocks_and_moving_explain_are_flagged():
    calls = together("all_reduce", (0, 1000), (900, 950))
    assert measured(*calls)["disagrees"].to_list() == [False, False]
    found = measured(*together("all_reduce", (0, 2000), (900, 950)))
    assert found["wait_ns"][0] == 900 and found["clock_free_wait_ns"][0] == 1950
    assert found["disagrees"].to_list() == [True, False]
    assert not measured(*together("all_reduce", (0, 2000), (900, 950)), clock=clock_of(0, 1000))["disagrees"].any()


@pytest.mark.parametrize("odd", range(3))
def test_a_collective_is_flagged_whichever_of_its_ranks_is(odd):
    times: list[tuple[int, int]] = [(900, 950)] * 3
    times[odd] = (0, 2000)
    collectives = per_collective(measured(*together("all_reduce", *times), world_size=3))
    assert collectives["disagrees"].to_list() == [True] and coverage(collectives).num_disagreeing == 1
    unknown = per_collective(measured(*together("all_reduce", (0, 2000), (900, None))))
    assert unknown["disagrees"].to_list() == [None] and coverage(unknown).num_disagreeing == 0


# --- bandwidth --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("op", "sizes", "size", "factor"), [
    # nccl-tests: all_gather counts its output, the others their input
    ("all_reduce", (4000,) * 4, 4000, 1.5), ("all_gather", (1000,) * 4, 4000, 0.75),
    ("all_gather", (400, 1600, 1000, 1000), 4000, 0.75), ("reduce_scatter", (4000,) * 4, 4000, 0.75),
    ("all_to_all", (4000,) * 4, 4000, 0.75), ("all_to_all", (1000, 7000, 4000, 4000), 4000, 0.75)])
def test_bandwidth_as_nccl_tests_count_it(op, sizes, size, factor):
    found = measured(*together(op, (0, 3000), (1000, 3000), (500, 2900), (0, 2950), size_bytes=sizes), world_size=4)
    assert found["algbw"].to_list() == [pytest.approx(size / 2e-6)] * 4
    assert found["busbw"].to_list() == [pytest.approx(size / 2e-6 * factor)] * 4
    assert bus_factor(op, 4) == pytest.approx(factor)


def test_factors_of_all_ops():
    assert {op: bus_factor(op, 8) for op in COLLECTIVE_OPS} == {
        "all_reduce": 1.75, "all_gather": 0.875, "reduce_scatter": 0.875, "all_to_all": 0.875, "barrier": None,
        "broadcast": 1, "reduce": 1, "gather": 0.875, "scatter": 0.875, "send": 1, "recv": 1}
    assert bus_factor("all_reduce", 1) is None and bus_factor("unknown", 8) is None


def test_a_send_takes_until_it_is_received():
    calls = [call(0, "send", peer=1, start_ns=100, end_ns=450, size_bytes=800),
             call(1, "recv", peer=0, start_ns=200, end_ns=600, size_bytes=800)]
    found = measured(*calls)
    assert found["algbw"].to_list() == found["busbw"].to_list() == [pytest.approx(800 / 400e-9)] * 2
    assert found["wait_ns"].null_count() == found["arrival_spread_ns"].null_count() == 2


def test_hosts_of_a_collective():
    def between(*ranks: int, of: tuple[int, ...], hosts=HOSTS) -> list[bool | None]:
        rows = match(frame(*(call(rank, of=of) for rank in ranks)), ended=(), world_size=4)
        return with_costs(rows, ONE, hosts)["between_hosts"].unique().to_list()

    assert between(0, 1, of=(0, 1)) == [False] and between(0, 2, of=(0, 2)) == [True]
    assert between(0, of=(0, 1)) == [None], "the other rank may be anywhere"
    assert between(0, 1, of=(0, 1), hosts={0: "a", 1: None}) == [None]
    assert between(0, of=(0,)) == [False]


def test_bandwidths_are_put_together_by_op_group_size_and_reach():
    rows = []
    for number, (size, held) in enumerate(((1024, 1000), (2047, 3000), (4096, 2000))):
        rows += [call(rank, sequence=number, group_sequence=number, start_ns=number * 10_000,
                      end_ns=number * 10_000 + held, size_bytes=size) for rank in (0, 1)]
    found = bandwidths(per_collective(measured(*rows)))
    assert found["size_bucket"].to_list() == [4096, 1024] and found["num_collectives"].to_list() == [1, 2]
    assert found["algbw"].to_list() == [pytest.approx(4096 / 2e-6), pytest.approx((1024 + 2047) / 4e-6)]
    assert found["busbw"].to_list() == [pytest.approx(value) for value in found["algbw"]]  # 2 ranks: factor 1
    assert found["between_hosts"].to_list() == [False, False]
    barrier = per_collective(measured(*together("barrier", (1, 2), (1, 2), size_bytes=0)))
    assert bandwidths(barrier)["busbw"].to_list() == [None]
    assert bandwidths(per_collective(measured())).is_empty()
