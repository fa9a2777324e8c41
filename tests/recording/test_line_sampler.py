"""Samples of the line that runs: taken while they are asked for, by a thread that nobody sees."""

from __future__ import annotations

import os
import sys
import threading
import time
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import distprof
from distprof.recording import line_sampler
from distprof.recording.blocking.origins import phase_of
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


def frames_of(*stack):
    """The innermost of frames, outermost first: file, line and function, or a code object."""
    frame = None
    for one in stack:
        code, line = (one, 1) if not isinstance(one, tuple) else (
            SimpleNamespace(co_filename=one[0], co_qualname=one[2], co_name=one[2]), one[1])
        frame = SimpleNamespace(f_code=code, f_lineno=line, f_back=frame)
    return frame


@pytest.mark.parametrize(("other", "line"), [
    ((("train.py", 33, "Slow.backward"),), 33),  # called by C++: a thread of autograd's
    ((("train.py", 33, "work"), ("train.py", 40, "deeper")), 40),
    ((("threading.py", 1, "_bootstrap"), ("train.py", 33, "load")), 7),
    (((line_sampler.__file__, 3, "_run"),), 7)])
def test_while_autograd_works_on_a_thread_of_its_own_the_line_is_there(other, line):
    waits = frames_of(("train.py", 7, "<module>"), line_sampler.ENGINE)
    found = line_sampler._line_of_steps({1: waits, 2: frames_of(*other)}, 1)
    assert found is not None and (found.file, found.line) == ("train.py", line)
    goes_on = frames_of(("train.py", 7, "<module>"))
    assert line_sampler._line_of_steps({1: goes_on, 2: frames_of(*other)}, 1).line == 7


def test_each_sample_says_in_which_part_of_the_step_it_is(tmp_path):
    """The line is the same everywhere."""
    found = dict[str, str]()

    def look(name: str) -> None:
        found[name] = phase_of(sys._getframe())

    class Seen(torch.autograd.Function):
        @staticmethod
        def forward(ctx, tensor):
            look("forward of a function")
            return tensor.clone()

        @staticmethod
        def backward(ctx, gradient):
            look("backward")
            return gradient

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(2, 2)

        def forward(self, tensor):
            tensor = checkpoint(lambda one: (look("recomputed"), self.inner(one))[1], tensor, use_reentrant=False)
            look("forward")
            return Seen.apply(tensor)

    class Optimizer(torch.optim.SGD):
        def step(self, closure=None):
            look("optimizer")
            return super().step(closure)

    model = Model()
    optimizer = Optimizer(model.parameters(), 0.1)

    def closure():
        look("closure")
        loss = model(torch.ones(2, 2)).sum()
        loss.backward()
        return loss

    with distprof.record(tmp_path / "run", steps="wait=0,count=0,time=3,trace=0,arrivals=0"):
        for _ in range(2):
            optimizer.step(closure)
    look("between")
    assert found == {"optimizer": "optimizer", "forward": "forward", "forward of a function": "forward",
                     "backward": "backward", "recomputed": "backward", "closure": "between", "between": "between"}
