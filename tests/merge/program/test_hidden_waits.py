"""Waits that nothing shows are found from what threads call next."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from distprof.merge.activity.activities import Activities
from distprof.merge.activity.rank_activity import collectives_by_rank, rank_activity
from distprof.merge.activity.rank_slices import SCHEMA
from distprof.merge.program.job import by_rank_and_time
from distprof.merge.program.missed_waits import waits_at_once
from distprof.merge.program.waits import waits_of

WORK_NS = 1_000_000
RANKS = 4


def job(*, waits: bool, jitter: float, number: int, seed: int, moved_ns: int = 200_000) -> pl.DataFrame:
    """Rounds of four ranks: each calls op A at another time, waits for it or not, works, calls B and waits for it."""
    random = np.random.default_rng(seed)
    now, found = 0.0, []
    for place in range(number):
        called = now + random.uniform(0, WORK_NS / 4, RANKS)
        end = called.max() + moved_ns
        work = WORK_NS * (1 + jitter * random.uniform(-1, 1, RANKS))
        next_call = (end if waits else called) + work
        now = next_call.max() + moved_ns
        found += [(rank, 2 * place + is_b, "b" if is_b else "a", round(at[rank]), round(until))
                  for rank in range(RANKS) for is_b, at, until in ((0, called, end), (1, next_call, now))]
    return pl.DataFrame(found, schema=["rank", "collective", "op", "enqueue_ns", "end_ns"], orient="row").sort(
        "rank", "enqueue_ns").with_columns(group=pl.lit("tp"), timed_by=pl.lit("timeline"))


def hidden(rows: pl.DataFrame) -> list[int]:
    """Rows of A for which threads waited; those for B are known."""
    is_b = np.flatnonzero(rows["op"] == "b")
    return waits_at_once(rows, is_b, rows["enqueue_ns"].gather(is_b).to_numpy()).tolist()


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("jitter", [0.0, 0.02, 0.1])
def test_threads_that_stand_still_are_told_from_those_that_go_on(jitter, seed):
    rows = job(waits=True, jitter=jitter, number=40, seed=seed)
    assert hidden(rows) == np.flatnonzero(rows["op"] == "a").tolist()
    assert hidden(job(waits=False, jitter=jitter, number=40, seed=seed)) == []


def test_work_that_varies_more_than_what_was_waited_tells_nothing():
    assert hidden(job(waits=True, jitter=0.9, number=12, seed=1)) == []


def test_a_thread_that_calls_the_next_op_before_the_end_does_not_wait():
    rows = job(waits=True, jitter=0.02, number=40, seed=1)
    later = rows.with_columns(pl.col("end_ns") + 2 * WORK_NS)
    assert hidden(later) == []
    assert hidden(later.with_columns(timed_by=pl.lit("future"))) == hidden(rows), "the end may have been noted late"


def test_a_few_rows_tell_nothing():
    assert hidden(job(waits=True, jitter=0.02, number=4, seed=1)) == []


def test_behind_a_known_wait_for_another_op_nothing_shows():
    """Ranks leave it together, so they call the next op together whether they waited for this one or not."""
    rows = job(waits=False, jitter=0.02, number=40, seed=1)
    # B is called just before A, and threads wait for it where they called it
    before = pl.when(pl.col("op") == "b").then(pl.col("enqueue_ns").shift().over("rank") - 1).otherwise("enqueue_ns")
    earlier = rows.with_columns(enqueue_ns=before, begin_ns="enqueue_ns").sort("rank", "enqueue_ns")
    known = np.flatnonzero(earlier["op"] == "b")
    begin = earlier["begin_ns"].gather(known).to_numpy()
    assert waits_at_once(earlier, known, begin).tolist() == []
    as_if_unknown = earlier["enqueue_ns"].gather(known).to_numpy()
    assert len(waits_at_once(earlier, known, as_if_unknown)) > 100


@pytest.mark.parametrize(("noted_ms", "wait"), [(60, (10, 60)), (65, (10, 60)), (80, (62, 80))])
def test_the_pause_behind_backward_is_a_wait_though_a_busy_machine_notes_the_end_late(noted_ms, wait):
    """Rank 0 pauses from 10 to 60 ms, and the op is noted to end then or later; if much later, it waits behind all."""
    ms = 1_000_000
    table = pl.DataFrame({"rank": [0], "collective": [0], "op": ["all_reduce"], "group": ["dp"], "num_ranks": [2],
                          "enqueue_ns": [9 * ms], "end_ns": [noted_ms * ms], "timed_by": ["timeline"]})
    operators = [(0, 10), (60, 62)]
    events = pl.DataFrame([{"name": "aten::mm", "category": "cpu_op", "start_ns": start * ms,
                            "duration_ns": (end - start) * ms, "thread": "1"} for start, end in operators], SCHEMA)
    calls = collectives_by_rank(table.with_columns(arrival_ns="enqueue_ns", wait_ns=None, step=0))[0]
    did = rank_activity(events, calls, Activities(), waits_drawn=False)
    found = waits_of(table, {0: did})
    assert list(zip(found.begin_ns // ms, found.end_ns // ms, strict=True)) == [wait]


@pytest.mark.parametrize("first_ns", [0, 2 ** 60])
def test_what_a_rank_calls_in_one_microsecond_remains_in_order(first_ns):
    """Traces in whole microseconds have equal times."""
    rank, at = np.repeat([1, 0], 500), np.tile(np.repeat([first_ns + 1000, first_ns, 0], [200, 200, 100]), 2)
    turn = np.zeros(len(rank), np.int64)
    expected = sorted(range(len(rank)), key=lambda index: (rank[index], at[index]))
    assert by_rank_and_time(rank, at, turn).tolist() == expected
