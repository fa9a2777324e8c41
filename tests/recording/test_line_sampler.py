"""Samples of the line that runs: taken while they are asked for, by a thread that nobody sees."""

from __future__ import annotations

import os
import threading
import time

import pytest

from distprof.recording import line_sampler
from distprof.recording.line_sampler import LineSampler
from distprof.threads import running


def nap(seconds: float) -> None:
    time.sleep(seconds)


def test_the_line_that_runs_is_seen_and_nothing_stays():
    before, threads = set(running()), threading.enumerate()
    steps = iter([3, *[4] * 1000])
    sampler = LineSampler(lambda: next(steps))
    sampler.start()
    sampler.start()
    nap(0.4)
    assert threading.enumerate() == threads
    sampler.stop()
    sampler.stop()
    assert set(running()) <= before
    rows = sampler.rows(4)
    assert {(row["step"], row["function"], row["library_call"]) for row in rows} == {(3, "nap", None)}
    assert {row["line"] for row in rows} == {nap.__code__.co_firstlineno + 1} and rows[0]["file"] == __file__
    number = len(sampler.samples)
    assert number > 5
    time.sleep(0.1)
    assert len(sampler.samples) == number
    sampler.start()
    nap(0.2)
    sampler.stop()
    assert len(sampler.samples) > number


def test_of_many_samples_every_second_one_stays(monkeypatch):
    monkeypatch.setattr(line_sampler, "MOST", 8)
    monkeypatch.setattr(line_sampler, "PERIOD_S", 0.002)
    sampler = LineSampler(lambda: 0)
    sampler.start()
    nap(0.5)
    sampler.stop()
    assert len(sampler.samples) < 8 and sampler._period_s > 0.002


@pytest.mark.filterwarnings("ignore:This process")
def test_a_child_that_is_forked_meanwhile_samples_nothing():
    sampler = LineSampler(lambda: 0)
    sampler.start()
    child = os.fork()
    if not child:
        number = len(sampler.samples)
        time.sleep(0.1)
        os._exit(len(sampler.samples) != number)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    sampler.stop()


def test_where_there_can_be_no_more_threads_nothing_is_seen(monkeypatch):
    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(line_sampler.UnseenThread, "start", refuse)
    sampler = LineSampler(lambda: 0)
    sampler.start()
    sampler.stop()
    assert not sampler.rows(1)
