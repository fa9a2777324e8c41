"""Traces of torch.profiler that a test writes by hand."""

from __future__ import annotations

import json


def op(name, ts, dur, *, tid=1, cat="cpu_op", **args):
    """A slice."""
    return {"ph": "X", "name": name, "cat": cat, "pid": 1, "tid": tid, "ts": ts, "dur": dur, "args": args}


def folder(tmp_path, *ranks):
    """The folder with a trace of each rank's events in it."""
    for rank, events in enumerate(ranks):
        (tmp_path / f"rank{rank}.json").write_text(json.dumps({
            "distributedInfo": {"rank": rank, "world_size": len(ranks)}, "traceEvents": events}))
    return tmp_path
