"""Begins and ends of slices: each end closes the innermost begin that it may close, however many are open."""

from __future__ import annotations

import random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from distprof.merge.layout.begin_end import FEW, ambiguous_places, in_places, pair_halves

Half = tuple[int, int, str, int, int, int]
"""Time, thread, phase, name, category, link."""


def made(seed: int) -> list[Half]:
    """Halves of slices of which many are open at once."""
    chance = random.Random(seed)
    ends, names = chance.choice([1, 3, 10]), chance.choice([1, 3, 20])
    phases = "B" * 10 + "E" * ends + "be" * chance.choice([0, 2])
    return [(chance.randrange(100), chance.randrange(2), chance.choice(phases), chance.randrange(-1, names),
             chance.randrange(-1, 2), chance.randrange(2)) for _ in range(chance.randrange(10 * FEW))]


def paired(halves: list[Half]) -> dict[int, int]:
    """Begin -> end, by a look at all that are open."""
    open_begins: dict[object, list[int]] = {}
    found: dict[int, int] = {}
    for place in sorted(range(len(halves)), key=lambda place: halves[place][0]):
        _, thread, phase, name, category, link = halves[place]
        stack = open_begins.setdefault(thread if phase in "BE" else (link, category), [])
        if phase in "Bb":
            stack.append(place)
            found[place] = -1
            continue
        mine = [begin for begin in stack if (name < 0 or halves[begin][3] in (name, -1))
                and (category < 0 or halves[begin][4] == category)]
        if mine:
            stack.remove(mine[-1])
            found[mine[-1]] = place
    return found


@given(seed=st.integers(0, 2**32))
def test_an_end_closes_the_innermost_begin_that_it_may_close(seed):
    halves = made(seed)
    at, thread, phase, name, category, link = (np.array([half[part] if part != 2 else ord(half[2]) for half in halves],
                                                        np.int64) for part in range(6))
    begins, ends = pair_halves(at, thread, phase, name, category, link)
    assert dict(zip(begins.tolist(), ends.tolist(), strict=True)) == paired(halves)


@given(slices=st.lists(st.tuples(st.integers(0, 1), st.integers(0, 6), st.integers(0, 6)), max_size=12),
       order=st.randoms(use_true_random=False))
def test_where_an_end_stands_behind_a_begin_of_its_time(slices, order):
    rows = list(range(2 * len(slices)))
    order.shuffle(rows)
    begin_row = np.array(rows[:len(slices)], np.int64)
    end_row = np.array([row if row % 5 else -1 for row in rows[len(slices):]], np.int64)
    thread, start, duration = (np.array([one[part] for one in slices], np.int64) for part in range(3))
    wanted = {(on, at + lasts) for (on, at, lasts), end in zip(slices, end_row.tolist(), strict=True)
              for (other, begins, _), begin in zip(slices, begin_row.tolist(), strict=True)
              if end >= 0 and on == other and begins == at + lasts and begin < end}
    found = ambiguous_places(thread, start, start + duration, begin_row, end_row)
    assert found == wanted
    assert in_places(thread, start, found).tolist() == [
        number for number, (on, at, _) in enumerate(slices) if (on, at) in wanted]
