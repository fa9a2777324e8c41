"""Compares commits: runs the same commands of each in turns, so that other load on the machine affects all of them.

    python benchmarks/commits.py [--commits 57ae436 .] [--megabytes 120] [--repeat 15]

The files of a commit are extracted to a folder, and its engine is compiled there; `.` is the checkout as it is. All use
the packages installed here. Measured are a merge of the traces of merge.py, `stats` of the result, and the import of
the command line.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from measuring.benchmark import Found, Option, files, run
from measuring.contenders import traces_of
from measuring.tables import number, ratio, table
from measuring.turns import COSTS, cells, cpu_s, empty, in_turns

ROOT = Path(__file__).parents[1]
HERE = "."
"""Stands for the checkout instead of a commit."""
HEAD = ("what", "commit", "runs", *COSTS, "CPU / first", "wall / first")


def tree_of(commit: str, folder: Path) -> Path:
    """Returns a folder with the files of a commit and its compiled engine."""
    if commit == HERE:
        return ROOT
    folder.mkdir()
    with subprocess.Popen(["git", "-C", str(ROOT), "archive", commit], stdout=subprocess.PIPE) as archive:
        subprocess.run(["tar", "-x", "-C", str(folder)], stdin=archive.stdout, check=True)
    subprocess.run([sys.executable, str(folder / "distprof" / "compiled" / "build.py")], check=True)
    return folder


def measure(args: argparse.Namespace) -> Found:
    """Returns a table of all commands."""
    traces = traces_of(args.folder, args.megabytes)[0].parent
    rows = list[list[str]]()
    with files(args) as folder:
        trees = [tree_of(commit, folder / str(number)) for number, commit in enumerate(args.commits)]
        merged = folder / "merged"
        for what, words in (("merge", ["-m", "distprof", "merge", str(traces), "--force", "--out", str(merged)]),
                            ("stats", ["-m", "distprof", "stats", str(merged)]),
                            ("import", ["-c", "import distprof.launch.cli"])):
            commands = {str(place): ["env", f"PYTHONPATH={tree}", sys.executable, "-P", *words]
                        for place, tree in enumerate(trees)}
            found = list(in_turns(commands, args.repeat, before=lambda: empty(folder / "nothing")).values())
            first_cpu_s, first_wall_s = cpu_s(found[0]), min(cost.wall_s for cost in found[0])
            for commit, costs in zip(args.commits, found, strict=True):
                wall_s = min(cost.wall_s for cost in costs)
                rows.append([what, commit, str(len(costs)), *cells(costs), number(ratio(cpu_s(costs), first_cpu_s), 2),
                             number(ratio(wall_s, first_wall_s), 2)])
    return Found(text=["Ratios are of the runs that were least disturbed.", table(HEAD, rows)])


if __name__ == "__main__":
    run(measure, __doc__,
        commits=Option(default=["HEAD~1", HERE], smallest=[HERE, HERE], help="two or more (default: HEAD~1 .)"),
        megabytes=Option(default=120.0, smallest=0.2, help="of a rank's trace (default: %(default)s)"),
        repeat=Option(default=15, smallest=1, help="runs of each, at most (default: %(default)s)"))
