"""Lists of ranks in words."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from distprof.units import spans

LISTED = 6
"""Ranks that are listed one by one."""


def rank_list(ranks: Sequence[int]) -> str:
    """`rank 1`, `ranks 0, 1 and 3`, `ranks 0-2, 8-63`."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if len(ranks) <= LISTED:
        return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"
    return f"ranks {spans(sorted(ranks))}"


def victim_list(victims: Sequence[int], ranks: Collection[int], culprit: int) -> str:
    """The same, with `all 63 others` where many ranks, and all but one, waited."""
    if len(victims) > LISTED and set(victims) == set(ranks) - {culprit}:
        return f"all {len(victims)} others"
    return rank_list(victims)
