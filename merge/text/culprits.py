"""Culprits in sentences: who made the others wait, and why."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from distprof.merge.blame.culprits import MATERIAL, OF_MODULES, SURE, Culprit, Explanation
from distprof.merge.text.phrases import LISTED, brief, rank_list
from distprof.units import percent

WORTH_A_WORD = 0.1
"""Smallest share of a rank's cost that is explained."""
NEEDED = 3
"""Steps that it takes to tell habit from chance."""


def culprit_lines(culprits: Sequence[Culprit], num_steps: int, ranks: Collection[int]) -> Iterator[str]:
    """`rank 2 made ranks 0, 1 and 3 wait 22.3 ms a step (39.2 %): ...; p = 0.001`, a line per culprit; or why none is
    named.

    Args:
        culprits: The most expensive first.
        num_steps: Steps that were looked at.
        ranks: All that were recorded.
    """
    certain = [one for one in culprits if one.certain]
    for one in certain:
        chance = "" if one.p_value is None else f"; {_chance(one.p_value)}"
        yield f"{_cost(one, ranks)}: {_causes(one.explanations)}{chance}"
    if not culprits:
        yield "no rank is known to have made others wait" if len(ranks) > 1 else "one rank: nobody waits"
    elif not certain:
        yield _doubt(culprits[0], num_steps, ranks)


def lines_of_summary(communication: Mapping[str, Any], ranks: Collection[int]) -> Iterator[str]:
    """The same from `communication` and `ranks` of `summary.json`."""
    return culprit_lines(msgspec.convert(communication["culprits"], list[Culprit]), len(communication["steps"]), ranks)


def _doubt(one: Culprit, num_steps: int, ranks: Collection[int]) -> str:
    """Why the rank that cost most is not called late."""
    if one.p_value is None:
        return (f"too few steps to tell habit from chance: {NEEDED} are needed (--steps trace=6 records more) and "
                f"{num_steps} {'was' if num_steps == 1 else 'were'} looked at; in {'it' if num_steps == 1 else 'them'} "
                f"{_cost(one, ranks)}: {_causes(one.explanations)}")
    if one.share is None:
        why = "its share of a step is unknown"
    elif one.share < MATERIAL:
        why = f"this is below {MATERIAL:.0%} of a step".replace("%", " %")
    else:
        why = f"this may be chance: {_chance(one.p_value)} is above {SURE}"
    text = f"no rank stands out: {_cost(one, ranks)}, but {why}"
    is_much = one.share is None or one.share >= MATERIAL
    return f"{text}; its cause would be: {_causes(one.explanations)}" if is_much else text


def _cost(one: Culprit, ranks: Collection[int]) -> str:
    are_all = len(one.victims) > LISTED and set(one.victims) == set(ranks) - {one.rank}
    victims = f"all {len(one.victims)} others" if are_all else rank_list(one.victims)
    share = "" if one.share is None else f" ({percent(one.share)})"
    return f"rank {one.rank} made {victims} wait {brief(one.cost_ns)} a step{share}"


def _causes(explanations: Sequence[Explanation]) -> str:
    worth = [one for one in explanations if one.share >= WORTH_A_WORD] or list(explanations[:1])
    if not worth:
        return "what it did meanwhile is unknown"
    if len(worth) == 1:
        return cause(worth[0])
    *most, last = (f"{cause(one)} [{100 * one.share:.0f} %]" for one in worth)
    return f"{', '.join(most)}, and {last}"


def cause(one: Explanation) -> str:
    """What the rank spent its time on, and what the others did."""
    if one.kind == "unknown":
        return "what it did before is unknown"
    if one.kind == "batch":
        return f"its batch has {one.spent_ns:.0f} samples against {one.median_ns:.0f}"
    if one.kind == "data":
        return f"loading data took {_against(one)}"
    if one.kind == "host":
        return f"{_against(one)} {one.where or 'on the host'}, outside of any module"
    subject = _subject(one)
    if one.ratio is not None and one.ratio >= 1.05:
        ratio = f"{one.ratio:.0f}" if one.ratio >= 10 else f"{one.ratio:.1f}"
        return f"{subject} took {ratio} x the median rank ({_against(one)})"
    return f"{subject} took {_against(one)}"


def _subject(one: Explanation) -> str:
    if one.kind in OF_MODULES:
        return one.kind if one.where is None else f"{one.kind} of {one.where or 'the model'}"
    if one.kind == "annotation" and one.where is not None:
        return repr(one.where)
    return {"optimizer": "the optimizer"}.get(one.kind, one.kind)


def _against(one: Explanation) -> str:
    """`20.8 ms against 0.3 ms`, in one unit."""
    if one.spent_ns is None:
        return "longer"
    if one.median_ns is None:
        return brief(one.spent_ns)
    mine = brief(one.spent_ns)
    size, unit = {"s": (1e9, "s"), "ms": (1e6, "ms")}.get(mine.split()[1], (1e3, "us"))
    places = len(mine.split()[0].partition(".")[2])
    return f"{mine} against {one.median_ns / size:.{places}f} {unit}"


def _chance(p_value: float) -> str:
    """`p = 0.003`, `p < 0.0001`."""
    return "p < 0.0001" if p_value < 1e-4 else f"p = {p_value:.1g}" if p_value < 0.1 else f"p = {p_value:.2f}"
