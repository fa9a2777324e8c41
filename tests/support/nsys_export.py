"""Writes the events of Kineto traces as an export of Nsight Systems, in its documented schema."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path

SCHEMA = """
CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE PROCESSES (globalPid INTEGER, pid INTEGER, name TEXT);
CREATE TABLE ThreadNames (nameId INTEGER NOT NULL, priority INTEGER, globalTid INTEGER);
CREATE TABLE TARGET_INFO_SESSION_START_TIME (utcEpochNs INTEGER, utcTime TEXT, localTime TEXT);
CREATE TABLE TARGET_INFO_GPU (vmId INTEGER, id INTEGER, name TEXT);
CREATE TABLE TARGET_INFO_SYSTEM_ENV (globalVid INTEGER, devStateName TEXT, name TEXT, nameEnum INTEGER, value TEXT);
CREATE TABLE ENUM_CUDA_MEM_KIND (id INTEGER PRIMARY KEY, name TEXT, label TEXT);
CREATE TABLE NVTX_EVENTS (start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL, rangeId INTEGER,
    category INTEGER, color INTEGER, text TEXT, globalTid INTEGER, endGlobalTid INTEGER, textId INTEGER,
    domainId INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER NOT NULL, end INTEGER NOT NULL, eventClass INTEGER NOT NULL,
    globalTid INTEGER, correlationId INTEGER, nameId INTEGER NOT NULL, returnValue INTEGER NOT NULL);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL,
    contextId INTEGER NOT NULL, streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER,
    demangledName INTEGER NOT NULL, shortName INTEGER NOT NULL, registersPerThread INTEGER NOT NULL, gridX INTEGER,
    gridY INTEGER, gridZ INTEGER, blockX INTEGER, blockY INTEGER, blockZ INTEGER, staticSharedMemory INTEGER NOT NULL,
    dynamicSharedMemory INTEGER NOT NULL, graphNodeId INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL,
    contextId INTEGER NOT NULL, streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER,
    bytes INTEGER NOT NULL, copyKind INTEGER NOT NULL, srcKind INTEGER, dstKind INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMSET (start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL,
    contextId INTEGER NOT NULL, streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER,
    value INTEGER NOT NULL, bytes INTEGER NOT NULL);
"""
KINDS = ("Pageable", "Pinned", "Device", "Array")
COPIES = ("", "HtoD", "DtoH", "HtoA", "AtoH", "AtoA", "AtoD", "DtoA", "DtoD", "HtoH", "PtoP")
COPY = re.compile(r"Memcpy (\w+)(?: \((\w+) -> (\w+)\))?")
HOST_CALLS = ("cuda_runtime", "cuda_driver")


@dataclass
class Export:
    """An exported database, filled process by process."""

    path: Path
    epoch_ns: int = 0
    strings: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.base = sqlite3.connect(self.path)
        self.base.executescript(SCHEMA)
        self.add("TARGET_INFO_SESSION_START_TIME", utcEpochNs=self.epoch_ns)
        self.add("TARGET_INFO_SYSTEM_ENV", name="Hostname", value="node7")
        for number, label in enumerate(KINDS):
            self.add("ENUM_CUDA_MEM_KIND", id=number, label=label)

    def close(self) -> Path:
        self.base.executemany("INSERT INTO StringIds VALUES (?, ?)",
                              [(number, text) for text, number in self.strings.items()])
        self.base.commit()
        self.base.close()
        return self.path

    def process(self, events: Iterable[Mapping], *, pid: int, base_ns: int = 0, device: int = 0) -> None:
        """Adds what NVIDIA's profiler would record for a Kineto trace: runtime calls, device work, NVTX ranges."""
        self.add("PROCESSES", globalPid=pid << 24, pid=pid, name="/usr/bin/python3")
        self.add("TARGET_INFO_GPU", id=device, name="NVIDIA A100")
        for event in events:
            if event["ph"] == "X":
                start = int(Decimal(str(event["ts"])) * 1000) + base_ns - self.epoch_ns
                times = {"start": start, "end": start + int(Decimal(str(event["dur"])) * 1000)}
                self._slice(event, event.get("args", {}), times, pid, device)

    def _slice(self, event: Mapping, args: Mapping, times: dict[str, int], pid: int, device: int) -> None:
        category, name, tid = event.get("cat"), event["name"], pid << 24
        if category in HOST_CALLS:
            self.add("CUPTI_ACTIVITY_KIND_RUNTIME", **times, eventClass=0, correlationId=args.get("correlation"),
                      globalTid=tid | int(event["tid"]) % 2**24, nameId=self.string(f"{name}_v7000"), returnValue=0)
        elif category in ("cpu_op", "user_annotation"):
            sizes = f", sizes = {args['Input Dims']}" if args.get("Input Dims") else ""
            text = f"{name}, op_id = 7{sizes}" if category == "cpu_op" else name
            self.add("NVTX_EVENTS", **times, eventType=59, text=text, globalTid=tid | int(event["tid"]) % 2**24)
        elif category in ("kernel", "gpu_memcpy", "gpu_memset"):
            place = {**times, "deviceId": device, "contextId": 1, "streamId": args["stream"], "globalPid": tid,
                     "correlationId": args.get("correlation")}
            self._on_device(category, name, args, place)

    def _on_device(self, category: str, name: str, args: Mapping, place: dict) -> None:
        if category == "kernel":
            grid, block = (dict(zip((f"{what}{axis}" for axis in "XYZ"), args[what], strict=True))
                           for what in ("grid", "block"))
            self.add("CUPTI_ACTIVITY_KIND_KERNEL", **place, demangledName=self.string(name), **grid, **block,
                      shortName=self.string(name[:10]), registersPerThread=args["registers per thread"],
                      staticSharedMemory=args["shared memory"], dynamicSharedMemory=0)
        elif category == "gpu_memcpy":
            kind, *ends = COPY.match(name).groups()
            where = {key: KINDS.index(end) for key, end in zip(("srcKind", "dstKind"), ends, strict=True) if end}
            self.add("CUPTI_ACTIVITY_KIND_MEMCPY", **place, bytes=args["bytes"], copyKind=COPIES.index(kind), **where)
        else:
            self.add("CUPTI_ACTIVITY_KIND_MEMSET", **place, value=0, bytes=args["bytes"])

    def string(self, text: str) -> int:
        return self.strings.setdefault(text, len(self.strings) + 1)

    def add(self, table: str, **values: object) -> None:
        names: Sequence[str] = list(values)
        self.base.execute(f"INSERT INTO {table} ({', '.join(names)}) VALUES ({', '.join('?' * len(names))})",
                          list(values.values()))
