"""Slices that `record_function` opened and that are not closed where a session of the profiler begins or ends.

A slice keeps the address of its event. When it closes while a later session is on, torch writes the end there, and the
memory of the earlier session is free by then: the process crashes, or data of others change. So slices end with the
session in which they began. torch opens one around every step of an optimizer, where our steps end.
"""

from __future__ import annotations

import mmap
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.autograd.profiler import record_function

from distprof.process.live_objects import live_instances


def close_open_slices(find: Callable[[type], list[Any]] = live_instances) -> None:
    """Ends the slices that are open; for those that are over, or end later, that does nothing.

    Args:
        find: Finds the instances of a class, at least those that may be open.
    """
    records = [one.record for one in find(record_function)]
    with torch._C.DisableTorchFunctionSubclass():
        for record in records:
            if record is not None:  # made, and not entered
                torch.ops.profiler._record_function_exit._RecordFunction(record)


def end_with_step(trace: Path, step_ns: int, session_ns: int, thread: int) -> None:
    """Ends what was still open on a thread when its session ended where its last step ended.

    In between the thread did only what ends a pass, like the search for the slices that are open.

    Args:
        trace: The file as Kineto writes it; it keeps its length, so that memory holds none of it.
        step_ns: When the last step ended, since the epoch.
        session_ns: When the session began to end.
        thread: Number of the thread in the system.
    """
    times = re.compile(
        rb'"pid": %d,\s*"tid": %d,\s*"ts": (\d+)\.(\d{3}),\s*"dur": ((\d+)\.(\d{3}))' % (os.getpid(), thread))
    with trace.open("r+b") as file, mmap.mmap(file.fileno(), 0) as text:
        base = _BASE.search(text)
        for found in times.finditer(text) if base is not None else ():
            start_ns = int(base[1]) + int(found[1] + found[2])  # type: ignore[index]
            if start_ns < step_ns <= session_ns < start_ns + int(found[4] + found[5]):
                text[slice(*found.span(3))] = _microseconds(step_ns - start_ns).ljust(len(found[3]))


_BASE = re.compile(rb'"baseTimeNanoseconds": (\d+)')


def _microseconds(ns: int) -> bytes:
    return b"%d.%03d" % divmod(ns, 1000)
