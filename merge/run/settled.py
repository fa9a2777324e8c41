"""The topology of a recorded run: as its ranks know it, as a user gives it, or as what ranks did tells it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import polars as pl

from distprof.contract.mesh import dp_size_of, mp_size_of
from distprof.contract.problems import TopologyUncertain
from distprof.contract.tables import COLLECTIVES, MODULES, PARAMETERS, Table
from distprof.merge.run.group_ranks import as_written_now
from distprof.merge.run.run_model import Rank, Run
from distprof.merge.run.summaries.evidence import evidence_of_summaries, has_exchanged
from distprof.merge.run.tables import DAMAGE, empty, pieces, readable
from distprof.merge.topology.evidence import CALLS, HELD, STATISTICS, TELLING, Evidence, evidence_of
from distprof.merge.topology.inference import Inferred, inferred
from distprof.process.topology import Topology, from_sizes

SHOWING = ("trace", "arrivals")
"""Passes that record what ranks exchange."""
UNSETTLED = ("assumed", "wrapper")
"""What a topology rests on that leaves room for more axes: replicas may share the work on their input."""
EVIDENCE = {"pp": "stages that send to each other", "cp": "replicas that exchange activations",
            "ep": "different experts behind an all_to_all", "tp": "different parts of layers whose results are joined",
            "dp": "equal parameters"}
"""What each axis is inferred from."""


def settled(run: Run, given: Mapping[str, int]) -> Run:
    """The run with a topology that is certain, or with the problem that it is not.

    Args:
        run: As its ranks describe it.
        given: Axis -> size, as a user states them.

    Raises:
        UsageError: The sizes do not make up the world.
    """
    if given:
        return _placed(run, {rank.number: from_sizes(given, rank=rank.number, world_size=run.world_size)
                             for rank in run.ranks})
    bases = {rank.recorded.topology_basis if rank.recorded is not None else None for rank in run.ranks}
    if run.missing or run.world_size == 1 or not bases <= {*UNSETTLED}:
        return run
    # replicas that a wrapper keeps equal may still share work, which one of them shows
    if bases == {"wrapper"} and not _has_exchanged(run):
        return run
    evidence = _evidence(run)
    if evidence is None:
        return run
    found = inferred(evidence)
    if not isinstance(found, Inferred):
        return replace(run, topology_certain=False).noting([TopologyUncertain(doubt=found)])
    source = "inferred from what ranks hold and exchange: " + ", ".join(
        f"{axis} by {EVIDENCE[axis]}" for axis, size in found.sizes.items() if size > 1)
    return _placed(run, {rank: Topology(sizes=found.sizes, coordinates=where, source=source, basis="assumed")
                         for rank, where in found.coordinates.items()})


def _placed(run: Run, topologies: Mapping[int, Topology]) -> Run:
    sizes, source = next((one.sizes, one.source) for one in topologies.values())
    return replace(run, mp_size=mp_size_of(sizes), dp_size=dp_size_of(sizes), topology=dict(sizes),
                   topology_source=source, topology_known=True, topology_certain=True,
                   ranks=[replace(rank, coordinates=topologies[rank.number].coordinates) for rank in run.ranks])


def _evidence(run: Run) -> Evidence | None:
    """What the ranks show; None where that is not enough to judge by."""
    has_seen = all(any(rank.recorded.passes.get(name) for name in SHOWING) for rank in run.ranks if rank.recorded)
    if run.summaries is not None:
        return evidence_of_summaries(run.summaries, world_size=run.world_size, has_seen=has_seen)
    parameters = (piece.rows for piece in pieces(run, PARAMETERS.only(*HELD)))
    modules = _read(run.ranks, MODULES, ("module_path", "class_name"), pl.col("class_name").is_in(STATISTICS))
    return evidence_of(parameters, _exchanged(run.ranks) if has_seen else None, world_size=run.world_size,
                       statistics=modules["module_path"].unique().to_list())


def _has_exchanged(run: Run) -> bool:
    if run.summaries is not None:
        return has_exchanged(run.summaries, run.ranks[0].number)
    return not _exchanged(run.ranks[:1]).is_empty()


def _exchanged(ranks: Sequence[Rank]) -> pl.DataFrame:
    """The calls of the first step that may say how ranks divide their work."""
    return _read(ranks, COLLECTIVES, tuple(CALLS), TELLING & (pl.col("step") == pl.col("step").min()))


def _read(ranks: Sequence[Rank], table: Table, columns: Sequence[str], wanted: pl.Expr) -> pl.DataFrame:
    """These columns of some rows, rank by rank.

    None where a file is damaged, which reading its table will tell.
    """
    files = [rank.folder / table.file for rank in ranks if rank.has(table)]
    nothing = empty(table).select(columns)
    try:
        frames = [as_written_now(pl.read_parquet(readable(file), columns=list(columns), glob=False)).select(
            columns).cast(nothing.schema).filter(wanted) for file in files]
        return pl.concat([nothing, *frames])
    except DAMAGE:
        return nothing
