"""Numbers as people read them."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distprof.units import counted, duration, spans


@given(st.sets(st.integers(0, 60)))
def test_spans_hold_exactly_the_numbers(numbers):
    parts = [members(part) for part in spans(sorted(numbers)).split(", ") if part]
    assert {number for part in parts for number in part} == numbers
    assert all(second[0] > first[-1] for first, second in pairwise(parts))
    assert all(second[0] > first[-1] + 1 for first, second in pairwise(parts) if first.step == second.step == 1), (
        "neighbours are one range")


def members(part: str) -> range:
    """Of `7`, `1-3` or `0-24 by 8`."""
    ends, _, stride = part.partition(" by ")
    first, _, last = ends.partition("-")
    return range(int(first), int(last or first) + 1, int(stride or 1))


def test_numbers_with_equal_gaps_are_a_range_from_four_on():
    assert spans([0, 8, 16, 24, 25]) == "0-24 by 8, 25" and spans([0, 8, 16]) == "0, 8, 16"


@pytest.mark.parametrize(("ns", "text"), [
    (None, "-"), (0, "0 ns"), (999, "999 ns"), (999.4, "999 ns"), (999.5, "1.00 us"), (1000, "1.00 us"),
    (999_994, "999.99 us"), (999_995, "1.00 ms"), (999_996, "1.00 ms"), (107_828_494, "107.83 ms"),
    (999_994_999, "999.99 ms"), (999_995_000, "1.00 s"), (999_999_999, "1.00 s"), (1e9, "1.00 s"),
    (5e12, "5000.00 s"), (-999_996, "-1.00 ms")])
def test_durations_have_the_unit_of_what_they_are_rounded_to(ns, text):
    assert duration(ns) == text


@given(st.floats(-1e12, 1e12))
def test_no_duration_below_a_second_has_four_digits(ns):
    assert duration(ns).endswith(" s") or abs(float(duration(ns).split()[0])) < 1000


def test_one_thing_is_no_plural():
    assert [counted(number, "end of an arrow") for number in (0, 1, 2)] == [
        "0 ends of an arrow", "1 end of an arrow", "2 ends of an arrow"]
    assert counted(1, "byte") == "1 byte"
