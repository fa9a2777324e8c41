"""Reads files of wandb in offline mode: logs in LevelDB's format (https://github.com/google/leveldb, log_format.md)."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BLOCK, HEADER, FILE_HEADER = 32768, 7, 7


def rows(folder: Path) -> list[dict[str, Any]]:
    """Returns the history of the only run in a folder, in order."""
    return [{item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
            for record in _records(folder) if record.WhichOneof("record_type") == "history"]


def summary(folder: Path) -> dict[str, Any]:
    """Returns the summary of the only run in a folder."""
    return {item.key or "/".join(item.nested_key): json.loads(item.value_json) for record in _records(folder)
            if record.WhichOneof("record_type") == "summary" for item in record.summary.update}


def metrics(folder: Path) -> dict[str, str]:
    """Returns the defined metrics: name or pattern -> axis."""
    found = [record.metric for record in _records(folder) if record.WhichOneof("record_type") == "metric"]
    return {one.glob_name or one.name: one.step_metric for one in found}


def _records(folder: Path) -> Iterator[Any]:
    from wandb.proto.wandb_internal_pb2 import Record

    (path,) = folder.glob("wandb/offline-run-*/run-*.wandb")
    for content in _entries(path.read_bytes()):
        record = Record()
        record.ParseFromString(content)
        yield record


def _entries(content: bytes) -> Iterator[bytes]:
    assert content[:4] == b":W&B"
    parts, place = b"", FILE_HEADER
    while place + HEADER <= len(content):
        left = BLOCK - place % BLOCK
        if left < HEADER:
            place += left
            continue
        _, length, kind = struct.unpack("<IHB", content[place:place + HEADER])
        parts += content[place + HEADER:place + HEADER + length]
        place += HEADER + length
        if kind in (1, 4):  # a complete record, or its last part
            yield parts
            parts = b""
