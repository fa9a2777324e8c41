"""Computes steps of GPUs in traces of torch.profiler by simple interval arithmetic, sharing no code with distprof.

Times are microseconds, as in the trace.
"""

from __future__ import annotations

import gzip
import itertools
import json

ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
ON_HOST = ("cuda_runtime", "cuda_driver")
SYNCHRONISING = ("StreamSynchronize", "DeviceSynchronize", "EventSynchronize", "CtxSynchronize")
LATENCY, HANDOVER = 10, 30
"""In us, as defined in docs/devices.md."""


def slices_of(path):
    """Returns the slices of a trace, sorted by start."""
    text = gzip.decompress(path.read_bytes()) if path.name.endswith(".gz") else path.read_bytes()
    return sorted((one for one in json.loads(text)["traceEvents"] if one.get("ph") == "X" and "cat" in one),
                  key=lambda one: one["ts"])


def union(intervals):
    merged = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], end)
        elif end > start:
            merged.append([start, end])
    return merged


def common(one, other):
    """Returns the intersection of two unions of intervals."""
    found, i, j = [], 0, 0
    while i < len(one) and j < len(other):
        start, end = max(one[i][0], other[j][0]), min(one[i][1], other[j][1])
        if start < end:
            found.append([start, end])
        if one[i][1] < other[j][1]:
            i += 1
        else:
            j += 1
    return found


def length(intervals):
    return sum(end - start for start, end in intervals)


def span(one):
    return [one["ts"], one["ts"] + one["dur"]]


class Trace:
    """One device and its host.

    Args:
        slices: See `slices_of`.
        marks: Step -> start and end on the host; None: as marked in the trace.
        communicates: Substrings of the names of communication kernels, in lower case.
    """

    def __init__(self, slices, marks=None, communicates=("nccl",)):
        self.device = [one for one in slices if one["cat"].lower() in ON_DEVICE]
        self.calls = {one["args"]["correlation"]: one for one in slices
                      if one["cat"].lower() in ON_HOST and "correlation" in one["args"]}
        self.synchronising = [one for one in slices if one["cat"].lower() in ON_HOST
                              and one["name"].endswith(SYNCHRONISING)]
        self.marks = marks or {int(one["name"].split("#")[1]): span(one) for one in slices
                               if one["name"].startswith("ProfilerStep#") and one["cat"] == "user_annotation"}
        self.communicates = communicates

    def call(self, one):
        return self.calls.get(one["args"].get("correlation"))

    def step(self, one):
        call = self.call(one)
        return None if call is None else next(
            (number for number, (start, end) in self.marks.items() if start <= call["ts"] < end), None)

    def outside(self):
        """Returns the number and total duration of commands without a launch."""
        lost = [one for one in self.device if self.call(one) is None]
        return len(lost), sum(one["dur"] for one in lost)

    def steps(self):
        """Returns start and end of each step of the device, from its first command to the first of the next step; the
        last step ends with its last command or with the step on the host, whichever is later."""
        by_step = {number: [one for one in self.device if self.step(one) == number] for number in sorted(self.marks)}
        firsts = {number: min(one["ts"] for one in some) for number, some in by_step.items() if some}
        numbers = sorted(firsts)
        found = {number: (firsts[number], firsts[following])
                 for number, following in itertools.pairwise(numbers)}
        last = numbers[-1]
        return {**found, last: (firsts[last], max(max(sum(span(one)[1:]) for one in by_step[last]),
                                                  self.marks[last][1]))}

    def parts(self):
        """Returns the duration and the parts of each step."""
        def ran(held):
            return union(span(one) for one in self.device if held(one))

        def is_kernel(one):
            return one["cat"].lower() == "kernel"

        def talks(one):
            return any(word in one["name"].lower() for word in self.communicates)

        kinds = [ran(lambda one: is_kernel(one) and not talks(one)), ran(lambda one: is_kernel(one) and talks(one)),
                 ran(lambda one: not is_kernel(one))]
        found = {}
        for number, window in self.steps().items():
            computing, talking, copying = (common(kind, [list(window)]) for kind in kinds)
            either, busy = union(computing + talking), union(computing + talking + copying)
            whole = window[1] - window[0]
            found[number] = {"step": whole, "compute": length(computing), "exposed": length(either) - length(computing),
                             "copies": length(busy) - length(either), "idle": whole - length(busy)}
        return found

    def pauses(self):
        """Yields each pause of the device: start, end, the command before and the command after it."""
        reach, before = None, None
        order = sorted(self.device, key=lambda one: (one["ts"], sum(span(self.call(one))[1:]) if self.call(one) else 0))
        for one in order:
            if reach is not None and one["ts"] > reach:
                yield reach, one["ts"], before, one
            if reach is None or sum(span(one)[1:]) >= reach:
                reach, before = sum(span(one)[1:]), one

    def causes(self):
        """Returns the idle time of each step by cause."""
        threads = {self.call(one)["tid"] for one in self.device if self.call(one)}
        blocked = union([*(span(one) for one in self.synchronising if one["tid"] in threads), *(
            [one["ts"], sum(span(self.call(one))[1:])] for one in self.device if one["cat"].lower() != "kernel"
            and self.call(one) and sum(span(self.call(one))[1:]) >= sum(span(one)[1:]))])
        pieces = {}
        for start, end, before, behind in self.pauses():
            call = self.call(behind)
            asked = None if call is None else call["ts"] + call["dur"]
            late = start if asked is None else min(max(asked, start), end)
            waiting = common([[start, late]], blocked)
            held = end - late
            other = before["tid"] != behind["tid"]
            name = "unsent" if call is None else "latency" if held <= LATENCY else "stream" if (
                other and asked <= start and held <= HANDOVER) else "unshown"
            pieces.setdefault("sync", []).extend(waiting)
            pieces.setdefault("busy", []).extend([[start, late]])
            pieces.setdefault(name, []).append([late, end])
        found = {}
        last = max(sum(span(one)[1:]) for one in self.device)
        for number, window in self.steps().items():
            times = {name: length(common(union(some), [list(window)])) for name, some in pieces.items()}
            host = times.pop("busy", 0) - times.get("sync", 0)
            found[number] = {**dict.fromkeys(("sync", "stream", "latency", "unshown", "unsent"), 0), **times,
                             "host": host, "unasked": max(window[1] - max(last, window[0]), 0)}
        return found
