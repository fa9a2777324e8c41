"""Events of a Chrome trace that are made of what another tool exports, with Kineto's categories and keys."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import msgspec

Event = dict[str, Any]
Pid = str | int
"""Of a process or device: a number, with its rank in front where there are several."""
AT_ONCE = 4096
"""Events that are put into text together."""
HEAD_BYTES = 1 << 16
"""Filled up with blanks: who looks at a file reads so much at once, and what follows may take a look at all of it."""
_VERSION = re.compile(r"(_pt(sz|ds))?_v\d+(_pt(sz|ds))?$|_pt(sz|ds)$")
"""`cudaLaunchKernel_v7000`, `cudaStreamSynchronize_ptsz_v7000`."""
_OPERATOR = re.compile(
    r"(?P<name>.+?)(?:, seq = (?P<seq>-?\d+))?(?:, op_id = (?P<op>\d+))?(?:, sizes = (?P<sizes>\[.*?\]))?"
    r"(?:, input_op_ids = .*)?", re.DOTALL)
"""What `torch.autograd.profiler.emit_nvtx` writes."""
_OPERATORS = ("aten::", "c10d::", "autograd::", "torch::")


def text_of(head: Mapping[str, Any], names: Sequence[Event], events: Iterable[Event]) -> Iterator[bytes]:
    """The text of a trace, in pieces.

    Args:
        head: What stands beside the events.
        names: Events that come first.
        events: All others; taken only once the head has been read.
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
    """A slice; without an end it has no length, and without a start no time: a merge counts and names those."""
    if start_ns is None:
        return {"ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid, "dur": 0, "args": args}
    duration_ns = max((start_ns if end_ns is None else end_ns) - start_ns, 0)
    return {"ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid, "ts": microseconds(start_ns),
            "dur": microseconds(duration_ns), "args": args}


def arrow(phase: str, number: int, pid: Pid, tid: int, at_ns: int) -> Event:
    """An end of an arrow from a call to what it started on a device: `s` or `f`."""
    return {"ph": phase, "id": number, "cat": "ac2g", "name": "ac2g", "pid": pid, "tid": tid,
            "ts": microseconds(at_ns), **({"bp": "e"} if phase == "f" else {})}


def meta(pid: Pid, name: str, args: Mapping[str, Any], tid: int | None = None) -> Event:
    """What names a process or thread."""
    return {"ph": "M", "name": name, "pid": pid, **({} if tid is None else {"tid": tid}), "args": args}


def microseconds(ns: int) -> msgspec.Raw:
    """As Chrome has times, exact to the nanosecond."""
    return msgspec.Raw(b"%s%d.%03d" % (b"-" if ns < 0 else b"", *divmod(abs(ns), 1000)))


def without_version(call: str) -> str:
    """`cudaGraphLaunch` of `cudaGraphLaunch_v10000`, as CUPTI calls it."""
    return _VERSION.sub("", call)


def named_range(text: str) -> tuple[str, str, dict[str, Any]]:
    """Category, name and keys of a range of a thread: operators of torch write more than their name."""
    found = _OPERATOR.fullmatch(text)
    if found is None or not (found["op"] or found["seq"] or text.startswith(_OPERATORS)):
        return "user_annotation", text, {}
    args: dict[str, Any] = {"Sequence number": int(found["seq"])} if found["seq"] else {}
    try:
        sizes = json.loads(found["sizes"]) if found["sizes"] else None
    except ValueError:
        sizes = None
    return "cpu_op", found["name"], args | ({} if sizes is None else {"Input Dims": sizes})
