"""Ranks and steps that fit into the size that a merged trace may have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

from distprof.errors import UsageError
from distprof.merge.chrome.budget import WithinBudget, by_importance, within_budget
from distprof.merge.chrome.drawing.drawn import BYTES_COUNTED, BYTES_DRAWN
from distprof.merge.chrome.options import MergeOptions, NumberRanges
from distprof.merge.chrome.rank_surveys import RankSurvey
from distprof.merge.chrome.step_selection import Steps
from distprof.merge.chrome.survey import Survey
from distprof.units import size

if TYPE_CHECKING:
    from distprof.merge.cost.collective_pieces import CollectivePieces


def fitting(read: list[RankSurvey], steps: Mapping[int, Steps], options: MergeOptions,
            collectives: CollectivePieces | None) -> tuple[WithinBudget | None, list[str]]:
    """Ranks and steps that fit into --max-size; None where all do."""
    rows = Counter[int]()
    for piece in collectives or ():
        rows.update(dict(piece["rank"].value_counts().iter_rows()))
    sizes = {one.rank.number: one.survey.num_bytes + rows[one.rank.number] * BYTES_DRAWN
             + one.survey.num_allocations * BYTES_COUNTED for one in read}
    if options.max_bytes is None or sum(sizes.values()) <= options.max_bytes:
        return None, []
    shares = {one.rank.number: _shares(one.survey, steps[one.rank.number]) for one in read}
    slowness = {rank: max((end - start for start, end, _ in zip(*steps[rank], strict=True)), default=0.0)
                for rank in sizes}
    choice = within_budget(sizes, by_importance(slowness, _late(collectives)), shares, options.max_bytes)
    if not choice.ranks:
        raise UsageError(f"--max-size {size(options.max_bytes)} is too small for even one step of a rank",
                         hint=f"all ranks are {size(sum(sizes.values()))} of text")
    important = ", ".join(f"{rank} ({why})" for rank, why in choice.ranks.items() if why != "fits")
    remarks = [f"--max-size {size(options.max_bytes)} of {size(sum(sizes.values()))}: dropped ranks "
               f"{NumberRanges(tuple((rank, rank) for rank in choice.left_out)) if choice.left_out else 'none'}; kept "
               f"{len(choice.ranks)}{f', including {important}' if important else ''}; slowest: by the longest step"]
    if choice.steps is not None:
        remarks.append("only these steps: "
                       + ", ".join(f"{step} ({why})" for step, why in sorted(choice.steps.items())))
    return choice, remarks


def _late(collectives: CollectivePieces | None) -> int | None:
    if collectives is None:
        return None
    from distprof.merge.cost.collectives import most_often_late

    return most_often_late(collectives)


def _shares(survey: Survey, steps: Steps) -> list[tuple[int, float]]:
    if survey.first_ns is None or survey.last_ns is None or survey.last_ns <= survey.first_ns:
        return []
    whole = survey.last_ns - survey.first_ns
    return [(number, (min(end, survey.last_ns) - max(start, survey.first_ns)) / whole)
            for start, end, number in zip(*(column.tolist() for column in steps), strict=True)
            if end > survey.first_ns and start < survey.last_ns]
