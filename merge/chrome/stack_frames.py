"""Stack frames of Chrome traces: a tree beside the events, in which `sf` and `esf` of an event name a leaf.

Numbers of frames start anew in each file, so those of a merged trace have the rank in front of them.
"""

from __future__ import annotations

from typing import Any

import msgspec

KEY = "stackFrames"
NAMES = ("sf", "esf")
"""Keys of an event that name the frame where it began and ended."""
_EVENTS = msgspec.json.Decoder(list[dict[str, msgspec.Raw]])


def frames_of(metadata: dict[str, Any], rank: int) -> dict[str, Any]:
    """Takes the frames of a rank out of the keys beside its events.

    Args:
        metadata: Keys beside the events; these lose the frames.
        rank: Whose they are.
    """
    frames = metadata.pop(KEY, None)
    if not isinstance(frames, dict):
        return {}
    return {_named(number, rank): {**frame, "parent": _named(frame["parent"], rank)} if "parent" in frame else frame
            for number, frame in frames.items() if isinstance(frame, dict)}


def with_frames_of(text: bytes | memoryview, rank: int) -> bytes:
    """Events, joined by commas, that name the frames of their rank."""
    events = _EVENTS.decode(b"[" + text + b"]")
    for event in events:
        for name in NAMES:
            if name in event:
                event[name] = msgspec.Raw(msgspec.json.encode(_named(msgspec.json.decode(event[name]), rank)))
    return b",\n".join(map(msgspec.json.encode, events))


def _named(number: object, rank: int) -> str:
    return f"{rank}:{number}"
