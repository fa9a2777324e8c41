"""Which events of a trace every merge has to hold, and what of them it may change."""

from __future__ import annotations

import json
from typing import Any

CHANGED = frozenset(("pid", "tid", "ts", "dur", "id", "id2", "bind_id", "s"))
"""Fields that a merge gives new numbers."""
LATEST_US = 2**62 / 1000
KEPT_PHASES = "XBEiInbeCO"
"""Phases of events that are never left out; arrows may lack their other end."""
REWRITTEN = ("process_name", "process_labels", "process_sort_index", "thread_name", "thread_sort_index")


def must_stay(event: dict[str, Any]) -> bool:
    """True for an event with a phase and a time, as viewers show it."""
    phase, ts, dur = event.get("ph"), event.get("ts"), event.get("dur")
    if not isinstance(phase, str) or phase[:1] not in KEPT_PHASES or not phase.isascii() or len(phase) != 1:
        return False
    if not isinstance(ts, int | float) or isinstance(ts, bool) or abs(ts) >= LATEST_US / 2:
        return False
    return "bind_id" not in event and (dur is None or not isinstance(dur, bool))


def canonical(event: dict[str, Any]) -> str:
    """An event without what a merge may change, as text."""
    return json.dumps(_plain({key: value for key, value in event.items() if key not in CHANGED}), sort_keys=True)


def _plain(value: Any) -> Any:
    """As a merge writes it: integers beyond 64 bits are strings, halves of surrogates are U+FFFD."""
    if isinstance(value, bool):
        return value
    if isinstance(value, int):
        return value if -(2**63) <= value < 2**63 else str(value)
    if isinstance(value, str):
        return "".join("\ufffd" if "\ud800" <= one <= "\udfff" else one for one in value)
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return {_plain(key): _plain(one) for key, one in value.items()} if isinstance(value, dict) else value
