"""Writes the events of a rank in a Chrome trace, a gzip member compressed where the rank was read, with what is drawn
on it.

Stack frames of Chrome traces are a tree beside the events, in which `sf` and `esf` of an event name a leaf. Numbers of
frames start anew in each file, so those in a merged trace are prefixed with the rank.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
from isal import isal_zlib

from distprof.merge.chrome.drawing.drawn import DRAWN, PROCESS, CounterValue, DrawnCollective, DrawnSlice, DrawnTensor
from distprof.merge.chrome.numbering import Lanes
from distprof.merge.chrome.rank_events import DecidedEvents, RankEvents
from distprof.merge.chrome.work_folder import Attempt
from distprof.merge.scan.made_events import microseconds
from distprof.merge.scan.repair import BACKSLASH_LAST, repaired

if TYPE_CHECKING:
    from distprof.merge.chrome.drawing.collectives import Drawing
    from distprof.merge.chrome.drawing.device import MemoryCounters
    from distprof.storage.writing.joined import Share

BETWEEN = b",\n"
AT_ONCE = 1 << 14
"""Number of events that are encoded together."""
FIRST_ARROW = 1 << 52
"""Ids of arrows between ranks start here; those within ranks are below, and a double holds twice as many exactly."""
LEVEL = 1
GZIP = 31
"""wbits of a deflate stream with a gzip header, which contains no name and no time."""
FIRST_BYTES = 16
"""Number of bytes that are left to ISA-L's code for flushing a stream; 4 to 16 bytes avoid its bug."""
FRAMES = "stackFrames"
NAMES = ("sf", "esf")
"""Keys of an event that name the stack frame where it began and ended."""
_EVENTS = msgspec.json.Decoder(list[dict[str, msgspec.Raw]])


class ChromeRank:
    """Writes the events of a rank as a gzip member, without brackets around them."""

    texts = ()

    def __init__(self, path: Path, *, draws_memory: bool = False, has_frames: bool = False,
                 share: Share | None = None, packer: Callable[[], Packer] | None = None) -> None:
        """Writes to a file in the work folder, and from there to a stored object if it has a share in one."""
        self._path, self._draws_memory, self._has_frames, self._share = path, draws_memory, has_frames, share
        self._packer = packer or GzipMember
        self._memory: MemoryCounters | None = None

    @property
    def integers(self) -> Sequence[str]:
        """Keys of memory events, if counters of allocators are drawn."""
        return self._counters().keys if self._draws_memory else ()

    @staticmethod
    def _counters() -> MemoryCounters:
        from distprof.merge.chrome.drawing.device import MemoryCounters  # polars takes a while to import

        return MemoryCounters()

    def begin(self, events: RankEvents) -> None:
        self._events, self._attempt = events, Attempt(self._path, self._path.parent)
        self._file = self._attempt.file
        self._memory = self._counters() if self._draws_memory else None
        self._member = self._packer()
        self._is_empty = True

    def add(self, events: DecidedEvents) -> None:
        text = events.json()
        self._write(with_frames_of(text, self._events.plan.rank) if self._has_frames and text else text)
        if self._memory is not None:
            self._memory.take(events.scanner)

    def _write(self, text: bytes | memoryview) -> None:
        if text:
            if not self._is_empty:
                self._file.write(self._member.add(BETWEEN))
            self._is_empty = False
            self._file.write(self._member.add(text))

    def end(self) -> None:
        """Writes what is drawn, and the names of processes and threads."""
        if not self._is_empty:
            texts = map(encoded, self._drawn())
            while some := list(islice(texts, AT_ONCE)):
                self._write(BETWEEN.join(some))
        self._file.write(self._member.end())
        parts = None if self._share is None else self._share.put(self._file)
        self._events.counts.parts = parts
        self._attempt.keep(spare=parts is not None)

    def _drawn(self) -> Iterator[dict[str, object]]:
        lanes, plan = self._events.lanes, self._events.plan
        for step in self._events.step_slices():
            thread = lanes.extra("steps")
            yield slice_event(step, thread.pid, thread.tid, plan.origin_ns)
        yield from collective_events(plan.collectives, lanes, plan.origin_ns)
        if self._memory is not None:
            yield from counters_of(self._memory.values(plan), lanes.first_pid, plan.origin_ns)
        yield from tensor_events(plan.tensors, lanes.first_pid, plan.origin_ns)
        if plan.draws_queues:
            from distprof.merge.chrome.drawing.device import queue_values  # reads timelines, which few merges do

            yield from counters_of(queue_values(plan), lanes.first_pid, plan.origin_ns)
        yield from lanes.describe()

    def close(self) -> None:
        self._attempt.close()


class Packer(Protocol):
    """Compresses text to a part of a file that is also a file by itself."""

    def add(self, text: bytes | memoryview) -> bytes:
        """Takes more text; returns what can be written by now."""

    def end(self) -> bytes:
        """Returns the rest."""


class GzipMember:
    """Compresses text to a gzip member, which is a file by itself: the same pieces give the same bytes.

    ISA-L hashes the third byte of a stream from an uninitialised register, which holds the address of the compressor:
    about one in some thousand addresses changes which matches are found, though not the decompressed text. The code
    that flushes a stream does not have this bug, so it gets the first bytes.
    """

    def __init__(self) -> None:
        self._packer = isal_zlib.compressobj(LEVEL, wbits=GZIP)
        self._is_empty = True

    def add(self, text: bytes | memoryview) -> bytes:
        """Takes more text; returns what can be written by now. If more follows, the first text has at least 4 bytes."""
        if not self._is_empty:
            return self._packer.compress(text)
        self._is_empty = False
        first = self._packer.compress(text[:FIRST_BYTES]) + self._packer.flush(isal_zlib.Z_SYNC_FLUSH)
        return first + self._packer.compress(text[FIRST_BYTES:])

    def end(self) -> bytes:
        """Returns the rest."""
        return self._packer.flush()


class ZstdFrame:
    """Compresses text to a zstd frame."""

    def __init__(self) -> None:
        import pyarrow  # takes a while, and few merges are zstd

        self._made = _Written()
        self._stream = pyarrow.CompressedOutputStream(pyarrow.PythonFile(self._made, "w"), "zstd")

    def add(self, text: bytes | memoryview) -> bytes:
        """Takes more text; returns what can be written by now."""
        self._stream.write(text)
        return self._made.taken()

    def end(self) -> bytes:
        """Returns the rest."""
        self._stream.close()
        return self._made.taken()


class _Written(io.RawIOBase):
    """Keeps what is written until it is taken."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []

    def writable(self) -> bool:
        return True

    def write(self, piece: Any, /) -> int:
        self._pieces.append(bytes(piece))
        return len(self._pieces[-1])

    def taken(self) -> bytes:
        """Returns what was written since the last call."""
        made = b"".join(self._pieces)
        self._pieces.clear()
        return made


def packed(text: bytes, packer: Callable[[], Packer] = GzipMember) -> bytes:
    """Returns a member with this text."""
    member = packer()
    return member.add(text) + member.end()


def frames_of(metadata: dict[str, Any], rank: int) -> dict[str, Any]:
    """Takes the stack frames of a rank out of the keys beside its events.

    Args:
        metadata: Keys beside the events; the frames are removed from it.
        rank: The rank that they belong to.
    """
    frames = metadata.pop(FRAMES, None)
    if not isinstance(frames, dict):
        return {}
    return {_named(number, rank): {**frame, "parent": _named(frame["parent"], rank)} if "parent" in frame else frame
            for number, frame in frames.items() if isinstance(frame, dict)}


def with_frames_of(text: bytes | memoryview, rank: int) -> bytes:
    """Returns events, joined by commas, whose stack frames are named as those of the rank."""
    events = _EVENTS.decode(b"[" + text + b"]")
    for event in events:
        for name in NAMES:
            if name in event:
                event[name] = msgspec.Raw(msgspec.json.encode(_named(msgspec.json.decode(event[name]), rank)))
    return b",\n".join(map(msgspec.json.encode, events))


def _named(number: object, rank: int) -> str:
    return f"{rank}:{number}"


def encoded(value: dict[str, Any]) -> bytes:
    """Encodes an object as JSON that every viewer reads."""
    text = msgspec.json.encode(value)
    return repaired(text) if BACKSLASH_LAST in text else text


def slice_event(what: DrawnSlice, pid: int, tid: int, origin_ns: int,
                args: dict[str, Any] | None = None) -> dict[str, object]:
    """Returns a slice event; what precedes the origin is cut off."""
    start_ns = max(what.start_ns - origin_ns, 0)
    return {"ph": "X", "cat": DRAWN, "name": what.name, "pid": pid, "tid": tid, "ts": microseconds(start_ns),
            "dur": microseconds(max(what.end_ns - origin_ns - start_ns, 0)), **({} if args is None else {"args": args})}


def collective_events(drawn: Iterable[DrawnCollective], lanes: Lanes, origin_ns: int) -> Iterator[dict[str, object]]:
    """Yields slices on threads of the rank's first process, each followed by its arrow ends."""
    for one in drawn:
        thread = lanes.extra(one.thread)
        yield slice_event(one.slice, thread.pid, thread.tid, origin_ns, one.args)
        for part in one.parts:
            yield slice_event(part, thread.pid, thread.tid, origin_ns)
        for arrow in one.arrows:
            yield {"ph": arrow.phase, "cat": DRAWN, "name": arrow.name, "id": FIRST_ARROW + arrow.number,
                   "pid": thread.pid, "tid": thread.tid, "ts": microseconds(arrow.at_ns - origin_ns),
                   **({"bp": "e"} if arrow.phase == "f" else {})}


def tensor_events(drawn: Iterable[DrawnTensor], pid: int, origin_ns: int) -> Iterator[dict[str, object]]:
    """Yields asynchronous slices. A viewer has a track for each id, and names it after the first event on it."""
    named = set[str]()
    for one in drawn:
        start_ns = max(one.slice.start_ns - origin_ns, 0)
        lane = f"{one.device} {one.lane}"
        place = {"cat": DRAWN, "pid": pid, "id2": {"local": lane}}
        if lane not in named:
            named.add(lane)
            yield {"ph": "n", "name": f"tensors {one.device}", "ts": microseconds(start_ns), **place}
        for phase, at_ns, args in (("b", start_ns, one.args), ("e", max(one.slice.end_ns - origin_ns, start_ns), {})):
            yield {"ph": phase, "name": one.slice.name, "ts": microseconds(at_ns), "args": args, **place}


def counter_events(drawing: Drawing | None, pid: int, origin_ns: int) -> Iterator[dict[str, object]]:
    """Yields a process above those of the ranks, with the counters of the job."""
    values = chain.from_iterable(drawing.counters if drawing is not None else ())
    first = next(values, None)
    if first is None:
        return
    for name, args in (("process_name", {"name": PROCESS}), ("process_sort_index", {"sort_index": -1})):
        yield {"ph": "M", "name": name, "pid": pid, "args": args}
    yield from counters_of(chain((first,), values), pid, origin_ns)


def counters_of(samples: Iterable[CounterValue], pid: int, origin_ns: int) -> Iterator[dict[str, object]]:
    """Yields the counters of a process."""
    for sample in samples:
        yield {"ph": "C", "cat": DRAWN, "name": sample.what, "pid": pid,
               "ts": microseconds(max(sample.at_ns - origin_ns, 0)), "args": {sample.state: sample.value}}
