"""Exports execution traces, one file per rank, and collects what each file contains and lacks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import polars as pl

from distprof.contract.collective_ops import POINT_TO_POINT
from distprof.errors import DataError, UsageError
from distprof.merge.clock.model import UNSHIFTED, Clock
from distprof.merge.execution.dependencies.stream_waits import num_blind
from distprof.merge.execution.formats.chakra_nodes import chakra_nodes, write_chakra
from distprof.merge.execution.formats.comm_replay import replay_input, write_replay
from distprof.merge.execution.formats.drawing import write_graph
from distprof.merge.execution.formats.linked_json import write_linked
from distprof.merge.execution.linking import Links
from distprof.merge.execution.pairing import observed_process, process_of
from distprof.merge.execution.process_groups import (
    ExportContext,
    Target,
    Written,
    groups_of,
    sizes_of,
    with_groups,
)
from distprof.merge.execution.rank_execution import RankExecution, Sources, each_rank, rank_calls
from distprof.merge.execution.rank_graph import RankGraph
from distprof.merge.run.run_model import Rank, Run
from distprof.merge.scan.chrome_file import Losses
from distprof.units import spans

SUFFIXES = {"chakra": "et", "linked": "json", "dot": "dot", "graphml": "graphml", "svg": "svg"}
REPLAY_FILE = "rank-{rank}.json"
"""File name that comm_replay looks for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """What was written for a rank."""

    number: int
    file: Path
    written: Written
    links: Links | None
    """None without an execution trace."""
    is_cut: bool
    """Whether the execution trace is cut off."""
    lost_bytes: int
    """Bytes of the execution trace that could not be read."""
    unseen: int
    """Communication whose work the timeline does not show; it is not exported."""
    partial: frozenset[tuple[int, str]] = frozenset()
    """Numbers and ops of collectives that the timelines of some of their ranks do not show."""
    calls: Mapping[str, int] = field(default_factory=dict)
    """Op -> number of nodes with this op."""
    untimed_calls: int = 0
    """Communication that is in the execution trace but not in the timeline."""
    processes: frozenset[int] = frozenset()
    """Process numbers that the execution trace and the timeline state; two if they differ."""
    blind_waits: int = 0
    """Waits of streams for events that the timeline does not show."""


def chosen_ranks(run: Run, sources: Sources, wanted: Sequence[int]) -> list[Rank]:
    """Returns the wanted ranks, or all ranks with something to export if none are wanted.

    Raises:
        DataError: No rank has anything to export.
        UsageError: A wanted rank has nothing to export.
    """
    there = {one.number: one for one in sources.ranks}
    if not there:
        raise DataError(f"no timelines or execution traces in {run.path}",
                        hint="record them with distprof run --execution-trace")
    for one in wanted:
        if one not in there:
            raise UsageError(f"no rank {one}; --rank can be {spans(sorted(there))}")
    return [there[number] for number in sorted(set(wanted) or there)]


def export_for_replay(ranks: Sequence[Rank], sources: Sources, folder: Path, world_size: int) -> (
        tuple[list[Exported], Mapping[str, int]]):
    """Writes communication for comm_replay, in files that it looks for.

    A call that one rank of the job lacks is left out on the others; files are written only for `ranks`.

    Args:
        ranks: Ranks to write.
        sources: The recordings of all ranks.
        folder: Gets one file per rank.
        world_size: Number of ranks of the job.

    Returns:
        What was written, and what is missing -> number of calls left out for lack of it.
    """
    rows = with_groups(sources.rows, world_size)
    groups = groups_of(rows, world_size)
    found, losses = list[pl.DataFrame](), dict[int, Losses]()
    for one in sources.ranks:
        graph, communication = rank_calls(one, rows.filter(pl.col("rank") == one.number),
                                          sources.windows.get(one.number))
        found.append(communication.rows)
        losses[one.number] = _losses(graph)
    again, exported = replay_input(pl.concat(found), groups), list[Exported]()
    for number in (one.number for one in ranks):
        file = folder / REPLAY_FILE.format(rank=number)
        exported.append(Exported(number=number, file=file, written=write_replay(file, number, again, groups),
                                 links=None, unseen=0, is_cut=losses[number].is_cut,
                                 lost_bytes=losses[number].lost_bytes))
    return exported, again.lacking


def export_ranks(run: Run, ranks: Sequence[Rank], sources: Sources, clock: Clock, target: Target, form: str,
                 prefix: Path) -> Iterator[Exported]:
    """Writes the ranks one by one.

    Args:
        run: The run.
        ranks: Ranks to write.
        sources: The recordings of all ranks.
        clock: Converts times to a common clock.
        target: The program that will read the files.
        form: One of `SUFFIXES`.
        prefix: Folder and start of the names of the files.
    """
    rows = with_groups(sources.rows, run.world_size)
    context = ExportContext(target=target, groups=groups_of(rows, run.world_size), sizes=sizes_of(rows))
    for execution in each_rank(ranks, rows, sources.windows):
        yield _written(execution, clock, context, form, prefix)


def _written(execution: RankExecution, clock: Clock, context: ExportContext, form: str, prefix: Path) -> Exported:
    number, graph = execution.rank.number, execution.graph
    line = clock.ranks[number].line if number in clock.ranks else UNSHIFTED
    file = prefix.with_name(f"{prefix.name}.{number}.{SUFFIXES[form]}")
    if form == "chakra":
        written = write_chakra(file, execution, context, line.to_common, {"rank": str(number)})
    elif form == "linked":
        written = write_linked(file, execution, context, line.to_common)
    else:
        written = Written()
        write_graph(file, form, lambda: chakra_nodes(execution, context, line.to_common, written))
    found = execution.communication
    # sends and receives may be known only from the execution trace, and are then not matched
    partial = found.rows.filter(~pl.col("complete"), ~pl.col("op").is_in(POINT_TO_POINT)).select("collective", "op")
    calls = Counter(found.rows["op"].gather(np.flatnonzero(found.place >= 0)).to_list())
    timed = found.place[found.place >= 0]
    untimed = int(np.count_nonzero(graph.slice[timed] < 0)) if graph.links and graph.links.num_linked else 0
    blind = num_blind(graph.timeline, graph.stream_waits) if graph.timeline and graph.stream_waits else 0
    processes = (observed_process(graph.table), process_of(graph.timeline)) if graph.table and graph.timeline else ()
    return Exported(number=number, file=file, written=written, links=graph.links, unseen=int((found.place < 0).sum()),
                    blind_waits=blind, untimed_calls=untimed, partial=frozenset(partial.iter_rows()), calls=calls,
                    processes=frozenset(one for one in processes if one is not None),
                    is_cut=_losses(graph).is_cut, lost_bytes=_losses(graph).lost_bytes)


def _losses(graph: RankGraph) -> Losses:
    """Returns what could not be read of its execution trace."""
    return graph.table.file.losses if graph.table is not None else Losses()
