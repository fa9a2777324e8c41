"""Makes events of a Chrome trace from another tool's export, with Kineto's categories and keys."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import msgspec

Event = dict[str, Any]
Pid = str | int
"""Number of a process or device, prefixed with its rank if there are several."""
AT_ONCE = 4096
"""Events encoded together."""
HEAD_BYTES = 1 << 16
"""The head is padded with blanks to this size: the first look at a file reads this many bytes, and making the events
may require a pass over the whole export."""
_VERSION = re.compile(r"(_pt(sz|ds))?_v\d+(_pt(sz|ds))?$|_pt(sz|ds)$")
"""Matches the suffixes in `cudaLaunchKernel_v7000`, `cudaStreamSynchronize_ptsz_v7000`."""
_OPERATOR = re.compile(
    r"(?P<name>.+?)(?:, seq = (?P<seq>-?\d+))?(?:, op_id = (?P<op>\d+))?(?:, sizes = (?P<sizes>\[.*?\]))?"
    r"(?:, input_op_ids = .*)?", re.DOTALL)
"""Matches what `torch.autograd.profiler.emit_nvtx` writes."""
_OPERATORS = ("aten::", "c10d::", "autograd::", "torch::")


def text_of(head: Mapping[str, Any], names: Sequence[Event], events: Iterable[Event]) -> Iterator[bytes]:
    """Yields the text of a trace, in pieces.

    Args:
        head: Keys and values beside the events.
        names: Events that come first.
        events: All other events; consumed only once the head has been read.
    """
    known = b",\n".join(map(msgspec.json.encode, names))
    yield (msgspec.json.encode(head)[:-1] + b',"traceEvents":[\n' + known).ljust(HEAD_BYTES)
    between = b",\n" if known else b""
    texts = map(msgspec.json.encode, events)
    while some := list(islice(texts, AT_ONCE)):
        yield between + b",\n".join(some)
        between = b",\n"
    yield b"\n]}\n"


def slice_of(category: str, name: str, pid: Pid, tid: int, start_ns: int | None, end_ns: int | None,
             args: Mapping[str, Any]) -> Event:
    """Returns a slice. Without an end its length is 0; without a start it has no time, which a merge reports."""
    if start_ns is None:
        return {"ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid, "dur": 0, "args": args}
    duration_ns = max((start_ns if end_ns is None else end_ns) - start_ns, 0)
    return {"ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid, "ts": microseconds(start_ns),
            "dur": microseconds(duration_ns), "args": args}


def arrow(phase: str, number: int, pid: Pid, tid: int, at_ns: int) -> Event:
    """Returns one end, `s` or `f`, of an arrow from a call to what it started on a device."""
    return {"ph": phase, "id": number, "cat": "ac2g", "name": "ac2g", "pid": pid, "tid": tid,
            "ts": microseconds(at_ns), **({"bp": "e"} if phase == "f" else {})}


def meta(pid: Pid, name: str, args: Mapping[str, Any], tid: int | None = None) -> Event:
    """Returns a metadata event, which names a process or thread."""
    return {"ph": "M", "name": name, "pid": pid, **({} if tid is None else {"tid": tid}), "args": args}


def microseconds(ns: int) -> msgspec.Raw:
    """Returns a time as Chrome traces have it, exact to the nanosecond."""
    return msgspec.Raw(b"%s%d.%03d" % (b"-" if ns < 0 else b"", *divmod(abs(ns), 1000)))


def without_version(call: str) -> str:
    """Returns `cudaGraphLaunch` for `cudaGraphLaunch_v10000`, CUPTI's name of the call."""
    return _VERSION.sub("", call)


def named_range(text: str) -> tuple[str, str, dict[str, Any]]:
    """Returns category, name and args of a range on a thread: operators of torch write more than their name."""
    found = _OPERATOR.fullmatch(text)
    if found is None or not (found["op"] or found["seq"] or text.startswith(_OPERATORS)):
        return "user_annotation", text, {}
    args: dict[str, Any] = {"Sequence number": int(found["seq"])} if found["seq"] else {}
    try:
        sizes = json.loads(found["sizes"]) if found["sizes"] else None
    except ValueError:
        sizes = None
    return "cpu_op", found["name"], args | ({} if sizes is None else {"Input Dims": sizes})
