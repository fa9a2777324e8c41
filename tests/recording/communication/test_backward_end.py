"""What the end of a backward pass waits for, of collectives that end when the test says so."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

import pytest
import torch

from distprof.recording.communication.backward_end import BUCKETS, BackwardEnd
from distprof.recording.communication.collective_call import CollectiveCall


def bucket() -> CollectiveCall:
    """A call that has returned at once."""
    known = dict.fromkeys(CollectiveCall.__struct_fields__[:-len(CollectiveCall.__struct_defaults__)])
    return CollectiveCall(**known)


def work(answers: Sequence[bool]) -> SimpleNamespace:
    """One whose future says these when it is asked whether it is done, one after the other."""
    left = list(answers)
    return SimpleNamespace(get_future=lambda: SimpleNamespace(done=lambda: left.pop(0)))


def issued_in_backward(calls: Sequence[tuple[CollectiveCall, SimpleNamespace]], operator: str) -> None:
    ends = BackwardEnd(lambda function: function)

    def issue(_gradient):
        for call, one in calls:
            ends.issued(call, operator, one, None)

    x = torch.ones(2, requires_grad=True)
    doubled = x * 2
    doubled.register_hook(issue)
    doubled.sum().backward()


def test_a_bucket_that_is_over_when_backward_has_no_more_to_do_is_not_waited_for():
    over, late = bucket(), bucket()
    issued_in_backward([(over, work([True])), (late, work([False, True]))], BUCKETS)
    assert over.wait_start_ns == over.wait_end_ns == late.wait_start_ns and not over.waits_for_several
    assert late.wait_end_ns > late.wait_start_ns and late.waits_for_several


@pytest.mark.parametrize(("answers", "operator"), [([False, False], BUCKETS), ([], "broadcast_")])
def test_what_goes_on_behind_backward_and_what_is_not_of_ddp_has_no_wait(answers, operator):
    call = bucket()
    issued_in_backward([(call, work(answers))], operator)
    assert call.wait_start_ns is None and call.wait_end_ns is None
