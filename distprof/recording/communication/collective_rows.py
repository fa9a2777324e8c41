"""Rows of collectives.parquet from the labelled calls."""

from __future__ import annotations

from collections.abc import Iterable

from distprof.contract.tables import COLLECTIVES, TAGS, TableRow
from distprof.recording.communication.collective_call import CollectiveCall

NAMES = tuple(column.name for column in COLLECTIVES.columns if column not in TAGS)


def collective_rows(calls: Iterable[CollectiveCall]) -> list[TableRow]:
    """One row per call."""
    return [{name: getattr(call, name) for name in NAMES} | _ends(call) for call in calls]


def _ends(call: CollectiveCall) -> TableRow:
    """When the op was over and the wait for it ended: each is no later than the other shows."""
    end_ns, waited_ns = call.end_ns, call.wait_end_ns
    if waited_ns is None or call.on_device:
        return {}
    if end_ns is None or (call.timed_by == "future" and waited_ns < end_ns):
        return {"end_ns": waited_ns, "timed_by": "wait"}
    if call.waits_for_several:
        return {"wait_end_ns": max(call.wait_start_ns or 0, min(waited_ns, end_ns))}
    return {}
