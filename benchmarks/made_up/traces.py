"""Generates traces of many ranks: text that torch.profiler might have written, in small files.

A trace consists of gzip members: a head that differs between ranks, and blocks of events that ranks share. Each block
begins when the previous one ends, and `baseTimeNanoseconds` shifts the events of a rank.
"""

from __future__ import annotations

import filecmp
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from isal import igzip

DIGITS, FIRST_US = 12, 10**11
"""Number of digits of times before the point, and first time in us; equal lengths keep all blocks the same size."""
ID_DIGITS, FIRST_ID = 9, 10**8
"""Number of digits of ids of arrows, and first id."""
BLOCK_EVENTS = 5_000
"""Number of operator calls in a block of events: about 5 MB."""
CALL_US = 70


def _call(number: int) -> str:
    """Returns the events of an operator with nested calls and a kernel."""
    at = FIRST_US + CALL_US * number
    events = [f'{{"ph":"X","cat":"cpu_op","name":"aten::op{(7 * number + depth) % 150}","pid":1,"tid":1,'
              f'"ts":{at + depth}.123,"dur":{60 - 8 * depth}.5,"args":{{"External id":{6 * number + depth},'
              f'"Record function id":0,"Ev Idx":{6 * number + depth}}}}}' for depth in range(6)]
    launch = f'"id":{FIRST_ID + number},"cat":"ac2g","name":"ac2g"'
    return ",\n".join((
        *events,
        f'{{"ph":"X","cat":"cuda_runtime","name":"cudaLaunchKernel","pid":1,"tid":1,"ts":{at + 7}.123,'
        f'"dur":5,"args":{{"correlation":{number}}}}}',
        f'{{"ph":"s",{launch},"pid":1,"tid":1,"ts":{at + 7}.123}}',
        f'{{"ph":"X","cat":"kernel","name":"void kernel{number % 40}<float, 4>(float*)","pid":0,"tid":7,'
        f'"ts":{at + 20}.123,"dur":40.5,"args":{{"stream":7,"correlation":{number},"grid":[1,2,3]}}}}',
        f'{{"ph":"f","bp":"e",{launch},"pid":0,"tid":7,"ts":{at + 20}.123}}'))


class Block:
    """A block of events from which following blocks can be derived."""

    def __init__(self, num_calls: int = BLOCK_EVENTS) -> None:
        text = ",\n".join(map(_call, range(num_calls))).encode()
        self._text = np.frombuffer(text, np.uint8).copy()
        self._times, self._ids = _Numbers(text, b'"ts":', DIGITS), _Numbers(text, b'"id":', ID_DIGITS)
        self.num_calls = num_calls
        self.length_us = CALL_US * num_calls
        self.num_bytes = len(text)

    def following(self, number: int) -> bytes:
        """Returns the text of the block with this number, with later times and other ids of arrows."""
        self._times.add(self._text, number * self.length_us)
        self._ids.add(self._text, number * self.num_calls)
        return self._text.tobytes()


class _Numbers:
    """Numbers with the same number of digits at fixed positions in a text."""

    def __init__(self, text: bytes, mark: bytes, digits: int) -> None:
        starts, at = list[int](), text.find(mark)
        while at >= 0:
            starts.append(at + len(mark))
            at = text.find(mark, at + 1)
        self._places = np.array(starts)[:, None] + np.arange(digits)
        self._values = np.array([int(text[start:start + digits]) for start in starts])
        self._powers = 10 ** np.arange(digits - 1, -1, -1)

    def add(self, text: Any, by: int) -> None:
        """Writes the original numbers plus `by` to the text."""
        text[self._places] = (self._values + by)[:, None] // self._powers % 10 + ord("0")


def events(megabytes: float) -> Iterator[bytes]:
    """Yields gzip members with about this much text in total."""
    sample = 100
    calls = max(1, round(megabytes * 1e6 * sample / Block(sample).num_bytes))
    block = Block(min(calls, BLOCK_EVENTS))
    for number in range(max(1, round(calls / BLOCK_EVENTS))):
        yield igzip.compress((b",\n" if number else b"") + block.following(number), 1, mtime=0)


def head(rank: int, world_size: int) -> bytes:
    """Returns the text before the events: devices, and process groups, which list all ranks."""
    about = {"backend": "nccl", "rank": rank, "world_size": world_size, "pg_count": 1, "pg_config": [
        {"pg_name": "0", "pg_desc": "default_pg", "backend_config": "cuda:nccl", "pg_size": world_size,
         "ranks": list(range(world_size))}]}
    devices = [{"id": device, "name": "NVIDIA H100 80GB HBM3", "totalGlobalMem": 85_049_802_752} for device in range(8)]
    keys = {"schemaVersion": 1, "deviceProperties": devices, "distributedInfo": about,
            "baseTimeNanoseconds": 1_700_000_000_000_000_000 + 300 * rank}
    names = [{"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "ts": 0, "args": {"name": "python"}}
             for pid in (0, 1)]
    names += [{"ph": "M", "name": "process_labels", "pid": pid, "tid": 0, "ts": 0, "args": {"labels": label}}
              for pid, label in ((1, "CPU"), (0, "GPU 0"))]
    return (json.dumps(keys)[:-1] + ',"traceEvents":[\n' + ",\n".join(map(json.dumps, names)) + ",\n").encode()


def write_ranks(folder: Path, num_ranks: int, megabytes: float) -> int:
    """Writes the traces of `num_ranks` ranks, one file each; returns the size of the text of one in bytes."""
    folder.mkdir(parents=True)
    body = b"".join(events(megabytes))
    tail = igzip.compress(b"\n]}\n", mtime=0)
    for rank in range(num_ranks):
        (folder / f"rank{rank}_trace.json.gz").write_bytes(
            igzip.compress(head(rank, num_ranks), mtime=0) + body + tail)
    return len(igzip.decompress(body))


def write_large(folder: Path, num_ranks: int, megabytes: float) -> Path:
    """Writes one long trace, and hard links to it as other ranks; returns its path. Ranks are known by file names."""
    folder.mkdir(parents=True)
    first = folder / "rank0_trace.json.gz"
    with first.open("wb") as file:
        file.write(igzip.compress(b'{"schemaVersion":1,"traceEvents":[\n', mtime=0))
        for member in events(megabytes):
            file.write(member)
        file.write(igzip.compress(b"\n]}\n", mtime=0))
    for rank in range(1, num_ranks):
        (folder / f"rank{rank}_trace.json.gz").hardlink_to(first)
    return first


def same(one: Path, other: Path) -> bool:
    """Returns whether two folders have identical files."""
    names = [[path.relative_to(folder) for path in sorted(folder.rglob("*")) if path.is_file()]
             for folder in (one, other)]
    return names[0] == names[1] and all(filecmp.cmp(one / name, other / name, shallow=False) for name in names[0])
