"""The rank that failed first, from what the ranks wrote down and what the launcher saw."""

from __future__ import annotations

from collections.abc import Sequence

from distprof.contract.problems import RankFailed
from distprof.contract.rank_json import RankJson, first_failure, is_victim
from distprof.merge.run.launches import Launch


def failed_first(about: Launch | None, ranks: Sequence[RankJson]) -> list[RankFailed]:
    """One problem; nothing where neither an exception nor the launcher tells.

    Nor is a rank named that failed in communication while others ended without a word, as on a host that died: each
    of them is a problem of its own.
    """
    first = first_failure(ranks)
    seen = about.failed_rank if about is not None else None
    if first is not None and (seen in (None, first.rank) or (seen is not None and is_victim(seen, ranks))):
        code = about.failed_with if about is not None and seen == first.rank else None
        return [RankFailed(rank=first.rank, exit_code=code, why=_why(first))]
    if about is None or seen is None or (is_victim(seen, ranks) and any(map(_is_silent, ranks))):
        return []
    why = next((_why(one) for one in ranks if one.rank == seen), None)
    return [RankFailed(rank=seen, exit_code=about.failed_with or 0, why=why)]


def _is_silent(rank: RankJson) -> bool:
    """True for a rank that was killed, or whose host was."""
    return rank.status == "recording" and rank.failure is None


def _why(rank: RankJson) -> str | None:
    if rank.failure is not None:
        return rank.failure.what
    return rank.why if rank.status == "complete" else None
