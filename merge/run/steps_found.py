"""What ranks found to be a step of the job, and where that is not certain."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal

from distprof.contract.problems import StepsUnsure
from distprof.contract.rank_json import RankJson, StepRule, StepsFound

LEFT: dict[StepRule, Literal["late", "explicit"]] = {"forward": "late", "explicit": "explicit"}
"""What it means that optimizers stepped otherwise than found."""


def unsure(ranks: Sequence[RankJson]) -> Iterator[StepsUnsure]:
    """Why a step may not be what the user takes it for, each reason once."""
    known = [(rank.rank, rank.steps_found) for rank in ranks if rank.steps_found is not None]
    if not known:
        return
    usual = _alike(known[0][1])
    others = tuple(number for number, found in known if _alike(found) != usual)
    if others:
        yield StepsUnsure(what="differ", ranks=others)
    found = known[0][1]
    names = tuple(one.name for one in found.optimizers)
    if found.rule == "irregular":
        yield StepsUnsure(what="irregular", num_turns=found.looked_at, names=names)
    if found.silent:
        yield StepsUnsure(what="silent", num_turns=found.looked_at, names=tuple(dict.fromkeys(found.silent)))
    if found.left_in is not None:
        yield StepsUnsure(what=LEFT.get(found.rule, "left"), step=found.left_in)


def _alike(found: StepsFound) -> Any:
    """What is equal on all ranks; names are not: stages of a pipeline hold other modules."""
    in_order = [] if found.rule in ("backward", "given") else [one.steps for one in found.optimizers]
    return found.rule, in_order, found.given, found.looked_at
