"""Maximal repeats of random texts, against counting every part of them by hand."""

from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distprof.merge.operators.repeats import maximal_repeats

TEXTS = st.lists(st.lists(st.integers(0, 3), max_size=24), max_size=4)


def apart(places, length):
    """The most of them that do not overlap, by trying all: from behind, with and without each one."""
    best = [0] * (len(places) + 1)
    for number in range(len(places) - 1, -1, -1):
        following = next((one for one in range(number, len(places)) if places[one] >= places[number] + length),
                         len(places))
        best[number] = max(best[number + 1], 1 + best[following])
    return best[0]


def by_hand(texts, most):
    found = defaultdict(list)
    for number, text in enumerate(texts):
        for begin in range(len(text)):
            for length in range(2, min(most, len(text) - begin) + 1):
                found[tuple(text[begin:begin + length])].append((number, begin))
    counts = {}
    for word, places in found.items():
        size = len(word)
        before = [(texts[n][b - 1],) if b else (n, b) for n, b in places]
        behind = [(texts[n][b + size],) if b + size < len(texts[n]) else (n, b) for n, b in places]
        periods = [one for one in range(1, size // 2 + 1) if word[one:] == word[:-one]]
        times = sum(apart([b for n, b in places if n == number], size) for number in range(len(texts)))
        if times > 1 and len(set(before)) > 1 and len(set(behind)) > 1 and (not periods or size == 2):
            counts[word] = times
    return counts


def found_in(texts, most):
    symbols = np.array([one for text in texts for one in text], np.int64)
    numbers = np.repeat(np.arange(len(texts)), [len(text) for text in texts])
    each = list(maximal_repeats(symbols, numbers, most))
    for one in each:
        words = {tuple(symbols[start:start + one.length]) for start in one.starts}
        assert len(words) == 1 and all(len(set(numbers[start:start + one.length])) == 1 for start in one.starts)
        assert (np.diff(one.starts) >= one.length).all()
    found = {tuple(symbols[one.starts[0]:one.starts[0] + one.length].tolist()): len(one.starts) for one in each}
    assert len(found) == len(each)
    return found


@pytest.mark.long
@settings(max_examples=400, deadline=None)
@given(TEXTS, st.integers(2, 12))
def test_they_are_those_that_are_found_by_hand(texts, most):
    assert found_in(texts, most) == by_hand(texts, most)


@pytest.mark.long
@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 2), min_size=2, max_size=6), st.integers(2, 5), st.integers(2, 4))
def test_texts_of_layers_as_well(layer, times, steps):
    texts = [[7, *layer * times, 8, 9]] * steps
    assert found_in(texts, 32) == by_hand(texts, 32)


def test_each_part_of_a_longer_one_is_not_listed_again():
    assert found_in([[0, 1, 2, 3], [4, 0, 1, 2, 3, 5]], 32) == {(0, 1, 2, 3): 2}
    assert found_in([[0, 1, 2, 3], [4, 0, 1, 2, 3, 5], [1, 2, 9]], 32) == {(0, 1, 2, 3): 2, (1, 2): 3}


def test_what_repeats_a_shorter_one_is_that_one():
    assert found_in([[0, 1] * 6], 32) == {(0, 1): 6}
    assert found_in([[0] * 7], 32) == {(0, 0): 3}


def test_longer_than_the_longest_is_not_cut():
    assert found_in([[0, 1, 2, 3]] * 2, 3) == {}


def test_nothing_comes_again_in_nothing():
    assert found_in([], 32) == found_in([[], [0], [1, 2]], 32) == {}
