"""What a merge draws of ranks that are written: communication, chains and tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from distprof.contract.passes import ARRIVALS
from distprof.merge.chrome.drawing.drawn import DRAWN, DrawnTensor
from distprof.merge.chrome.rank_surveys import RankSurvey
from distprof.merge.chrome.step_selection import Steps
from distprof.merge.clock.model import Clock, RankClock
from distprof.merge.layout.event_selection import EventSelection

if TYPE_CHECKING:
    import polars as pl

    from distprof.merge.chrome.drawing.collectives import Drawing
    from distprof.merge.cost.collective_pieces import CollectivePieces

Chain = tuple["pl.DataFrame", "pl.DataFrame"]
"""`on_common_clock` of a `CriticalPath`, and the `MERGED_COLLECTIVES` that they name."""


def drawn_tensors(allocations: pl.DataFrame | None, chosen: list[RankSurvey], selections: Mapping[int, EventSelection],
                  clocks: Mapping[int, RankClock]) -> dict[int, list[DrawnTensor]]:
    """Tensors by rank."""
    if allocations is None:
        return {}
    from distprof.merge.chrome.drawing.memory import draw_tensors

    found = {}
    for one in chosen:
        rank, last_ns = one.rank.number, one.survey.last_ns or 0
        found[rank] = draw_tensors(allocations.filter(allocations["rank"] == rank), clocks[rank], last_ns,
                                   selections[rank].windows_ns)
    return found


def traced(collectives: CollectivePieces | None, recorded: pl.DataFrame | None) -> CollectivePieces | None:
    """Collectives up to the arrivals pass, in which there is no timeline beside which they could be drawn."""
    if collectives is None or recorded is None:
        return collectives
    import polars as pl  # takes its time: not where there are no collectives

    first = recorded.filter(pl.col("pass") == ARRIVALS)["step"].min()
    return collectives if first is None else collectives.where(
        pl.col("step").is_null() | (pl.col("step") < pl.lit(first)))


def drawn_communication(clock: Clock, collectives: CollectivePieces | None, chain: Chain | None,
                        selections: Mapping[int, EventSelection], steps: Mapping[int, Steps],
                        origin_ns: int) -> Drawing | None:
    """What is drawn of communication and chains; it is in the category of what the merge draws."""
    if (collectives is None and chain is None) or any(
            one.categories is not None and DRAWN not in one.categories for one in selections.values()):
        return None
    from distprof.merge.chrome.drawing.collectives import DrawOptions, draw_collectives
    from distprof.merge.cost.collective_pieces import CollectivePieces

    wanted = {}
    for rank, selection in selections.items():
        line, (starts, ends, numbers) = clock.line(rank), steps[rank]
        windows = None if selection.windows_ns is None else selection.windows_ns.map(line.to_common)
        wanted[rank] = DrawOptions(windows_ns=windows, min_duration_ns=selection.min_duration_ns,
                                   step_ns=dict(zip(numbers.tolist(), (ends - starts).tolist(), strict=True)))
    if collectives is None:
        assert chain is not None
        collectives = CollectivePieces.held(chain[1].clear())
    found = draw_collectives(collectives, clock, wanted, origin_ns)
    if chain is None:
        return found
    from distprof.merge.chrome.drawing.chains import draw_chains

    return replace(found, chains=draw_chains(*chain, wanted, origin_ns, found.num_arrows))
