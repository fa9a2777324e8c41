"""One thread of several is recorded: its steps all count once it is chosen, and it has the most that were looked at."""

from __future__ import annotations

import threading
from collections import Counter
from types import SimpleNamespace
from unittest.mock import patch

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from distprof.recording.steps import step_thread
from distprof.recording.steps.step_thread import LOOKED_AT, StepThread


def optimizer() -> torch.optim.Optimizer:
    return torch.optim.SGD([torch.zeros(1, requires_grad=True)])


def counted(turns: list[int], *, measured: bool = False, dead: frozenset[int] = frozenset()):
    """What each step of an optimizer, by its thread, was taken for; and what was said."""
    said, found, optimizers = [], [], {turn: optimizer() for turn in set(turns)}
    thread = StepThread(said.append)
    class Tasks:
        def __truediv__(self, name):
            return SimpleNamespace(exists=lambda: int(name) not in dead)

    with patch.object(step_thread, "TASKS", Tasks()):
        for turn in turns:
            with patch.object(threading, "get_native_id", return_value=turn):
                found.append(thread.counts(optimizers[turn], measured=measured))
    return found, said, thread


@given(st.lists(st.integers(1, 3), min_size=1, max_size=60))
def test_one_thread_counts_and_it_has_most_of_the_steps_that_were_looked_at(turns):
    found, said, thread = counted(turns)
    if len(set(turns)) == 1:
        assert all(found) and not said
        return
    second = next(index for index, turn in enumerate(turns) if turn != turns[0])
    end = second + LOOKED_AT
    assert all(found[:second]) and not any(found[second:end - 1])
    if len(turns) < end:
        assert thread.is_open and not said
        return
    (chosen,) = {turn for turn, counts in zip(turns[end - 1:], found[end - 1:], strict=True) if counts} or {None}
    looked_at = Counter(turns[:end])
    assert chosen is None or looked_at[chosen] == max(looked_at.values())
    if chosen is not None:
        assert all(counts == (turn == chosen) for turn, counts in zip(turns[end:], found[end:], strict=True))
    assert len(said) == 1 and not thread.is_open


@pytest.mark.parametrize("other", [2, 3])
def test_once_anything_was_measured_the_thread_stays(other):
    found, said, thread = counted([1, other, 1, other, other], measured=True)
    assert found == [True, False, True, False, False] and thread.left_out == {other} and len(said) == 1


def test_a_thread_that_has_ended_is_followed_by_another():
    found, _, thread = counted([1, 2, 1, 2, 3], measured=True, dead=frozenset({1}))
    assert found == [True, False, True, False, True] and thread.left_out == {1, 2}
