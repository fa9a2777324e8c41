"""Numbers as people read them."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from distprof.units import spans


@given(st.sets(st.integers(0, 60)))
def test_spans_hold_exactly_the_numbers(numbers):
    parts = [part.split("-") for part in spans(sorted(numbers)).split(", ") if part]
    assert {number for part in parts for number in range(int(part[0]), int(part[-1]) + 1)} == numbers
    assert all(int(second[0]) > int(first[-1]) + 1 for first, second in pairwise(parts))
