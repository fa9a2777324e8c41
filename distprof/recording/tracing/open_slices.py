"""Slices that `record_function` opened and that are not closed where a session of the profiler begins or ends.

A slice keeps the address of its event. When it closes while a later session is on, torch writes the end there, and the
memory of the earlier session is free by then: the process crashes, or data of others change. So slices end with the
session in which they began. torch opens one around every step of an optimizer, where our steps end.
"""

from __future__ import annotations

import torch
from torch.autograd.profiler import record_function

from distprof.process.live_objects import live_instances


def close_open_slices() -> None:
    """Ends the slices that are open; for those that are over, or end later, that does nothing."""
    records = [one.record for one in live_instances(record_function)]
    with torch._C.DisableTorchFunctionSubclass():
        for record in records:
            if record is not None:  # made, and not entered
                torch.ops.profiler._record_function_exit._RecordFunction(record)
