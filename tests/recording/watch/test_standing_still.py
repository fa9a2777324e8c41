"""How long a rank stood still in the calls of a sampled step: what DDP waits for at once counts once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from distprof.contract.watch import UNKNOWN
from distprof.recording.communication.collective_call import CollectiveCall, note_wait
from distprof.recording.watch import sampled_steps
from distprof.recording.watch.sampled_steps import FoundSample

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
