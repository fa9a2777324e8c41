"""Prints the cost of the text of `distprof ops` in a running Python process, as JSON: python ops_table.py TRACE"""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path

from distprof.launch.limits import reuse_memory


def main(trace: str) -> None:
    """Measures without imports, as for `key_averages`."""
    reuse_memory()  # before polars is imported, like the command
    from distprof.launch.commands.ops import ops_text
    from distprof.merge.operators.selection import Selection

    before, cpu = time.perf_counter(), time.process_time()
    ops_text(Path(trace), selection=Selection())
    print(json.dumps({"table_s": time.perf_counter() - before, "cpu_s": time.process_time() - cpu,
                      "bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}))


if __name__ == "__main__":
    main(*sys.argv[1:])
