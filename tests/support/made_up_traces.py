"""Builds traces of torch.profiler for tests."""

from __future__ import annotations

import json


def op(name, ts, dur, *, tid=1, cat="cpu_op", **args):
    """Returns a slice."""
    return {"ph": "X", "name": name, "cat": cat, "pid": 1, "tid": tid, "ts": ts, "dur": dur, "args": args}


def folder(tmp_path, *ranks):
    """Writes a trace per rank from its events; returns the folder."""
    for rank, events in enumerate(ranks):
        (tmp_path / f"rank{rank}.json").write_text(json.dumps({
            "distributedInfo": {"rank": rank, "world_size": len(ranks)}, "traceEvents": events}))
    return tmp_path
