"""Measures `distprof ops` of the traces of merge.py: one rank, four ranks, and what a merge has added up.

    python benchmarks/ops.py [--traces FOLDER] [--repeat 5] [--record]

The peer is torch.profiler's own `key_averages().table()`, in a process that has just traced as many steps of the same
job on one rank: only the parsing and the table are timed, and it has no file to read. `distprof ops` is timed as a
command, from the start of Python to its end, and for one rank also in a Python that runs already, as the peer.
`--record` puts the table at the end of RESULTS.md.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import merge_text as text
from contenders import PROGRAMS
from processes import Cost, timed

HERE = Path(__file__).parent
OPS = [sys.executable, "-m", "distprof", "ops", "--json"]
HEAD = ("program", "wall s", "CPU s", "peak MB", "others", "events or calls", "CPU us each", "CPU / ours, running")


def measure(args: argparse.Namespace) -> str:
    """The table of the report."""
    traces = sorted(args.traces.glob("rank*_trace.json"))
    if not traces:
        sys.exit(f"expected traces in {args.traces}, found none: benchmarks/merge.py makes them")
    merge = args.traces.parent / "merged-for-ops"
    shutil.rmtree(merge, ignore_errors=True)
    try:
        timed([sys.executable, "-m", "distprof", "merge", "--operators", "--out", str(merge), str(traces[0].parent)])
        ours = {name: best([*OPS, *paths], args.repeat) for name, paths in (
            ("one rank, JSON", [str(traces[0])]), ("4 ranks, JSON", [str(traces[0].parent)]),
            ("4 ranks, merged with --operators", [str(merge)]))}
    finally:
        shutil.rmtree(merge, ignore_errors=True)
    first = ours["one rank, JSON"]
    found = json.loads(first.printed)
    steps, calls = len(found["steps"]), found["totals"]["calls"]
    running = min((printed("ops_table.py", str(traces[0])) for _ in range(args.repeat)), key=lambda one: one["cpu_s"])
    peer = printed("key_averages.py", str(steps))
    rows = [row(f"distprof ops, {name}", cost.wall_s, cost.cpu_s, cost.max_rss_bytes, cost.others_cores,
                json.loads(cost.printed)["totals"]["calls"], running["cpu_s"]) for name, cost in ours.items()]
    rows += [row(name, one["table_s"], one["cpu_s"], one["bytes"], None, number, running["cpu_s"])
             for name, one, number in (("the same, one rank, in a Python that runs", running, calls),
                                       ("torch key_averages().table(), one rank", peer, peer["events"]))]
    return (f"{text.machine()}\n\n{steps} steps of the job of merge.py. distprof: fastest of {args.repeat} runs.\n\n"
            f"{text.table(HEAD, rows)}")


def printed(program: str, argument: str) -> dict[str, Any]:
    """What a program prints."""
    lines = timed([sys.executable, str(PROGRAMS / program), argument]).printed.splitlines()
    found: dict[str, Any] = json.loads(lines[-1])
    return found


def best(command: list[str], repeat: int) -> Cost:
    """The fastest run."""
    return min((timed(command) for _ in range(repeat)), key=lambda cost: cost.wall_s)


def row(name: str, wall_s: float, cpu_s: float, num_bytes: float, others: float | None, number: int,
        ours_s: float) -> list[Any]:
    """A line of the table."""
    return [name, text.number(wall_s, 2), text.number(cpu_s, 2), text.number(num_bytes / 1e6, 0),
            "-" if others is None else text.number(others, 1), str(number), text.number(cpu_s / number * 1e6, 1),
            text.number(cpu_s / ours_s, 1)]


def record(section: str) -> None:
    """Puts it at the end of RESULTS.md, under the heading of this benchmark."""
    results = HERE / "RESULTS.md"
    content = results.read_text().rstrip("\n")
    heading = "## ops.py"
    if heading not in content.splitlines():
        content += f"\n\n{heading}"
    results.write_text(f"{content}\n\n{section}\n")


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", type=Path, default=HERE / ".data" / "4x120MB", help="default: those of merge.py")
    parser.add_argument("--repeat", type=int, default=5, help="runs of each command (default: %(default)s)")
    parser.add_argument("--record", action="store_true", help="add the table to RESULTS.md")
    args = parser.parse_args()
    section = measure(args)
    print(section)
    if args.record:
        record(section)


if __name__ == "__main__":
    main()
