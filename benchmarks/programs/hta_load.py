"""Prints the seconds that HTA's parser needs for a folder of traces, as JSON: python hta_load.py FOLDER"""

from __future__ import annotations

import json
import sys
import time

from hta.common.trace import Trace


def main(folder: str) -> None:
    """Measures without imports, but with the worker processes that HTA starts by default."""
    begin = time.perf_counter()
    trace = Trace(trace_dir=folder)
    trace.parse_traces()
    load_s = time.perf_counter() - begin
    print(json.dumps({"load_s": load_s, "rows": sum(map(len, trace.get_all_traces().values()))}))


if __name__ == "__main__":
    main(*sys.argv[1:])
