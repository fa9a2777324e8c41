"""Work is done side by side, taken in order, and done again where its worker is gone."""

from __future__ import annotations

import json
import os
import signal
import time
from operator import attrgetter
from pathlib import Path

import pytest

from distprof.errors import DataError
from distprof.merge.chrome import rank_surveys
from distprof.merge.chrome.options import MergeOptions
from distprof.merge.run import timelines
from distprof.merge.run.run_model import Rank
from distprof.merge.run.timelines import for_each_rank, reading_in
from distprof.merge.workers.choice import BUILT_IN, Workers
from distprof.merge.workers.pool import AHEAD, Pool, ProcessPool
from distprof.merge.writing.merge import merge
from support.rank_traces import slice_of


def squares(pool: Pool, count: int) -> list[int]:
    return list(pool.in_order(pow, ((f"square {number}", (number, 2)) for number in range(count))))


def test_results_come_in_order_and_few_are_held():
    pool, taken = Pool(2), list[int]()

    def items():
        for number in range(100):
            assert number - len(taken) <= AHEAD * pool.size + 1
            yield f"square {number}", (number, 2)

    for found in pool.in_order(pow, items()):
        taken.append(found)
    assert taken == [number**2 for number in range(100)]
    pool.close()


def test_the_workers_of_the_innermost_context_count_also_if_others_are_equal(tmp_path, monkeypatch):
    asked, pool, ranks = list[Workers](), Pool(1), [Rank(number=7, folder=tmp_path)]

    def opened(workers: Workers, *_: object) -> Pool:
        asked.append(workers)
        return Pool(1)

    def read() -> list[Workers]:
        asked.clear()
        assert list(for_each_rank("read", attrgetter("number"), ranks)) == [7]
        return list(asked)

    monkeypatch.setattr(timelines, "open_pool", opened)
    with reading_in(Workers(processes=2)):
        with reading_in(pool):
            with reading_in(Workers(processes=2)):
                assert read() == [Workers(processes=2)]
            assert read() == [], "the pool has them"
        assert read() == [Workers(processes=2)]
    assert read() == [BUILT_IN]
    pool.close()


def test_what_work_raises_is_raised_where_it_is_taken():
    pool = Pool(2)
    task = pool.submit("fail", int, "x")
    with pytest.raises(ValueError, match="'x'"):
        pool.result(task)
    assert squares(pool, 3) == [0, 1, 4]
    pool.close()


def killed_once(mark: Path, number: int) -> int:
    if not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.01)
    return number


@pytest.mark.job
def test_work_of_a_process_that_is_killed_is_done_again(tmp_path):
    pool = ProcessPool(2)
    items = ((f"count {number}", (tmp_path / "mark" if number == 5 else tmp_path, number)) for number in range(12))
    assert list(pool.in_order(killed_once, items)) == [*range(12)]
    assert (tmp_path / "mark").exists()
    pool.close()


@pytest.mark.job
def test_work_that_comes_after_a_process_was_killed_is_done(tmp_path):
    pool = ProcessPool(1)
    first = pool.submit("end 0", killed_once, tmp_path / "mark", 0)
    while first.future.running() or not first.future.done():
        time.sleep(0.05)
    second = pool.submit("count 1", killed_once, tmp_path / "mark", 1)
    assert (pool.result(second), pool.result(first)) == (1, 0)
    pool.close()


@pytest.mark.job
def test_processes_that_always_end_are_given_up():
    pool = ProcessPool(1)
    with pytest.raises(DataError, match="died 9 times in a row, last during the task: end 0") as found:
        pool.result(pool.submit("end 0", os._exit, 9))
    assert "fewer --workers" in str(found.value.hint)
    pool.close()


def test_several_items_are_one_piece_of_work():
    pool, names = Pool(2), list[str]()
    pool.batch, submit = 3, pool.submit
    pool.submit = lambda name, *work: (names.append(name), submit(name, *work))[1]
    assert squares(pool, 7) == [number**2 for number in range(7)]
    assert names == ["square 0-2", "square 3-5", "square 6"]
    assert list(pool.begun(pow, [("square 5", (5, 2)), ("square 6", (6, 2))])) == [25, 36]


def test_a_merge_has_all_of_a_trace_read_by_the_workers_it_was_given(tmp_path, monkeypatch):
    done = []

    class Noted(Pool):
        def submit(self, name, work, *args):
            done.append(name)
            return super().submit(name, work, *args)

    monkeypatch.setattr(rank_surveys, "open_pool", lambda *_: Noted(2))
    for rank in range(2):
        (tmp_path / f"rank{rank}.json").write_text(json.dumps({
            "distributedInfo": {"rank": rank, "world_size": 2, "backend": "gloo"},
            "traceEvents": [slice_of("gloo:all_reduce", 5, 5, cat="user_annotation")]}))
    merge(tmp_path, out=tmp_path / "merged", workers=Workers(processes=2), options=MergeOptions(collectives=True))
    assert sorted(done) == [f"{what} rank {rank}" for what in ("activity", "match", "survey", "write")
                            for rank in range(2)]
