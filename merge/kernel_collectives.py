"""Collectives of traces of other programs: traces of ranks come in, starts and ends that bound clocks go out."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from distprof.errors import DataError
from distprof.merge.chrome_file import ChromeFile
from distprof.merge.engine import NONE, Scanner
from distprof.merge.gunzip import READ_BYTES
from distprof.merge.index import base_ns_of
from distprof.merge.phases import SLICE
from distprof.merge.run import Rank, Run
from distprof.merge.streams import ChunkReader

KERNEL = re.compile(rb"(?:nccl|rccl)\w*?(AllReduce|AllGather|ReduceScatter)", re.IGNORECASE)
"""Kernels that end on no rank before they began on all. SendRecv may be a pair of two ranks."""
GLOO = re.compile(rb"gloo:(all_reduce|all_gather|reduce_scatter|barrier)")
COLUMNS = ("collective", "rank", "start_ns", "end_ns")


class Call(NamedTuple):
    """One collective on one rank."""

    key: tuple[Any, ...] | None
    """What tells it from all others on every rank; None where the trace does not say."""
    name: str
    start_ns: int
    end_ns: int


def kernel_collectives(run: Run) -> pl.DataFrame:
    """Matched collectives with a start and an end on every rank that has them.

    They are matched by the id that NCCL's kernels carry, else by process group and sequence number, else by their
    order, where every rank has equally many of a kind.
    """
    ranks = [rank for rank in run.ranks if rank.trace is not None]
    with ThreadPoolExecutor() as executor:
        calls = dict(zip((rank.number for rank in ranks), executor.map(_calls, ranks), strict=True))
    rows = [(str(key), rank, call.start_ns, call.end_ns) for rank, found in _keyed(calls).items()
            for key, call in found.items()]
    frame = pl.DataFrame(rows, orient="row", schema=dict(zip(
        COLUMNS, (pl.String, pl.Int64, pl.Int64, pl.Int64), strict=True)))
    frame = frame.filter(pl.len().over("collective") > 1)
    return frame.with_columns(pl.col("collective").rank("dense").cast(pl.Int64)).select(COLUMNS)


def _calls(rank: Rank) -> list[Call]:
    try:
        return sorted(_read(rank), key=lambda call: call.start_ns)
    except DataError:
        return []  # merging tells of it


def _read(rank: Rank) -> Iterator[Call]:
    assert rank.trace is not None
    scanner = Scanner(integers=("Seq",), texts=("Comms Id", "Process Group Name"))
    file = ChromeFile(rank.trace.name, ChunkReader(rank.trace, chunk_bytes=READ_BYTES), scanner)
    names: list[str | None] = []
    found = []
    for _ in file.scanned():
        names += [_op(name) for name in scanner.names.texts(len(names))]
        wanted = np.array([name is not None for name in names], bool)
        # the calls that launch kernels have names like theirs, and end before
        kernels = np.array([text.lower() == b"kernel" for text in scanner.categories.texts()] + [False], bool)
        is_nccl = np.array([bool(KERNEL.search(text)) for text in scanner.names.texts()], bool)
        start, duration = scanner.column("ts_ns"), scanner.column("dur_ns")
        name, category = scanner.column("name"), scanner.column("category")
        rows = wanted[name] & (~is_nccl[name] | kernels[category])
        rows &= (scanner.column("phase") == SLICE) & (start != NONE) & (duration > 0)
        for row in np.flatnonzero(rows).tolist():
            found.append((int(scanner.interned["Comms Id"][row]), int(scanner.interned["Process Group Name"][row]),
                          int(scanner.integers["Seq"][row]), int(scanner.arrays["name"][row]), int(start[row]),
                          int(start[row] + duration[row])))
    base_ns = base_ns_of(file.metadata)
    texts = scanner.texts.texts()
    for comms_id, group, sequence, name, begin, end in found:
        key: tuple[Any, ...] | None = None
        if comms_id >= 0:
            key = ("id", texts[comms_id])
        elif group >= 0 and sequence != NONE:
            key = ("sequence", texts[group], sequence)
        yield Call(key, names[name] or "", begin + base_ns, end + base_ns)


def _op(name: bytes) -> str | None:
    match = KERNEL.search(name) or GLOO.match(name)
    return match[1].decode().lower() if match else None


def _keyed(calls: dict[int, list[Call]]) -> dict[int, dict[tuple[Any, ...], Call]]:
    """Rank -> key -> call. Keys that a rank has twice tell nothing."""
    counts = {rank: Counter(call.name for call in found if call.key is None) for rank, found in calls.items()}
    alike = {name for name in set().union(*counts.values())
             if len({count[name] for count in counts.values()}) == 1}
    keyed: dict[int, dict[tuple[Any, ...], Call]] = {}
    for rank, found in calls.items():
        seen: dict[str, int] = defaultdict(int)
        mine: dict[tuple[Any, ...], list[Call]] = defaultdict(list)
        for call in found:
            if call.key is not None:
                mine[call.key].append(call)
            elif call.name in alike:
                mine["order", call.name, seen[call.name]].append(call)
                seen[call.name] += 1
        keyed[rank] = {key: same[0] for key, same in mine.items() if len(same) == 1}
    return keyed
