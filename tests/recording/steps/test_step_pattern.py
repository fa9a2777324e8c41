"""The pattern of optimizer steps: found from turns alone, over random patterns."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from distprof.recording.steps.pattern import (
    MOST_TURNS,
    PatternFollower,
    iteration_at_end,
    most_frequent,
)


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
