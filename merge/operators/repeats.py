"""Finds the repeated parts of texts: the maximal repeats, except those that are repetitions of a shorter one.

A part is a maximal repeat if it occurs at least twice and neither the preceding nor the following symbol is the same at
all of its occurrences: every other repeated part lies in one of these wherever it occurs (Gusfield, Algorithms on
Strings, Trees, and Sequences, 1997, section 7.12). Parts of one length are identified by numbers, made from those of
the parts that are one shorter, as in Karp, Miller and Rosenberg, Rapid Identification of Repeated Patterns, 1972; a
part that occurs only once is not extended. Symbols are sorted once per length, for all texts together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from distprof.arrays import Array, Flags, Integers
from distprof.merge.operators.one_key import one_key, sorted_places


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeat:
    """A repeated part."""

    length: int
    """Length in symbols."""
    starts: Integers
    """Indices at which it begins, ascending; no two occurrences overlap."""


def maximal_repeats(symbols: Integers, text: Integers, most: int) -> Iterator[Repeat]:
    """Yields the maximal repeats of 2 to `most` symbols that occur twice without overlap, the shortest first.

    A repetition is left out, such as `abab` or `ababa` if `ab` is repeated; of a single symbol, `aa` is kept.

    Args:
        symbols: Numbers from 0 on, all texts concatenated.
        text: The text that each symbol belongs to, ascending. A repeat lies within one text.
        most: Maximum length.
    """
    places = np.arange(len(symbols))
    ends = np.searchsorted(text, text, "right")
    before = np.where(np.append(-1, text[:-1]) == text, np.append(-1, symbols[:-1]), -1 - places) if len(text) else text
    part = symbols
    for length in range(2, most + 1):
        last = places + length - 1
        inside = last < ends[places]
        part, places = one_key([part[inside], symbols[last[inside]]]), places[inside]
        part, again = _again(part)
        part, places = part[again], places[again]
        if not len(places):
            return
        behind = np.where(places + length < ends[places], np.append(symbols, -1)[places + length], -1 - places)
        order = sorted_places(part)
        begins = np.flatnonzero(np.diff(part[order], prepend=-1))
        differs = _differs(before[places][order], begins) & _differs(behind[order], begins)
        groups = np.split(places[order], begins[1:])
        for number in np.flatnonzero(differs).tolist():
            starts = _apart(groups[number], length)
            if len(starts) > 1 and not _is_repetition(symbols[starts[0]:starts[0] + length].tolist()):
                yield Repeat(length=length, starts=starts)


def _again(part: Integers) -> tuple[Integers, Flags]:
    """Renumbers parts from 0 on, and returns which of them occur more than once."""
    _, number, count = np.unique(part, return_inverse=True, return_counts=True)
    return number, count[number] > 1


def _differs(values: Array, begins: Array) -> Flags:
    """Returns, for each group of values, which start at `begins`, whether they are not all the same."""
    found: Flags = np.minimum.reduceat(values, begins) != np.maximum.reduceat(values, begins)
    return found


def _apart(starts: Integers, length: int) -> Integers:
    """Returns the largest set of places that do not overlap, greedily taking the first possible one."""
    if len(starts) < 2 or int(np.diff(starts).min()) >= length:
        return starts
    found, free = list[int](), -1
    for start in starts.tolist():
        if start >= free:
            found.append(start)
            free = start + length
    return np.array(found, np.int64)


def _is_repetition(word: Sequence[int]) -> bool:
    """Returns whether a word is another one at least twice in a row, possibly followed by a prefix of it.

    Its smallest period is found with the failure function of Knuth, Morris and Pratt.
    """
    border, fail = 0, [0] * len(word)
    for place in range(1, len(word)):
        while border and word[place] != word[border]:
            border = fail[border - 1]
        border += word[place] == word[border]
        fail[place] = border
    period = len(word) - border
    return 2 * period <= len(word) and len(word) > 2
