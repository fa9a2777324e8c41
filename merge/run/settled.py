"""The topology of a recorded run: as its ranks know it, as a user gives it, or as what ranks did tells it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from distprof.contract.mesh import dp_size_of, mp_size_of
from distprof.contract.problems import TopologyUncertain
from distprof.merge.run.run_model import Run
from distprof.process.topology import Topology, from_sizes

UNSETTLED = ("assumed", "wrapper")
"""What a topology rests on that leaves room for more axes: replicas may share the work on their input."""
EVIDENCE = {"pp": "stages that send to each other", "cp": "replicas that exchange activations",
            "ep": "different experts behind an all_to_all",
            "tp": "different parts of layers whose results are combined", "dp": "equal parameters"}
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
    # with polars, which takes longer to import than anything else in a merge of traces, and is not needed there
    from distprof.merge.run.evidence import evidence_of_run, has_exchanged
    from distprof.merge.topology.inference import Inferred, inferred

    # replicas that a wrapper keeps equal may still share work, which one of them shows
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
