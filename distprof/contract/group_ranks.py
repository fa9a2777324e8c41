"""The ranks of a process group as a text: what tables hold, and what commands print."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

from distprof.contract.rank_json import MOST_RANKS
from distprof.units import spans

_RANGE = re.compile(r"([0-9]{1,7})(?:-([0-9]{1,7})(?: by ([0-9]{1,7}))?)?")


def text_of(ranks: Sequence[int]) -> str:
    """`0-3`, `0, 2, 5-7`, `0-24 by 8`: ranks in the order in which the group has them."""
    return spans(ranks)


@lru_cache(maxsize=1 << 14)
def ranks_of(text: str | None) -> tuple[int, ...]:
    """The ranks of such a text, in its order; none where it is null or says no ranks that can be."""
    found = list[int]()
    for part in (text or "").split(", "):
        match = _RANGE.fullmatch(part)
        if match is None:
            return ()
        first, last, stride = match.groups()
        some = range(int(first), int(last or first) + 1, int(stride or 1) or MOST_RANKS)
        if not some or len(found) + len(some) > MOST_RANKS:
            return ()  # a text of some bytes may be meant to take all memory
        found += some
    return tuple(found)
