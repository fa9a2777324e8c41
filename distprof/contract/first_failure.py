"""Which rank failed first: its peers fail in communication because of it, and torchrun may see one of them earlier."""

from __future__ import annotations

from collections.abc import Iterable

from distprof.contract.rank_json import RankJson


def first_failure(ranks: Iterable[RankJson]) -> RankJson | None:
    """The rank with the earliest exception that is none of communication; None where there is no such.

    Clocks of hosts may differ: of several such exceptions the earliest by their own clocks is taken.
    """
    own = [one for one in ranks if one.failure is not None and not one.failure.of_communication]
    return min(own, key=lambda one: (one.failure.at_ns if one.failure is not None else 0, one.rank), default=None)


def is_victim(rank: int, ranks: Iterable[RankJson]) -> bool:
    """True where the exception of a rank is one of communication."""
    return any(one.rank == rank and one.failure is not None and one.failure.of_communication for one in ranks)
