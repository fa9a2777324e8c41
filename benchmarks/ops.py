"""Measures `distprof ops` on the traces of merge.py: one rank, four ranks, and the table of operators of a merge.

    python benchmarks/ops.py [--megabytes 120] [--repeat 5]

The peer is torch.profiler's own `key_averages().table()`, in a process that has just traced the same number of steps of
the same job on one rank: only parsing and the table are timed, and it does not read a file. `distprof ops` is timed as
a command, including the start of Python, and for one rank also in a running Python process, like the peer.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any

from measuring.benchmark import DISTPROF, Found, Option, Ratio, files, run
from measuring.contenders import PROGRAMS, traces_of
from measuring.processes import timed
from measuring.tables import megabytes, number, spread, table
from measuring.turns import COSTS, cells, cpu_s, in_turns

OPS = [*DISTPROF, "ops", "--json"]
HEAD = ("program", *COSTS, "events or calls", "CPU us each", "CPU / ours, running")


def measure(args: argparse.Namespace) -> Found:
    """Returns a table with a row per program."""
    traces = traces_of(args.folder, args.megabytes)
    with files(args) as folder:
        merge = folder / "with-operators"  # with the name merged, the parent folder would be taken as the run
        timed([*DISTPROF, "merge", "--operators", "--out", str(merge), str(traces[0].parent)])
        ours = in_turns({"one rank, JSON": [*OPS, str(traces[0])], "4 ranks, JSON": [*OPS, str(traces[0].parent)],
                         "4 ranks, merged with --operators": [*OPS, str(merge)]}, args.repeat)
    document = json.loads(ours["one rank, JSON"][0].printed)
    running = [printed("ops_table.py", str(traces[0])) for _ in range(args.repeat)]
    peer = printed("key_averages.py", str(len(document["steps"])))
    base = min(one["cpu_s"] for one in running)
    rows = [row(f"distprof ops, {name}", cells(costs), json.loads(costs[0].printed)["totals"]["calls"], cpu_s(costs),
                base) for name, costs in ours.items()]
    rows += [row("the same, one rank, in a Python that runs", _cells(running), document["totals"]["calls"], base, base),
             row("torch key_averages().table(), one rank", _cells([peer]), peer["events"], peer["cpu_s"], base)]
    return Found(text=[f"{len(document['steps'])} steps of the job of merge.py.", table(HEAD, rows)],
                 ratios={"one rank, running: CPU / torch's": Ratio(value=base / peer["cpu_s"])})


def printed(program: str, argument: str) -> dict[str, Any]:
    """Runs a program and returns the JSON that it prints."""
    lines = timed([sys.executable, str(PROGRAMS / program), argument]).printed.splitlines()
    found: dict[str, Any] = json.loads(lines[-1])
    return found


def row(name: str, costs: Sequence[str], calls: int, used_s: float, ours_s: float) -> list[str]:
    """Returns a row of the table."""
    return [name, *costs, str(calls), number(used_s / calls * 1e6, 1), number(used_s / ours_s, 1)]


def _cells(found: Sequence[dict[str, Any]]) -> list[str]:
    """Returns the cells for programs that measure themselves."""
    return [spread([one["table_s"] for one in found], 2), spread([one["cpu_s"] for one in found], 2),
            megabytes(max(one["bytes"] for one in found)), "-"]


if __name__ == "__main__":
    run(measure, __doc__,
        megabytes=Option(default=120.0, smallest=1.0, help="of a rank's trace (default: %(default)s)"),
        repeat=Option(default=5, smallest=1, help="runs of each command (default: %(default)s)"))
