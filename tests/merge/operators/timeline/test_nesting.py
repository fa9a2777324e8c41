"""Slices in slices, beside a stack that is gone through one by one."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from distprof.merge.operators.one_key import one_key
from distprof.merge.operators.timeline.nesting import Nesting, in_order

SLICES = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 30), st.integers(0, 12), st.booleans()), max_size=40)


def by_stack(slices: list[tuple[int, int, int, bool]]) -> list[int]:
    """As torch.profiler does: what begins behind the innermost slice, or ends behind it, ends that one."""
    found, stacks = [], {}
    for row, (thread, start, duration, held) in enumerate(slices):
        stack = stacks.setdefault(thread, [])
        if not held:
            found.append(-1)
            continue
        while stack and (start >= sum(slices[stack[-1]][1:3]) or start + duration > sum(slices[stack[-1]][1:3])):
            stack.pop()
        found.append(stack[-1] if stack else -1)
        stack.append(row)
    return found


@given(SLICES, st.sampled_from([1, 10**17]), st.sampled_from([0, 1 << 61, 1 << 62]))
def test_parents_are_those_of_a_stack(slices, apart, far):
    """Threads of which one began years later, too, and times of one thread that are centuries apart."""
    slices = [(thread, start + thread * apart + (far if start > 20 else -far), duration, held)
              for thread, start, duration, held in slices]
    slices.sort(key=lambda one: (one[0], one[1], -one[2]))
    thread, start, duration, held = (np.array(column, np.int64) for column in zip(*slices, strict=True)) \
        if slices else (np.empty(0, np.int64),) * 4
    nesting = Nesting(thread, start, start + duration, held.astype(bool))
    parents = by_stack(slices)
    assert nesting.parent.tolist() == parents
    values = np.arange(1, len(slices) + 1)
    whole, own = values.tolist(), values.tolist()
    for row in reversed(range(len(slices))):
        if parents[row] >= 0:
            whole[parents[row]] += whole[row]
            own[parents[row]] -= values[row]
    assert nesting.with_inner(values).tolist() == whole and nesting.without_inner(values).tolist() == own
    assert [row for rows, _ in nesting.downwards() for row in rows] == sorted(
        range(len(slices)), key=lambda row: (depth(row, parents), row))


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 9), st.integers(0, 5)), max_size=40),
       st.sampled_from([1, 1 << 20]))
def test_slices_come_by_thread_time_and_longest_first(slices, apart):
    thread, start, duration = (np.array([one[column] for one in slices], np.int64) for column in range(3))
    found = in_order(thread * apart, start, duration).tolist()
    assert found == sorted(range(len(slices)), key=lambda row: (thread[row], start[row], -duration[row]))


WIDE = st.integers(-2**62, 2**62 - 1)


ROWS = st.tuples(st.integers(-1, 2), st.one_of(st.integers(0, 1), WIDE), st.integers(0, 1), WIDE)


@given(st.lists(ROWS, max_size=20))
def test_one_key_is_equal_where_all_columns_are(rows):
    keys = one_key([np.array([row[column] for row in rows], np.int64) for column in range(4)]).tolist()
    assert [[one == other for one in keys] for other in keys] == [[one == other for one in rows] for other in rows]


def depth(row: int, parents: list[int]) -> int:
    return 0 if parents[row] < 0 else 1 + depth(parents[row], parents)
