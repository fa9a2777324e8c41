"""Opens what a user names, a run directory of ours or traces of other programs, and settles its topology."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from distprof.contract.mesh import dp_size_of, mp_size_of
from distprof.contract.problems import TopologyUncertain
from distprof.errors import DataError
from distprof.merge.run.recorded import recorded_run
from distprof.merge.run.run_model import Run
from distprof.merge.run.summaries.summaries import JOINED
from distprof.merge.run.traces.discovery import is_recorded
from distprof.merge.run.traces.open_traces import run_of_traces
from distprof.merge.run.traces.ranking import Naming
from distprof.process.topology import Topology, from_sizes

NO_SIZES: Mapping[str, int] = MappingProxyType({})
ALL_TABLES = tuple(JOINED)
"""Tables of all ranks that the files of hosts contain."""
UNSETTLED = ("assumed", "wrapper")
"""Bases of a topology that leave room for more axes: replicas may share the work on their input."""
EVIDENCE = {"pp": "stages that send to each other", "cp": "replicas that exchange activations",
            "ep": "different experts behind an all_to_all",
            "tp": "different parts of layers whose results are combined", "dp": "equal parameters"}
"""What each axis is inferred from."""


def open_run(path: Path, *more: Path, naming: Naming | None = None, sizes: Mapping[str, int] = NO_SIZES,
             untimed: bool = False, by_host: bool = False, only: Collection[str] = ALL_TABLES) -> Run:
    """Opens the run directories of a job, or finds the traces of other programs at the given paths.

    Args:
        path: A run directory, a folder of traces, a trace or an archive of traces.
        *more: Run directories that other hosts wrote for the same job, or further traces, archives or folders of
            traces.
        naming: Where the rank of a trace is taken from, if neither the trace nor its name contains it.
        sizes: Axis of the device mesh -> size, in place of what a run says.
        untimed: Whether execution traces without any timeline count as a run.
        by_host: Whether the files of hosts may be read in place of the folders of ranks, if there are many ranks. A
            caller
            that sets it uses `Run.of_tables` for the ranks whose other files it reads.
        only: With `by_host`, the tables that are wanted.

    Raises:
        DataError: Nothing can be read, or its parts contradict each other.
        FormatError: It was written by a newer distprof.
        UsageError: `naming` makes no sense, or the product of `sizes` is not the world size.
    """
    paths = (path, *more)
    recorded = [is_recorded(one) for one in paths]
    if not any(recorded):
        return settled(run_of_traces(paths, naming, untimed=untimed), sizes)
    if not all(recorded):
        other = paths[recorded.index(False)]
        raise DataError(f"{other} is not a run directory",
                        hint="merge foreign traces separately from runs recorded by distprof"
                        if other.exists() else "distprof run prints the directory it writes")
    return settled(recorded_run(*paths, by_host=by_host, only=only), sizes)


def settled(run: Run, given: Mapping[str, int]) -> Run:
    """Returns the run with a topology that is certain, or with the problem that it is not.

    Args:
        run: The run with the topology that its ranks state.
        given: Axis -> size, as stated by the user.

    Raises:
        UsageError: The product of the sizes is not the world size.
    """
    if given:
        return _placed(run, {rank.number: from_sizes(given, rank=rank.number, world_size=run.world_size)
                             for rank in run.ranks})
    bases = {rank.recorded.topology_basis if rank.recorded is not None else None for rank in run.ranks}
    if run.missing or run.world_size == 1 or not bases <= {*UNSETTLED}:
        return run
    # imported here because polars takes longer to import than anything else in a merge of traces, which does not need
    # it
    from distprof.merge.run.evidence import evidence_of_run, has_exchanged
    from distprof.merge.topology.inference import Inferred, inferred

    # replicas that a wrapper keeps equal may still share work; the calls of one of them show it
    if bases == {"wrapper"} and not has_exchanged(run):
        return run
    evidence = evidence_of_run(run)
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
