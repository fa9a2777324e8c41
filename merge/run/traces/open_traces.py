"""Makes a run from traces of other programs: one trace per rank, and what is missing or in doubt."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod
from pathlib import Path, PurePosixPath

from distprof.contract.mesh import dp_size_of, mp_size_of
from distprof.contract.problems import (
    ExecutionTraces,
    Problem,
    RanksMissing,
    Remark,
    WorldSizeFromRanks,
    WorldSizesDiffer,
)
from distprof.errors import DataError
from distprof.merge.run.run_model import Rank, Run, Unpaired
from distprof.merge.run.traces.discovery import NAMED, Candidate, Discovery, discover, first_few
from distprof.merge.run.traces.rank_from_name import suggested_pattern
from distprof.merge.run.traces.ranking import (
    SHOWN_FILES,
    Naming,
    Numbered,
    check_one_folder,
    numbered,
    of_one_job,
    of_one_program,
    one_each,
)
from distprof.merge.run.traces.trace_head import EXECUTION_TRACE
from distprof.merge.run.traces.trace_identity import Mesh, TraceIdentity, mesh_of
from distprof.merge.scan.trace_file import TraceFile, printable


def run_of_traces(paths: Sequence[Path], naming: Naming | None = None, *, untimed: bool = False) -> Run:
    """Finds the trace of every rank.

    The rank is taken from `naming`, else from `distributedInfo` in the trace, else from the path.

    Args:
        paths: Folders, traces and archives.
        naming: Where ranks are taken from if the traces do not contain them.
        untimed: Whether execution traces without any timeline count as a run.

    Raises:
        DataError: There is no trace, or no file shows its rank.
        UsageError: `naming` makes no sense.
    """
    by = naming or Naming()
    found = discover(paths, named=bool(by))
    found.leave_out_merged()
    if not found.candidates and found.execution_traces and untimed:
        return _untimed(paths, found)
    if not found.candidates:
        raise DataError(_nothing(paths, found), hint="distprof export reads execution traces without timelines"
                        if found.execution_traces else
                        "Chrome traces are *.json, compressed or not, or archives of them (tar, zip)")
    problems: list[Problem] = list(found.problems)
    remarks: list[Remark] = []
    with_rank = numbered(found.candidates, by, problems, remarks)
    files, beside = of_one_program(with_rank, remarks)
    check_one_folder(files, paths[0] if len(paths) == 1 and paths[0].is_dir() else None)
    chosen = one_each(files, problems) if by else of_one_job(one_each(files, problems), remarks)
    paired = _paired(found, chosen)
    unpaired = _unpaired(found, paired, with_rank)
    remarks = [*_pairs(found, chosen, paired), *found.remarks(), *remarks]
    world_size = _world_size(chosen, problems, remarks)
    meshes = _meshes(chosen, world_size)
    run = _run(paths, chosen, meshes, world_size, problems, remarks)
    return replace(run, unpaired=unpaired, ranks=[
        replace(rank, execution_trace=paired.get(rank.number),
                beside=tuple(one.trace for one in beside.get(rank.number, ()))) for rank in run.ranks])


def _unpaired(found: Discovery, paired: Mapping[int, TraceFile], with_rank: Numbered) -> Unpaired:
    known = {*paired.values(), *(one.trace for _, one in with_rank)}
    return Unpaired(execution_traces=[one.trace for one in found.execution_traces if one.trace not in known],
                    timelines=[one.trace for one in found.candidates if one.trace not in known])


def _paired(found: Discovery, chosen: Mapping[int, Candidate]) -> dict[int, TraceFile]:
    """Returns the execution trace of each rank that has one: by its name, or the only one beside the only timeline.

    If names contain no rank but differ in a single number, that number is the rank.
    """
    if len(found.execution_traces) == len(chosen) == 1:
        return {next(iter(chosen)): found.execution_traces[0].trace}
    by_rank = _by_rank(found)
    return {rank: by_rank[rank] for rank in chosen if rank in by_rank}


def _by_rank(found: Discovery) -> dict[int, TraceFile]:
    traces = found.execution_traces
    by_rank = {one.rank: one.trace for one in reversed(traces) if one.rank is not None}
    pattern = None if by_rank else suggested_pattern([one.trace.name for one in traces])
    if pattern is not None and re.compile(pattern).groups == 1:
        numbers = ((re.search(pattern, one.trace.name), one.trace) for one in traces)
        by_rank = {int(number[1]): trace for number, trace in numbers if number is not None}
    return by_rank


def _untimed(paths: Sequence[Path], found: Discovery) -> Run:
    """Returns a run of execution traces without timelines."""
    by_rank = _by_rank(found)
    if len(found.execution_traces) == 1:
        by_rank = {next(iter(by_rank), 0): found.execution_traces[0].trace}
    if len(by_rank) < len(found.execution_traces):
        names = first_few([one.trace.name for one in found.execution_traces])
        raise DataError(f"file names of execution traces must contain the rank: {names}",
                        hint="pass one of them, or rename them to et_rank0.json, et_rank1.json and so on")
    problems: list[Problem] = list(found.problems)
    chosen = {rank: Candidate(trace=trace, where=PurePosixPath(trace.name), identity=TraceIdentity(), modified_ns=0)
              for rank, trace in sorted(by_rank.items())}
    run = _run(paths, chosen, {}, max(chosen) + 1, problems, [])
    return replace(run, ranks=[replace(rank, trace=None, execution_trace=by_rank[rank.number]) for rank in run.ranks])


def _pairs(found: Discovery, chosen: Mapping[int, Candidate], paired: Mapping[int, TraceFile]) -> (
        Iterator[ExecutionTraces]):
    """Removes execution traces, one per rank, from the files that are left out: they belong to timelines."""
    if paired and len(paired) == len(found.skipped[EXECUTION_TRACE]):
        del found.skipped[EXECUTION_TRACE]
        files = [paired[rank].name for rank in sorted(paired)]
        yield ExecutionTraces(files=tuple(files[:NAMED]), ranks=tuple(sorted(paired)),
                              missing=tuple(sorted(chosen.keys() - paired.keys())))


def _nothing(paths: Sequence[Path], found: Discovery) -> str:
    where = first_few([str(path) for path in paths])
    reasons = [one.detail for one in found.problems]
    reasons += [f"{first_few(names)}: {instead}" for instead, names in found.skipped.items()]
    if len(reasons) == 1 and found.problems:
        return reasons[0]
    return f"no Chrome traces in {where}" + "".join(f"; {reason}" for reason in reasons[:SHOWN_FILES])


def _world_size(chosen: Mapping[int, Candidate], problems: list[Problem], remarks: list[Remark]) -> int:
    """Returns the largest world size that a trace states, but at least the highest rank + 1."""
    highest = max(chosen) + 1
    if any(one.identity.rank not in (None, rank) for rank, one in chosen.items()):
        remarks.append(WorldSizeFromRanks(world_size=highest, contradicted=True))
        return highest
    stated = Counter(one.identity.world_size for one in chosen.values() if one.identity.world_size is not None)
    if not stated:
        if len(chosen) > 1:
            remarks.append(WorldSizeFromRanks(world_size=highest, contradicted=False))
        return highest
    if len(stated) > 1 or max(stated) < highest:
        problems.append(WorldSizesDiffer(ranks_by_size={size: _stating(chosen, size) for size in sorted(stated)},
                                         highest_rank=highest - 1))
    return max(*stated, highest)


def _stating(chosen: Mapping[int, Candidate], size: int) -> tuple[int, ...]:
    return tuple(rank for rank, one in chosen.items() if one.identity.world_size == size)


def _meshes(chosen: Mapping[int, Candidate], world_size: int) -> dict[int, Mesh]:
    """Returns the mesh of each rank if all ranks have one of the same sizes; otherwise nothing."""
    meshes = {rank: _stated(one.identity, world_size)
              or mesh_of(one.identity.groups, rank=rank, world_size=world_size) for rank, one in chosen.items()}
    known = {rank: mesh for rank, mesh in meshes.items() if mesh is not None}
    alike = len({tuple(mesh.sizes.items()) for mesh in known.values()}) == 1
    return known if alike and len(known) == len(meshes) else {}


def _stated(identity: TraceIdentity, world_size: int) -> Mesh | None:
    """Returns the mesh written into a trace; None if there is none or it does not match the world size."""
    sizes, places = dict(identity.sizes), dict(identity.coordinates)
    fits = sizes and prod(sizes.values()) == world_size and sizes.keys() == places.keys() and all(
        places[axis] < size for axis, size in sizes.items())
    return Mesh(sizes=sizes, coordinates=places, source=printable(identity.sizes_source)) if fits else None


def _run(paths: Sequence[Path], chosen: Mapping[int, Candidate], meshes: Mapping[int, Mesh], world_size: int,
         problems: list[Problem], remarks: list[Remark]) -> Run:
    path = paths[0] if len(paths) == 1 else Path(os.path.commonpath([path.absolute() for path in paths]))
    missing = sorted(set(range(world_size)) - set(chosen))
    if missing:
        problems.append(RanksMissing(ranks=tuple(missing), world_size=world_size))
    mesh = next(iter(meshes.values()), None)
    source = "unknown" if mesh is None else mesh.source
    sizes = mesh.sizes if mesh is not None else {"dp": world_size}
    run_id = printable(path.name.partition(".")[0] or path.absolute().name)
    return Run(path=path, run_id=run_id, world_size=world_size,
               mp_size=mp_size_of(sizes), dp_size=dp_size_of(sizes),
               topology=sizes, topology_source=source, topology_known=mesh is not None, kind="traces",
               ranks=[_rank(rank, one, meshes.get(rank)) for rank, one in chosen.items()], missing=missing,
               problems=tuple(problems), remarks=tuple(remarks))


def _rank(number: int, one: Candidate, mesh: Mesh | None) -> Rank:
    return Rank(number=number, folder=one.trace.path.parent, host=one.identity.host,
                coordinates=mesh.coordinates if mesh is not None else None, device_name=one.identity.device_name,
                trace=one.trace)
