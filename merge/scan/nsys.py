"""Reads the SQLite export of an Nsight Systems report as text of a Chrome trace, with Kineto's categories and keys.

Tables and columns: "SQLite Schema Reference" in the documentation of Nsight Systems. An export omits tables without
rows, and older versions lack columns.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distprof.errors import DataError
from distprof.merge.scan.made_events import (
    Event,
    Pid,
    arrow,
    meta,
    microseconds,
    named_range,
    slice_of,
    text_of,
    without_version,
)

if TYPE_CHECKING:
    import sqlite3

MAGIC = b"SQLite format 3\0"
SUFFIXES, REPORT_SUFFIX = (".sqlite", ".sqlite3", ".db"), ".nsys-rep"
MARK, PUSH_POP, START_END = 34, 59, 60
"""Kinds of NVTX events that are shown."""
KERNELS, GRAPHS, COPIES, FILLS, CALLS, NVTX = (
    "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_GRAPH_TRACE", "CUPTI_ACTIVITY_KIND_MEMCPY",
    "CUPTI_ACTIVITY_KIND_MEMSET", "CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS")
ON_DEVICE = (KERNELS, GRAPHS, COPIES, FILLS)
OF_NSYS = frozenset((*ON_DEVICE, CALLS, NVTX))
MOST_CALLS, BOTH = 1 << 26, 3
"""Larger correlation ids get no arrows; the value of an id that belongs to both a call and something on a device."""
TEXTS = ("value", "name", "text", "label")
"""Columns of texts; all others contain integers."""
COPY_KINDS = dict(enumerate(("HtoD", "DtoH", "HtoA", "AtoH", "AtoA", "AtoD", "DtoA", "DtoD", "HtoH", "PtoP",
                            "HtoD (unified memory)", "DtoH (unified memory)", "DtoD (unified memory)"), 1))


def may_be_export(path: Path) -> bool:
    """Returns False for a database of another program and for other files; True also for a damaged database."""
    tables = _tables_at(path)
    return tables is None or not OF_NSYS.isdisjoint(tables)


def is_of_rocprof(path: Path) -> bool:
    """Returns whether a database was written by rocprofv3."""
    return any(name.startswith("rocpd_") for name in _tables_at(path) or ())


def _tables_at(path: Path) -> Collection[str] | None:
    """Returns the tables of a database; empty for a file that is no database, None for a damaged one."""
    import sqlite3

    try:
        with path.open("rb") as file:
            if file.read(len(MAGIC)) != MAGIC:
                return ()
        with closing(_opened(path)) as base:
            return _tables(base)
    except OSError:  # reading it reports the error
        return ()
    except sqlite3.Error:
        return None


def chrome_text(path: Path) -> Iterator[bytes]:
    """Yields the text of a Chrome trace, in pieces.

    If several processes used devices, their numbers are prefixed with a rank, like `[rank 1] 2848`, in the order of
    their devices.

    Raises:
        DataError: It is damaged, or not an export of Nsight Systems.
    """
    import sqlite3

    try:
        with closing(_opened(path)) as base:
            yield from _Export(base, path.name).text()
    except sqlite3.Error as error:
        raise DataError(f"{path.name} is not a Chrome trace but an SQLite database that cannot be read: {error}",
                        hint="export the report again") from error


def _opened(path: Path) -> sqlite3.Connection:
    import sqlite3

    log = path.with_name(f"{path.name}-wal")
    unchanging = "" if log.exists() and log.stat().st_size else "&immutable=1"  # needs no write access to the folder
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro{unchanging}", uri=True)


def _tables(base: sqlite3.Connection) -> list[str]:
    return [name for (name,) in base.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]


class _Export:
    def __init__(self, base: sqlite3.Connection, name: str) -> None:
        self._base = base
        base.text_factory = lambda raw: raw.decode("utf-8", "replace")
        self._columns = {table: {row[1] for row in base.execute(f'PRAGMA table_info("{table}")')}
                         for table in _tables(base)}
        if OF_NSYS.isdisjoint(self._columns):
            raise DataError(f"{name} is not a Chrome trace but an SQLite database without Nsight Systems events",
                            hint="nsys export --type sqlite report.nsys-rep writes one that has them")
        self._strings: Mapping[int, str] = {}
        self._prefixes: Mapping[int, str] = {}
        self._arrows: Mapping[int, bytes | bytearray] = {}
        self._kinds: Mapping[int, str] = {}
        self._num_ranges = 0

    def _rows(self, table: str, *columns: str) -> Iterator[tuple[Any, ...]]:
        """Yields rows of a table, with None for columns that it lacks and for values whose type differs from the
        schema; nothing if the table does not exist."""
        known = self._columns.get(table)
        if known is None:
            return iter(())
        words = ", ".join(f'"{name}"' if name in known else "NULL" for name in columns)
        kinds = [str if name in TEXTS else int for name in columns]
        return (tuple(value if isinstance(value, kind) else None for value, kind in zip(row, kinds, strict=True))
                for row in self._base.execute(f'SELECT {words} FROM "{table}"'))

    def _pairs(self, table: str, key: str, value: str) -> Iterator[tuple[int, str]]:
        return ((row[0], row[1] or "") for row in self._rows(table, key, value) if row[0] is not None)

    def _ranks(self) -> dict[int, str]:
        """Returns the prefix for the numbers of each process, if several have used devices."""
        used: dict[int, dict[int, int]] = {}
        for process, device, ns in self._places():
            if process is not None:
                of_process = used.setdefault(process, {})
                of_process[device] = of_process.get(device, 0) + ns
        # each process may number its only device 0
        gpus = {(pid, number): gpu for gpu, number, pid in self._rows(
            "TARGET_INFO_CUDA_DEVICE", "gpuId", "cudaId", "pid") if gpu is not None}
        most = {process: max(devices, key=lambda device: (devices[device], -device))
                for process, devices in used.items()}
        order = sorted(most, key=lambda process: (
            gpus.get((_pid(process), most[process]), most[process]), process))
        return {_pid(process): f"[rank {rank}] " for rank, process in enumerate(order)} if len(order) > 1 else {}

    def _places(self) -> Iterator[tuple[int | None, int, int]]:
        """Yields each process with each device that it used, and for how many ns."""
        for table in ON_DEVICE:
            if "deviceId" in self._columns.get(table, ()):
                owner = "globalPid" if "globalPid" in self._columns[table] else "NULL"
                for process, device, ns in self._base.execute(
                        f'SELECT {owner}, deviceId, SUM("end" - "start") FROM "{table}" GROUP BY 1, 2'):
                    if isinstance(device, int):
                        yield process if isinstance(process, int) else None, device, int(ns or 0)

    def _correlated(self) -> dict[int, bytearray]:
        """Returns, per process, which calls started something on a device: one byte per correlation id."""
        found: dict[int, bytearray] = {}
        sides = [(1, [(CALLS, "globalTid")]), (2, [(table, "globalPid") for table in ON_DEVICE])]
        for bit, tables in sides:
            for table, owner in tables:
                for process, number in self._rows(table, owner, "correlationId"):
                    if process is None or number is None or not 0 < number < MOST_CALLS:
                        continue
                    known = found.setdefault(_pid(process), bytearray())
                    if number >= len(known):
                        known.extend(bytes(max(number + 1 - len(known), len(known))))
                    known[number] |= bit
        return found

    def _has_arrow(self, process: int | None, number: int | None) -> bool:
        known = b"" if process is None else self._arrows.get(_pid(process), b"")
        return number is not None and 0 < number < len(known) and known[number] == BOTH

    def text(self) -> Iterator[bytes]:
        self._prefixes = self._ranks()
        self._strings = dict(self._pairs("StringIds", "id", "value"))
        yield from text_of(self._head(), list(self._names()), self._events())

    def _head(self) -> dict[str, Any]:
        began = next(self._rows("TARGET_INFO_SESSION_START_TIME", "utcEpochNs"), (None,))[0]
        hosts = [value for name, value in self._rows("TARGET_INFO_SYSTEM_ENV", "name", "value") if name == "Hostname"]
        devices = [{"id": number, "name": name} for number, name in self._rows("TARGET_INFO_GPU", "id", "name")
                   if number is not None]
        return {"schemaVersion": 1, "deviceProperties": devices, "baseTimeNanoseconds": began or 0,
                **({"host_name": hosts[0]} if hosts else {}), "traceName": "Nsight Systems"}

    def _events(self) -> Iterator[Event]:
        self._arrows, self._kinds = self._correlated(), dict(self._pairs("ENUM_CUDA_MEM_KIND", "id", "label"))
        for table, of_row in ((KERNELS, self._kernel), (GRAPHS, self._graph), (COPIES, self._copy),
                              (FILLS, self._fill)):
            yield from self._on_device(table, of_row)
        yield from self._calls()
        for row in self._rows(NVTX, "eventType", "start", "end", "globalTid", "text", "textId", "rangeId"):
            yield from self._nvtx(*row)

    def _names(self) -> Iterator[Event]:
        """Yields the names of processes and threads."""
        devices = dict[Pid, int]()
        for process, device, _ in self._places():
            devices[self._process(process, device)] = device
        for place, device in devices.items():
            yield meta(place, "process_labels", {"labels": f"GPU {device}"})
        for process, name in self._rows("PROCESSES", "globalPid", "name"):
            if process is not None:
                pid = self._process(process)
                yield meta(pid, "process_name", {"name": Path(name or "").name})
                yield meta(pid, "process_labels", {"labels": "CPU"})
        for thread, name in self._rows("ThreadNames", "globalTid", "nameId"):
            if thread is None:
                continue
            yield meta(self._process(thread), "thread_name", {"name": self._strings.get(name, "")}, _tid(thread))

    def _process(self, number: int | None, device: int | None = None) -> Pid:
        """Returns the number in the trace of a process, or of its device."""
        pid = 0 if number is None else _pid(number)
        shown = pid if device is None else f"GPU {device}"
        prefix = self._prefixes.get(pid, "")
        return f"{prefix}{shown}" if prefix else shown

    def _on_device(self, table: str, of_row: Callable[[dict[str, Any]], tuple[str, str, dict[str, Any]]]) -> (
            Iterator[Event]):
        columns = sorted(self._columns.get(table, ()))
        for values in self._rows(table, *columns):
            row = dict(zip(columns, values, strict=True))
            category, name, more = of_row(row)
            args = {"device": row.get("deviceId"), "context": row.get("contextId"), "stream": row.get("streamId"),
                    "correlation": row.get("correlationId"), **more}
            pid, tid = self._process(row.get("globalPid"), row.get("deviceId") or 0), row.get("streamId") or 0
            yield slice_of(category, name, pid, tid, row.get("start"), row.get("end"),
                           {key: value for key, value in args.items() if value is not None})
            if row.get("start") is not None and self._has_arrow(row.get("globalPid"), row.get("correlationId")):
                yield arrow("f", row["correlationId"], pid, tid, row["start"])

    def _kernel(self, row: Mapping[str, Any]) -> tuple[str, str, dict[str, Any]]:
        name = self._string(row, "demangledName") or self._string(row, "shortName") or "kernel"
        shared = [row[key] for key in ("staticSharedMemory", "dynamicSharedMemory") if row.get(key) is not None]
        node = row.get("graphNodeId")
        return "kernel", name, {
            "grid": [row.get(f"grid{axis}") for axis in "XYZ"], "block": [row.get(f"block{axis}") for axis in "XYZ"],
            "registers per thread": row.get("registersPerThread"), "shared memory": sum(shared) if shared else None,
            "graph node id": node or None}

    def _graph(self, row: Mapping[str, Any]) -> tuple[str, str, dict[str, Any]]:
        return "kernel", f"CUDA graph {row.get('graphId') or row.get('graphExecId') or ''}".rstrip(), {}

    def _copy(self, row: Mapping[str, Any]) -> tuple[str, str, dict[str, Any]]:
        ends = [self._kinds.get(row.get(key, -1)) for key in ("srcKind", "dstKind")]
        where = f" ({ends[0]} -> {ends[1]})" if None not in ends else ""
        return "gpu_memcpy", f"Memcpy {COPY_KINDS.get(row.get('copyKind', -1), 'of another kind')}{where}", {
            "bytes": row.get("bytes")}

    def _fill(self, row: Mapping[str, Any]) -> tuple[str, str, dict[str, Any]]:
        return "gpu_memset", "Memset (Device)", {"bytes": row.get("bytes")}

    def _string(self, row: Mapping[str, Any], key: str) -> str:
        return self._strings.get(row.get(key), "")  # type: ignore[arg-type]

    def _calls(self) -> Iterator[Event]:
        for start, end, thread, correlation, name in self._rows(
                CALLS, "start", "end", "globalTid", "correlationId", "nameId"):
            called = without_version(self._strings.get(name, "call"))
            pid, tid = self._process(thread), _tid(thread)
            yield slice_of("cuda_runtime" if called.startswith("cuda") else "cuda_driver", called, pid, tid, start, end,
                           {} if correlation is None else {"correlation": correlation})
            if start is not None and self._has_arrow(thread, correlation):
                yield arrow("s", correlation, pid, tid, start)

    def _nvtx(self, kind: int, start: int, end: int | None, thread: int | None, text: str | None,
              text_id: int | None, number: int | None) -> Iterator[Event]:
        """Yields ranges of a thread as slices, ranges of a process as asynchronous events, and marks as instants."""
        if kind not in (MARK, PUSH_POP, START_END) or thread is None or start is None:
            return
        name = text if text is not None else self._strings.get(text_id, "")  # type: ignore[arg-type]
        pid, tid = self._process(thread), _tid(thread)
        place = {"pid": pid, "tid": tid}
        if kind == MARK or end is None:
            yield {"ph": "i", "s": "t", "cat": "user_annotation", "name": name, "ts": microseconds(start), **place}
        elif kind == PUSH_POP:
            category, name, args = named_range(name)
            yield slice_of(category, name, pid, tid, start, end, args)
        else:
            self._num_ranges += 1
            of_range = {"cat": "user_annotation", "name": name, "id": number or f"range {self._num_ranges}", **place}
            yield {"ph": "b", "ts": microseconds(start), **of_range}
            yield {"ph": "e", "ts": microseconds(end), **of_range}


def _pid(number: int) -> int:
    """Returns the process id in the export's number of a process or thread."""
    return number >> 24 & 0xFFFFFF


def _tid(number: int | None) -> int:
    return 0 if number is None else number & 0xFFFFFF
