"""How long a rank stood still in the calls of a sampled step: what DDP waits for at once counts once."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch.testing._internal.distributed.fake_pg import FakeStore

import distprof
from distprof.contract.watch import UNKNOWN
from distprof.recording.communication.collective_call import CollectiveCall, note_wait
from distprof.recording.watch import rank_watch, sampled_steps
from distprof.recording.watch.sampled_steps import FoundSample
from support.watched import noted

FIELDS = {"op": "all_reduce", "group": "0", "group_description": "", "group_ranks": [0, 1], "sequence": 0,
          "group_sequence": 0, "num_elements": 1, "size_bytes": 4, "dtype": "float32", "peer": None, "tag": None,
          "split_bytes": None, "asynchronous": True, "module_path": None, "phase": "backward", "step": 7}


def sampled(calls: list[CollectiveCall], span_ns: int) -> FoundSample:
    running = sampled_steps._Running(step=7, start_ns=0, cost_ns=0, marks=None, span_ns=span_ns, calls=calls)
    return sampled_steps._sample(running)


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), min_size=1, max_size=6), st.integers(40, 60),
       st.integers(0, 40))
def test_a_wait_for_several_calls_counts_once(calls, wait_begin, wait_length):
    made = []
    for enqueue, took in calls:
        call = CollectiveCall(**FIELDS, enqueue_ns=enqueue)
        call.end_ns = enqueue + took
        note_wait(call, wait_begin, wait_begin + wait_length, several=True)
        made.append(call)
    still = sampled(made, 100).step.blocked_ns
    held = {moment for call in made for moment in range(wait_begin, min(wait_begin + wait_length, call.end_ns))}
    assert UNKNOWN not in still and sum(still) == len(held)


def test_waits_one_after_the_other_count_each():
    first, second = (CollectiveCall(**FIELDS, enqueue_ns=begin) for begin in (10, 30))
    first.end_ns, second.end_ns = 25, 50
    note_wait(first, 20, 25)
    note_wait(second, 40, 50)
    unknown = CollectiveCall(**FIELDS, enqueue_ns=60)
    assert sampled([first, second, unknown], 100).step.blocked_ns == [5, 10, UNKNOWN]


@pytest.mark.parametrize(("most", "logged"), [(1024, {100}), (99, set())])
def test_of_a_step_with_many_calls_all_are_logged_or_none(tmp_path, monkeypatch, most, logged):
    monkeypatch.setattr(sampled_steps, "MOST_CALLS", most)
    monkeypatch.setattr(rank_watch, "is_sampled", lambda step, _: step % 4 == 0)
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        with distprof.record(tmp_path / "run", steps="off"):
            for _ in range(12):
                model(torch.ones(1, 2)).sum().backward()
                for _ in range(100):
                    dist.all_reduce(model.weight.grad)
                optimizer.step()
    finally:
        dist.destroy_process_group()
    assert {len(sample.step.arrived_ns) for sample in noted(tmp_path / "run").samples} == logged


def test_calls_in_a_group_of_one_are_left_out(tmp_path, monkeypatch):
    monkeypatch.setattr(rank_watch, "is_sampled", lambda step, _: step % 4 == 0)
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        alone = dist.new_group([0])
        with distprof.record(tmp_path / "run", steps="off"):
            for _ in range(12):
                model(torch.ones(1, 2)).sum().backward()
                for group in (None, alone, None, alone, None):
                    dist.all_reduce(model.weight.grad, group=group)
                optimizer.step()
    finally:
        dist.destroy_process_group()
    samples = [sample.step for sample in noted(tmp_path / "run").samples]
    assert {(len(step.arrived_ns), step.num_calls) for step in samples} == {(3, 3)}
