"""Reads the output of `rocprofv3 --output-format json` as text of a Chrome trace, with Kineto's categories and keys.

Names of fields: the JSON schema in the documentation of ROCprofiler-SDK. The whole file is read into memory.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from distprof.errors import DataError
from distprof.merge.scan.made_events import Event, Pid, arrow, meta, slice_of, text_of

BEGIN = re.compile(rb'\s*\{\s*"rocprofiler-sdk-tool"')
GPU = 2
"""Type of an agent."""
CALLS = {"hip_api": "cuda_runtime", "hsa_api": "hsa_api", "rccl_api": "rccl_api"}
"""Kind of records of calls -> category; Kineto uses `cuda_runtime` for those of HIP."""
ON_DEVICE = ("kernel_dispatch", "memory_copy")
COPIES = {"HOST_TO_DEVICE": "HtoD", "DEVICE_TO_HOST": "DtoH", "DEVICE_TO_DEVICE": "DtoD", "HOST_TO_HOST": "HtoH"}


class _Handle(msgspec.Struct):
    handle: int = 0


class _Size(msgspec.Struct):
    x: int = 1
    y: int = 1
    z: int = 1

    def axes(self) -> list[int]:
        return [self.x, self.y, self.z]


class _Correlation(msgspec.Struct):
    internal: int = 0


class _Dispatch(msgspec.Struct):
    agent_id: _Handle = msgspec.field(default_factory=_Handle)
    queue_id: _Handle = msgspec.field(default_factory=_Handle)
    kernel_id: int = 0
    group_segment_size: int = 0
    workgroup_size: _Size = msgspec.field(default_factory=_Size)
    grid_size: _Size = msgspec.field(default_factory=_Size)


class _Record(msgspec.Struct):
    start_timestamp: int
    end_timestamp: int
    kind: int = 0
    operation: int = 0
    thread_id: int = 0
    correlation_id: _Correlation = msgspec.field(default_factory=_Correlation)
    dispatch_info: _Dispatch | None = None
    stream_id: _Handle | None = None
    src_agent_id: _Handle | None = None
    dst_agent_id: _Handle | None = None
    bytes: int | None = None


class _Buffers(msgspec.Struct):
    kernel_dispatch: list[_Record] = msgspec.field(default_factory=list)
    memory_copy: list[_Record] = msgspec.field(default_factory=list)
    hip_api: list[_Record] = msgspec.field(default_factory=list)
    hsa_api: list[_Record] = msgspec.field(default_factory=list)
    rccl_api: list[_Record] = msgspec.field(default_factory=list)
    marker_api: list[_Record] = msgspec.field(default_factory=list)


class _Agent(msgspec.Struct):
    id: _Handle
    type: int = 0
    logical_node_type_id: int = 0
    product_name: str | None = None


class _Kernel(msgspec.Struct):
    kernel_id: int
    demangled_kernel_name: str = ""
    formatted_kernel_name: str = ""


class _Text(msgspec.Struct):
    key: int
    value: str


class _Strings(msgspec.Struct):
    buffer_records: Any = None
    marker_api: list[_Text] = msgspec.field(default_factory=list)


class _Node(msgspec.Struct):
    hostname: str = ""


class _Metadata(msgspec.Struct):
    pid: int = 0
    command: list[str] = msgspec.field(default_factory=list)
    node: _Node = msgspec.field(default_factory=_Node)


class _Recorded(msgspec.Struct):
    metadata: _Metadata = msgspec.field(default_factory=_Metadata)
    agents: list[_Agent] = msgspec.field(default_factory=list)
    strings: _Strings = msgspec.field(default_factory=_Strings)
    kernel_symbols: list[_Kernel] = msgspec.field(default_factory=list)
    buffer_records: _Buffers = msgspec.field(default_factory=lambda: _Buffers())


class _Whole(msgspec.Struct, rename={"processes": "rocprofiler-sdk-tool"}):
    processes: list[_Recorded] | _Recorded


def chrome_text(pieces: Iterable[bytes], name: str) -> Iterator[bytes]:
    """Yields the text of a Chrome trace, in pieces.

    Args:
        pieces: Contents of the file.
        name: Its name in messages.

    Raises:
        DataError: It is damaged.
    """
    try:
        found = msgspec.json.decode(b"".join(pieces), type=_Whole).processes
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DataError(f"{name} is not a Chrome trace but a damaged rocprofv3 file: {error}",
                        hint="record it again, or omit it") from error
    processes = found if isinstance(found, list) else [found]
    devices = {agent.logical_node_type_id: agent.product_name or "" for one in processes for agent in one.agents
               if agent.type == GPU}
    hosts = {one.metadata.node.hostname for one in processes} - {""}
    head = {"schemaVersion": 1, "deviceProperties": [{"id": number, "name": name} for number, name in devices.items()],
            "baseTimeNanoseconds": 0, **({"host_name": hosts.pop()} if len(hosts) == 1 else {}),
            "traceName": "rocprofv3"}
    parts = [_Process(one) for one in processes]
    ranks = sorted((device, part.pid, number) for number, part in enumerate(parts)
                   if (device := part.main_device) is not None)
    for rank, (_, _, number) in enumerate(ranks if len(ranks) > 1 else ()):
        parts[number].prefix = f"[rank {rank}] "
    yield from text_of(head, [name for part in parts for name in part.names()],
                       (event for part in parts for event in part.events()))


class _Process:
    """Makes the events of one process."""

    def __init__(self, process: _Recorded) -> None:
        self._process, self.pid = process, process.metadata.pid
        self.prefix = ""
        """Prefix of the numbers of processes and devices, if the file contains several ranks."""
        self._devices = {agent.id.handle: agent.logical_node_type_id for agent in process.agents if agent.type == GPU}
        self._kernels = {one.kernel_id: one.demangled_kernel_name or one.formatted_kernel_name
                         for one in process.kernel_symbols}
        called, started = ({record.correlation_id.internal for kind in kinds for record in self._records(kind)
                            if _start(record) is not None} for kinds in (CALLS, ON_DEVICE))
        self._arrows = called & started

    @property
    def main_device(self) -> int | None:
        """The device on which the kernels of the process took the most time."""
        used: dict[int, int] = {}
        for record in self._records("kernel_dispatch"):
            if record.dispatch_info is not None and record.start_timestamp > 0:
                device = self._devices.get(record.dispatch_info.agent_id.handle, 0)
                used[device] = used.get(device, 0) + record.end_timestamp - record.start_timestamp
        return max(used, key=lambda device: (used[device], -device), default=None)

    def _place(self, device: int | None = None) -> Pid:
        shown = self.pid if device is None else f"GPU {device}"
        return f"{self.prefix}{shown}" if self.prefix else shown

    def names(self) -> Iterator[Event]:
        """Yields the names of the process and its devices."""
        program = self._process.metadata.command[:1] or ["rocprofv3"]
        yield meta(self._place(), "process_name", {"name": program[0].rpartition("/")[2]})
        yield meta(self._place(), "process_labels", {"labels": "CPU"})
        for device in sorted({*self._devices.values()}):
            yield meta(self._place(device), "process_labels", {"labels": f"GPU {device}"})

    def events(self) -> Iterator[Event]:
        """Yields all other events."""
        for record in self._records("kernel_dispatch"):
            yield from self._kernel(record)
        for record in self._records("memory_copy"):
            yield from self._copy(record)
        for kind, category in CALLS.items():
            for record in self._records(kind):
                yield from self._call(record, category)
        texts = {text.key: text.value for text in self._process.strings.marker_api}
        for record in self._records("marker_api"):
            name = texts.get(record.correlation_id.internal) or self._operation(record)
            yield slice_of("user_annotation", name, self._place(), record.thread_id, _start(record),
                           record.end_timestamp, {})

    def _records(self, kind: str) -> list[_Record]:
        found: list[_Record] = getattr(self._process.buffer_records, kind)
        return found

    def _operation(self, record: _Record) -> str:
        kinds = self._process.strings.buffer_records
        about = kinds[record.kind] if isinstance(kinds, list) and 0 <= record.kind < len(kinds) else None
        names = about.get("operations") if isinstance(about, dict) else None
        known = isinstance(names, list) and 0 <= record.operation < len(names)
        return str(names[record.operation]) if known else "call"  # type: ignore[index]

    def _kernel(self, record: _Record) -> Iterator[Event]:
        what = record.dispatch_info or _Dispatch()
        block, items = what.workgroup_size.axes(), what.grid_size.axes()
        stream = what.queue_id.handle if record.stream_id is None else record.stream_id.handle
        grid = [-(-every // max(one, 1)) for every, one in zip(items, block, strict=True)]
        name = self._kernels.get(what.kernel_id) or "kernel"
        yield from self._on_device(record, "kernel", name, what.agent_id, stream, {
            "queue": what.queue_id.handle, "grid": grid, "block": block, "shared memory": what.group_segment_size})

    def _copy(self, record: _Record) -> Iterator[Event]:
        ends = [end for end in (record.dst_agent_id, record.src_agent_id) if end is not None]
        agent = next((end for end in ends if end.handle in self._devices), _Handle())
        operation = self._operation(record)
        kind = next((short for name, short in COPIES.items() if name in operation), operation)
        stream = 0 if record.stream_id is None else record.stream_id.handle
        yield from self._on_device(record, "gpu_memcpy", f"Memcpy {kind}", agent, stream, {
            **({} if record.bytes is None else {"bytes": record.bytes})})

    def _on_device(self, record: _Record, category: str, name: str, agent: _Handle, stream: int,
                   args: Mapping[str, Any]) -> Iterator[Event]:
        device, number = self._devices.get(agent.handle, 0), record.correlation_id.internal
        yield slice_of(category, name, self._place(device), stream, _start(record), record.end_timestamp, {
            "device": device, "stream": stream, "correlation": number, **args})
        if number in self._arrows and (start := _start(record)) is not None:
            yield arrow("f", number, self._place(device), stream, start)

    def _call(self, record: _Record, category: str) -> Iterator[Event]:
        number = record.correlation_id.internal
        yield slice_of(category, self._operation(record), self._place(), record.thread_id, _start(record),
                       record.end_timestamp, {"correlation": number})
        if number in self._arrows and (start := _start(record)) is not None:
            yield arrow("s", number, self._place(), record.thread_id, start)


def _start(record: _Record) -> int | None:
    """Returns when a record began; None if that was never recorded."""
    return record.start_timestamp if record.start_timestamp > 0 else None
