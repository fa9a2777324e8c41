"""Rows of collectives.parquet from the labelled calls."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from distprof.contract.group_ranks import text_of
from distprof.contract.tables import COLLECTIVES, TAGS, TableRow
from distprof.recording.communication.collective_call import CollectiveCall

OF_GROUP = ("group_ranks", "group_size")
NAMES = tuple(column.name for column in COLLECTIVES.columns if column not in TAGS and column.name not in OF_GROUP)


def collective_rows(calls: Iterable[CollectiveCall]) -> list[TableRow]:
    """One row per call."""
    texts = dict[int, str]()  # the calls of a group share its list, which may have thousands of ranks
    return [{name: getattr(call, name) for name in NAMES} | _group(call.group_ranks, texts) | _ends(call)
            | _starts(call) for call in calls]


def _group(ranks: Sequence[int], texts: dict[int, str]) -> TableRow:
    text = texts.get(id(ranks))
    if text is None:
        text = texts[id(ranks)] = text_of(ranks)
    return {"group_ranks": text, "group_size": len(ranks)}


def _starts(call: CollectiveCall) -> TableRow:
    """When the op had the data of a stream: a kernel on the timeline shows it, else when the stream came to the op."""
    if call.reached_ns is None or (call.on_device and call.start_ns is not None):
        return {}
    return {"start_ns": max(call.reached_ns, call.enqueue_ns, call.start_ns or 0)}


def _ends(call: CollectiveCall) -> TableRow:
    """When the op was over and the wait for it ended: each is no later than the other shows."""
    end_ns, waited_ns = call.end_ns, call.wait_end_ns
    if call.on_device and end_ns is None and call.passed_ns is not None:
        return {"end_ns": call.passed_ns, "timed_by": "wait"}
    if waited_ns is None or call.on_device:
        return {}
    if end_ns is None or (call.timed_by == "future" and waited_ns < end_ns):
        return {"end_ns": waited_ns, "timed_by": "wait"}
    if call.waits_for_several:
        return {"wait_end_ns": max(call.wait_start_ns or 0, min(waited_ns, end_ns))}
    return {}
