"""The pattern of optimizer steps, found from turns alone, over random patterns; which thread of several is recorded."""

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
from distprof.recording.steps.pattern import (
    MOST_TURNS,
    PatternFollower,
    iteration_at_end,
    most_frequent,
)
from distprof.recording.steps.step_thread import LOOKED_AT, StepThread


@st.composite
def iterations(draw) -> list[int]:
    """Optimizers in turn, each several times; numbered in the order of their first step."""
    return [number for number, times in enumerate(draw(st.lists(st.integers(1, 7), min_size=1, max_size=4)))
            for _ in range(times)]


def found_after(turns: list[int]) -> tuple[int, tuple[int, ...]] | None:
    """The number of turns after which an iteration is found once all optimizers have stepped, and the iteration."""
    first = max(turns.index(number) for number in set(turns))
    return next(((number, found) for number in range(first + 1, len(turns) + 1)
                 if (found := iteration_at_end(turns[:number])) is not None), None)


@given(iterations())
def test_runs_of_optimizers_are_found_when_they_have_come_twice_and_not_before(iteration):
    found = found_after(iteration * 4)
    if len(set(iteration)) == 1:
        assert found == (2, (0,))  # nothing tells how many steps of the only optimizer make one
    else:
        assert found == (2 * len(iteration), tuple(iteration))


@given(iterations().filter(lambda one: len(set(one)) > 1), st.integers(1, 20))
def test_what_comes_before_the_pattern_does_not_shift_it(iteration, before):
    """The first optimizer alone for a while, a warm-up say: an iteration still ends with the last one's last step."""
    turns = [0] * before + iteration * 6
    found = found_after(turns)
    assert found is not None
    number, pattern = found
    assert pattern == tuple(iteration)
    assert (number - before) % len(iteration) == 0


@given(iterations(), st.integers(1, 5))
def test_a_follower_ends_each_iteration_once(iteration, times):
    follower = PatternFollower(iteration)
    ended = [follower.ends(number) for number in iteration * times]
    assert [index + 1 for index, one in enumerate(ended) if one] == [
        len(iteration) * (index + 1) for index in range(times)]
    assert not follower.left


@given(st.data())
def test_a_turn_that_is_left_out_does_not_shift_the_iterations_behind_it(data):
    iteration = [0, 0, 0, 1, 2]
    turns = iteration * 5
    lost = data.draw(st.integers(0, len(turns) - 6).filter(lambda index: turns[index] != 2))  # not the end of one
    follower = PatternFollower(iteration)
    ends = [follower.ends(number) for index, number in enumerate(turns) if index != lost]
    assert ends[-5:] == [False, False, False, False, True]
    assert sum(ends) == 5 and follower.left


@given(st.lists(st.integers(0, 2), min_size=1, max_size=MOST_TURNS))
def test_what_is_found_is_what_was_seen_at_the_end_and_has_every_optimizer(turns):
    found = iteration_at_end(turns)
    if found is not None:
        assert set(found) == set(turns)
        assert tuple(turns[-2 * len(found):]) == found * 2


@given(st.lists(st.integers(0, 4), min_size=1))
def test_the_most_frequent_optimizer(turns):
    assert all(turns.count(most_frequent(turns)) >= turns.count(other) for other in turns)


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
