"""Splits a trace that a tool merged from several ranks into one file per rank, as they were before."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from isal import igzip

from distprof.contract.problems import TraceDamaged
from distprof.errors import DataError, OutputError
from distprof.files import told
from distprof.merge.chrome.survey import Survey, survey_trace
from distprof.merge.run.timelines import damages_of
from distprof.merge.run.traces.rank_from_name import natural, place_in, rank_in, ranks_of_places
from distprof.merge.scan.chrome_file import ChromeFile
from distprof.merge.scan.chunk_reader import ChunkReader
from distprof.merge.scan.engine import ENGINE
from distprof.merge.scan.scanned_columns import thread_of
from distprof.merge.scan.trace_file import TraceFile

PREFIX = re.compile(r"\[([^\]]{1,64})\] ?")
"""Matches `[TP00-DP01] 2848`: SGLang puts the rank before pids."""
NAMED = re.compile(r"\brank[ _:=-]?(\d{1,7})\b", re.IGNORECASE)
"""Matches `rank 3 | gpu 0`: distprof and others put the rank into names of processes."""


@dataclass(slots=True, kw_only=True)
class Parts:
    """Which events belong to which rank."""

    ranks: Mapping[str, int]
    """Pid as in the trace -> rank."""
    num_events: dict[int, int] = field(default_factory=dict)
    """Rank -> number of events."""
    num_left_out: int = 0
    """Events of processes whose rank is unknown."""
    problems: Sequence[TraceDamaged] = ()
    """What is lost of the trace, reported as if it were rank 0."""


def split(trace: TraceFile, out: Path, *, first_rank: int | None = None) -> Parts:
    """Writes `rank0.json.gz`, `rank1.json.gz` and so on.

    Args:
        trace: The merged trace.
        out: A folder that is new or empty; with `first_rank` it may contain other ranks, which these join.
        first_rank: Added to the ranks, if there are several traces of a job, like one per host.

    Raises:
        DataError: It is not a trace, or nothing in it shows the ranks of its processes.
        OutputError: The folder has files.
    """
    survey = survey_trace(trace)
    parts = Parts(ranks=_ranks(survey), problems=[*damages_of(
        0, trace, survey.damage, survey.losses, survey.num_events)])
    if len({*parts.ranks.values()}) < 2:
        raise DataError(f"nothing in {trace.name} tells which events are of which rank",
                        hint="pids like '[TP00-DP01] 2848' or process names like 'rank 3' do")
    if first_rank is not None:
        parts.ranks = {pid: first_rank + rank for pid, rank in parts.ranks.items()}
    names = {_name(rank) for rank in parts.ranks.values()}
    there = sorted(path.name for path in out.iterdir()) if out.exists() else []
    if there and (first_rank is None or names & {*there}):
        raise OutputError(f"{out} is not empty" if first_rank is None else f"{out} has {sorted(names & {*there})[0]}",
                          hint="choose another --out" if first_rank is None else "choose another --first-rank")
    with told(out):
        out.mkdir(parents=True, exist_ok=True)
        _write(trace, survey, parts, out, None if first_rank is not None else len({*parts.ranks.values()}))
    return parts


def _ranks(survey: Survey) -> dict[str, int]:
    pids = {pid for pid, _ in survey.threads}
    prefixes = {pid: match[1] for pid in pids if (match := PREFIX.match(pid))}
    if prefixes:
        names = sorted({*prefixes.values()}, key=natural)
        of_names = dict(zip(names, _ranks_of(names), strict=True))
        return {pid: of_names[name] for pid, name in prefixes.items()}
    named = ((meta.pid, NAMED.search(str(meta.value))) for meta in survey.meta
             if meta.kind in ("process_name", "process_labels"))
    return {pid: int(match[1]) for pid, match in reversed([*named]) if match is not None}


def _ranks_of(names: list[str]) -> list[int]:
    """Returns the ranks in names, else ranks by the mesh coordinates in them, else in their order."""
    paths = [PurePosixPath(name) for name in names]
    ranks = [rank for path in paths if (rank := rank_in(path)) is not None]
    if len({*ranks}) == len(names):
        return ranks
    return ranks_of_places([place_in(path) for path in paths]) or [*range(len(names))]


def _write(trace: TraceFile, survey: Survey, parts: Parts, out: Path, world_size: int | None) -> None:
    ranks = sorted({*parts.ranks.values()})
    scanner = ENGINE.new_scanner()
    file = ChromeFile(trace.name, ChunkReader(trace), scanner)
    of_thread = np.empty(0, np.int64)
    for rank in ranks:
        head = json.dumps(_head(survey.metadata, rank, world_size))[:-1]
        _append(out, rank, f'{head}, "traceEvents": [\n'.encode())
    for text in file.scanned():
        threads = (thread_of(key)[0] for key in scanner.threads.texts(len(of_thread)))
        of_thread = np.append(of_thread, [parts.ranks.get(pid, -1) for pid in threads]).astype(np.int64)
        rows = of_thread[scanner.column("thread")]
        parts.num_left_out += int(np.count_nonzero(rows < 0))
        for rank in np.unique(rows[rows >= 0]).tolist():
            mine = np.flatnonzero(rows == rank).tolist()
            events = [_event(bytes(text[scanner.arrays["start"][row]:scanner.arrays["end"][row]])) for row in mine]
            _append(out, rank, (b",\n" if rank in parts.num_events else b"") + b",\n".join(events))
            parts.num_events[rank] = parts.num_events.get(rank, 0) + len(events)
    for rank in ranks:
        _append(out, rank, b"\n]}\n")


def _append(out: Path, rank: int, text: bytes) -> None:
    """Appends a gzip member: there may be more ranks than files that a process can have open."""
    with (out / _name(rank)).open("ab") as file:
        file.write(igzip.compress(text, 1))


def _name(rank: int) -> str:
    return f"rank{rank}.json.gz"


def _head(metadata: Mapping[str, Any], rank: int, world_size: int | None) -> dict[str, Any]:
    """Returns the keys beside the events as in the original trace of the rank."""
    found = {key: value for key, value in metadata.items() if key not in ("traceEvents", "metadata")}
    ours = metadata.get("metadata")
    about = ours.get("distprof") if isinstance(ours, dict) else None
    if isinstance(about, dict):
        mine = (about.get("ranks") or {}).get(str(rank)) or {}
        found |= {**(mine.get("kineto") or {}), "baseTimeNanoseconds": about.get("origin_ns", 0)}
    told = found.get("distributedInfo")
    known = {} if world_size is None else {"world_size": world_size}
    return found | {"distributedInfo": {**known, **(told if isinstance(told, dict) else {}), "rank": rank}}


_PID = re.compile(rb'("pid"\s*:\s*)"\[[^"\]]{1,64}\] ?([^"]*)"')


def _event(event: bytes) -> bytes:
    return _PID.sub(_without_prefix, event, count=1)


def _without_prefix(found: re.Match[bytes]) -> bytes:
    return found[1] + (found[2] if found[2].isdigit() else b'"%s"' % found[2])
