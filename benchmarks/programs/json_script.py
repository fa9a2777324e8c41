"""A merge script as users often write it: joins the traces of ranks into one JSON file, with prefixed pids and tids.

    python json_script.py OUTPUT TRACE...

It loads each file completely, drops the metadata, prefixes pid and tid with the rank, collects all events in one list
and writes them indented. This connects arrows of different ranks and loses names; only its cost is of interest.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path


def main(output: str, *traces: str) -> None:
    """Merges in the given order."""
    events = []
    for rank, trace in enumerate(traces):
        with Path(trace).open(encoding="utf-8") as file:
            content = json.load(file)
        for event in content["traceEvents"]:
            if event.get("ph") == "M":
                continue
            for key in ("pid", "tid"):
                if key in event:
                    event[key] = f"r{rank}_{key}{event[key]}"
            events.append(event)
    with Path(output).open("w") as file:
        json.dump({"traceEvents": events}, file, indent=2)


if __name__ == "__main__":
    main(*sys.argv[1:])
