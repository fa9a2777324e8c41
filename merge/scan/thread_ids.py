"""The pid and tid of a thread as plain text."""

from __future__ import annotations

import json

import msgspec

_DECODER = json.JSONDecoder(strict=False)


def thread_of(key: bytes) -> tuple[str, str]:
    """The JSON texts of a pid and a tid, with a blank between them, as text: 7 and "7" are the same."""
    text = key.decode("utf-8", "replace")
    try:
        _, end = _DECODER.raw_decode(text)
    except (ValueError, RecursionError):
        end = -1
    if text[end:end + 1] != " ":  # no JSON
        end = text.index(" ")
    return _plain(text[:end]), _plain(text[end + 1:])


def _plain(text: str) -> str:
    if not text:
        return ""
    try:
        return str(msgspec.json.decode(text))
    except msgspec.DecodeError:
        return text
