"""Makes the files and the text of `distprof export`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from distprof.contract.collective_ops import POINT_TO_POINT
from distprof.contract.problems import ExecutionTraces, FilesLeftOut, Problem, Remark
from distprof.errors import DataError, IncompleteError, UsageError
from distprof.files import told
from distprof.merge.clock.model import UNSHIFTED, Clock
from distprof.merge.commands.incomplete import fail_if_incomplete
from distprof.merge.cost.measured_run import measured_run
from distprof.merge.execution.dependencies.stream_waits import num_blind
from distprof.merge.execution.formats.chakra_nodes import chakra_nodes, write_chakra
from distprof.merge.execution.formats.comm_replay import replay_input, write_replay
from distprof.merge.execution.formats.drawing import write_graph
from distprof.merge.execution.formats.linked_json import write_linked
from distprof.merge.execution.pairing import observed_process, process_of
from distprof.merge.execution.process_groups import (
    ExportContext,
    ProcessGroups,
    Target,
    Written,
    groups_of,
    sizes_of,
    with_groups,
)
from distprof.merge.execution.rank_execution import (
    RankExecution,
    Sources,
    each_rank,
    rank_calls,
    sources_of,
)
from distprof.merge.execution.rank_graph import RankGraph
from distprof.merge.run.open_run import open_run
from distprof.merge.run.run_model import Rank, Run
from distprof.merge.run.traces.trace_head import EXECUTION_TRACE
from distprof.merge.scan.chrome_file import Losses
from distprof.merge.text.export import Exported, ExportShown, lost, render
from distprof.reporters.page import Page
from distprof.units import spans

SUFFIXES = {"chakra": "et", "linked": "json", "dot": "dot", "graphml": "graphml", "svg": "svg"}
REPLAY_FILE = "rank-{rank}.json"
"""As comm_replay looks for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportOptions:
    """What is written, and where."""

    out: Path
    """A folder."""
    form: str = "chakra"
    """chakra, linked, replay, dot, graphml or svg."""
    prefix: str | None = None
    """Of the files; the run's name without. Those of replay have none."""
    target: Target = "astra-sim"
    ranks: Sequence[int] = ()
    """All without."""


def export(path: Path, *more: Path, options: ExportOptions, strict: bool = False) -> str:
    """Writes the execution traces of a run; returns what was written as text.

    Args:
        path: A run directory, or execution traces and timelines of other programs.
        *more: Further ones of the same job.
        options: What is written, and where.
        strict: Fail where something is missing.

    Raises:
        DataError: There is nothing to export.
        UsageError: There is no such rank.
        OutputError: A file cannot be written.
        IncompleteError: Something is missing and `strict` is set.
    """
    run = open_run(path, *more, untimed=True)
    sources = sources_of(run)
    problems: list[Problem] = [*run.problems, *sources.problems]
    fail_if_incomplete(problems, strict=strict)
    ranks = _chosen(run, sources.ranks, options.ranks)
    rows = with_groups(sources.rows, run.world_size)
    clock = measured_run(run, collectives=False).clock
    context = ExportContext(target=options.target, groups=groups_of(rows, run.world_size), sizes=sizes_of(rows))
    with told(options.out):
        options.out.mkdir(parents=True, exist_ok=True)
    lacking: Mapping[str, int] | None = None
    if options.form == "replay":
        exported, lacking = _for_replay(ranks, rows, sources, context.groups, options)
    else:
        exported = [_written(run, execution, clock, context, options) for execution in
                    each_rank(ranks, rows, sources.windows)]
    about = ExportShown(
        exported=exported, step=sources.step, aligned=clock.aligned, lacking=lacking,
        left_out=sorted({one.number for one in run.ranks} - {one.number for one in sources.ranks}))
    if strict and (found := lost(about)):
        raise IncompleteError(f"incomplete: {'; '.join(found)}", hint="without --strict, this exits with 0")
    remarks = [one for one in (*run.remarks, *sources.remarks) if not _is_of_pairs(one)]
    return render(remarks, problems, about, Page())


def _is_of_pairs(one: Remark) -> bool:
    """What opening a run says of execution traces, without looking for their timelines as `sources_of` does."""
    return isinstance(one, ExecutionTraces) or (isinstance(one, FilesLeftOut) and one.instead == EXECUTION_TRACE)


def _chosen(run: Run, ranks: Sequence[Rank], wanted: Sequence[int]) -> list[Rank]:
    there = {one.number: one for one in ranks}
    if not there:
        raise DataError(f"no timelines or execution traces in {run.path}",
                        hint="record them with distprof run --execution-trace")
    for one in wanted:
        if one not in there:
            raise UsageError(f"no rank {one}; --rank can be {spans(sorted(there))}")
    return [there[number] for number in sorted(set(wanted) or there)]


def _for_replay(ranks: Sequence[Rank], rows: pl.DataFrame, sources: Sources, groups: ProcessGroups,
                options: ExportOptions) -> tuple[list[Exported], Mapping[str, int]]:
    """What one of all ranks lacks is left out on the others; written are the ranks that are asked for."""
    found, losses = list[pl.DataFrame](), dict[int, Losses]()
    for one in sources.ranks:
        graph, communication = rank_calls(one, rows.filter(pl.col("rank") == one.number),
                                          sources.windows.get(one.number))
        found.append(communication.rows)
        losses[one.number] = _losses(graph)
    again, exported = replay_input(pl.concat(found), groups), list[Exported]()
    for number in (one.number for one in ranks):
        file = options.out / REPLAY_FILE.format(rank=number)
        exported.append(Exported(number=number, file=file, written=write_replay(file, number, again, groups),
                                 links=None, unseen=0, is_cut=losses[number].is_cut,
                                 lost_bytes=losses[number].lost_bytes))
    return exported, again.lacking


def _written(run: Run, execution: RankExecution, clock: Clock, context: ExportContext, options: ExportOptions) -> (
        Exported):
    number, graph = execution.rank.number, execution.graph
    line = clock.ranks[number].line if number in clock.ranks else UNSHIFTED
    file = options.out / f"{options.prefix or run.run_id}.{number}.{SUFFIXES[options.form]}"
    if options.form == "chakra":
        written = write_chakra(file, execution, context, line.to_common, {"rank": str(number)})
    elif options.form == "linked":
        written = write_linked(file, execution, context, line.to_common)
    else:
        written = Written()
        write_graph(file, options.form, lambda: chakra_nodes(execution, context, line.to_common, written))
    found = execution.communication
    # sends and receives may be told by the execution trace alone, and are not matched then
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
    """What of its execution trace could not be read."""
    return graph.table.file.losses if graph.table is not None else Losses()
