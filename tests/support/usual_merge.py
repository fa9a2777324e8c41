"""A merge script as users often write it: prefixes pid and tid, drops metadata, keeps ids. Used as counter-example."""

from __future__ import annotations

import gzip
import json
from pathlib import Path


def usual_merge(traces: list[Path], output: Path) -> None:
    """Joins Chrome traces of ranks in the usual way."""
    events = []
    for rank, path in enumerate(traces):
        for event in json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]:
            if event.get("ph") != "M":
                renamed = {key: f"r{rank}_{key}{event[key]}" for key in ("pid", "tid") if key in event}
                events.append({**event, **renamed})
    output.write_text(json.dumps({"traceEvents": events}))
