"""A fixed amount of work, which makes processor times of different machines and days comparable."""

from __future__ import annotations

import json
import time
import zlib

ROWS = 20_000
REPEAT = 5


def yardstick_s() -> float:
    """Returns processor seconds for parsing, sorting and compressing a fixed text: the fastest of `REPEAT` runs."""
    text = json.dumps([{"name": f"aten::op{number % 97}", "ts": number * 7919 % 1_000_003, "args": {"id": number}}
                       for number in range(ROWS)])
    return min(map(_seconds, [text] * REPEAT))


def _seconds(text: str) -> float:
    begin = time.process_time()
    rows = json.loads(text)
    rows.sort(key=lambda row: row["ts"])
    zlib.compress(text.encode(), 1)
    return time.process_time() - begin
