"""Frames of a rank's watch: what is written is read, whatever is cut off or damaged."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distprof.contract.watch import (
    GROWING,
    IN_KIB,
    MARK,
    SUMMED,
    TIMES,
    UNKNOWN,
    Frame,
    Note,
    SampledStep,
    StepRows,
    encoded,
    frames,
    is_sampled,
    joined,
    sparseness,
)

COLUMNS = StepRows.__struct_fields__
UNITS = dict.fromkeys(TIMES, 1000) | dict.fromkeys(IN_KIB, 1024)


def values_of(name: str) -> st.SearchStrategy[int]:
    most = (1 << 50) // UNITS.get(name, 1)
    known = st.integers(0, most).map(lambda value: value * UNITS.get(name, 1))
    return known if name in ("first_step", "num_steps", "end_ns", "span_ns") else known | st.just(UNKNOWN)


@st.composite
def some_rows(draw: st.DrawFn) -> StepRows:
    number = draw(st.integers(0, 8))
    return StepRows(**{name: draw(st.lists(values_of(name), min_size=number, max_size=number)) for name in COLUMNS})


@st.composite
def some_frames(draw: st.DrawFn) -> Frame:
    groups = draw(st.lists(st.tuples(st.text(max_size=4), st.lists(st.integers(0, 99_999), min_size=1, max_size=6,
                                                                   unique=True)), min_size=1, max_size=3))
    names = draw(st.lists(st.text(max_size=8), min_size=1, max_size=3))
    calls = draw(st.integers(0, 5))
    times = st.lists(st.just(UNKNOWN) | st.integers(0, 10**9).map(lambda us: us * 1000), min_size=calls, max_size=calls)
    sample = SampledStep(
        step=draw(st.integers(0, 10**9)), start_ns=draw(st.integers(0, 1 << 61)), span_ns=draw(st.integers(0, 10**12)),
        num_calls=calls, group=draw(st.lists(st.integers(0, len(groups) - 1), min_size=calls, max_size=calls)),
        op=draw(st.lists(st.integers(0, len(names) - 1), min_size=calls, max_size=calls)),
        arrived_ns=draw(times), took_ns=draw(times), blocked_ns=draw(times))
    note = Note(time_ns=5, step=3, kind="evaluation", text=draw(st.text(max_size=9)))
    return Frame(rows=draw(some_rows()), samples=draw(st.sampled_from(([], [sample]))),
                 notes=draw(st.sampled_from(([], [note]))), groups=groups, names=names)


@pytest.mark.long
@given(st.lists(some_frames(), max_size=4))
def test_frames_are_read_as_they_were_written(every):
    content = b"".join(map(encoded, every))
    found = list(frames(content))
    assert [frame for _, frame in found] == every
    assert not found or found[-1][0] == len(content)


@pytest.mark.long
@given(st.lists(some_frames(), min_size=1, max_size=3), st.data())
def test_what_is_cut_off_costs_the_last_frame_and_can_be_read_on(every, data):
    parts = list(map(encoded, every))
    content = b"".join(parts)
    cut = data.draw(st.integers(0, len(content) - 1))
    found = list(frames(content[:cut]))
    whole = sum(sum(map(len, parts[:number + 1])) <= cut for number in range(len(parts)))
    assert [frame for _, frame in found] == every[:whole]
    end = found[-1][0] if found else 0
    assert [frame for _, frame in frames(content[end:])] == every[whole:]


@pytest.mark.long
@given(st.lists(some_frames(), min_size=2, max_size=4), st.data())
def test_damage_costs_the_frame_it_is_in(every, data):
    parts = list(map(encoded, every))
    hit = data.draw(st.integers(0, len(parts) - 1))
    place, bit = data.draw(st.integers(0, len(parts[hit]) - 1)), data.draw(st.integers(0, 7))
    changed = bytearray(parts[hit])
    changed[place] ^= 1 << bit
    content = b"".join((*parts[:hit], bytes(changed), *parts[hit + 1:]))
    assert [frame for _, frame in frames(content)] == [*every[:hit], *every[hit + 1:]]


@given(st.binary(max_size=64))
def test_bytes_of_any_kind_are_no_frames(content):
    assert list(frames(content)) == []
    assert list(frames(MARK + content)) == []


@pytest.mark.long
@given(some_rows())
def test_joined_rows_keep_their_sums(rows):
    if not rows.first_step:
        return
    row = joined(rows, 0, len(rows.first_step) - 1)
    assert row["num_steps"] == sum(rows.num_steps)
    assert row["first_step"] == rows.first_step[0]
    assert row["longest_ns"] == max(rows.longest_ns)
    for name in SUMMED:
        values = getattr(rows, name)
        assert row[name] == (UNKNOWN if UNKNOWN in values else sum(values))
    for name in set(GROWING) - {"first_step", "longest_step"}:
        assert row[name] == getattr(rows, name)[-1]


@given(st.integers(0, 10**9), st.integers(0, 19))
def test_rarer_samples_are_among_the_others(step, exponent):
    assert is_sampled(step, exponent) or not is_sampled(step, exponent + 1)


def test_samples_are_as_many_as_wanted_and_lie_evenly_in_any_rhythm():
    for exponent in (3, 6):
        steps = [step for step in range(100_000) if is_sampled(step, exponent)]
        gaps = [after - before for before, after in pairwise(steps)]
        assert abs(len(steps) * 2**exponent - 100_000) < 1_000
        assert max(gaps) < 3 * 2**exponent
        assert sparseness(steps) == exponent
        for period in (2, 4, 8, 10, 16, 64, 100):  # accumulation, logging, checkpoints
            share = sum(step % period == 0 for step in steps) / len(steps)
            assert 0.7 / period < share < 1.3 / period, (exponent, period)
