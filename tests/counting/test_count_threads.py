"""Counting beside other threads: several counts at once, models that serve meanwhile, models with threads inside."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

import distprof
from support.left_behind import traces_of_us


class Fork(nn.Module):
    """Calls one of its layers on a thread of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.here, self.there = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)

    def forward(self, x):
        with ThreadPoolExecutor(1) as pool:
            found = pool.submit(self.there, x)
        return self.here(x) + found.result()


@pytest.mark.long
def test_two_threads_count_at_once():
    def work(width: int) -> set[tuple[int, int]]:
        model = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(20)))
        x = torch.randn(2, width)
        found = set()
        for _ in range(3):
            counts = distprof.count(model, x, backward=True)
            timed = distprof.profile(model, x, backward=True, warmup=0, runs=2)
            found |= {(counts.flops, len(counts.modules)), (timed.flops, len(timed.latencies))}
        return found

    work(2)  # torch imports its compiler at the first backward and sets a variable of its own
    before = traces_of_us()
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(work, (3, 4, 5, 6)))
    # forward, gradients of weights, and of all inputs but the first
    assert found == [{((20 + 20 + 19) * 2 * 2 * width**2, 21)} for width in (3, 4, 5, 6)]
    assert traces_of_us() == before


def test_a_model_that_another_thread_runs_is_not_in_the_count():
    other, stop, ran = nn.Sequential(nn.Linear(4, 4)), threading.Event(), threading.Event()

    class Waits(nn.Module):
        def forward(self, x):
            ran.clear()
            assert ran.wait(60), "the other thread runs its model meanwhile"
            return x @ x

    def serve() -> None:
        while not stop.is_set():
            other(torch.ones(1, 4))
            ran.set()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        counts = distprof.count(Waits(), torch.ones(4, 4))
        timed = distprof.profile(Waits(), torch.ones(4, 4), warmup=0, runs=1)
    finally:
        stop.set()
        thread.join()
    assert [module.path for module in counts.modules] == [""] and counts.flops == 2 * 64
    assert set(timed.latencies) == {""}


def test_what_a_thread_of_the_model_does_counts_and_is_timed():
    model, x = Fork(), torch.randn(2, 4)
    assert distprof.count(model, x).by_module() == {"": 128, "here": 64, "there": 64}
    assert distprof.profile(model, x, warmup=0, runs=1).latencies["there"].fwd_ns is not None
