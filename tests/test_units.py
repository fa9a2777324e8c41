"""Numbers as people read them."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from distprof.units import counted, spans


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


def test_one_thing_is_no_plural():
    assert [counted(number, "end of an arrow") for number in (0, 1, 2)] == [
        "0 ends of an arrow", "1 end of an arrow", "2 ends of an arrow"]
    assert counted(1, "byte") == "1 byte"
