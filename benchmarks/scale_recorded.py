"""Measures the commands on ranks that distprof recorded in full, with summaries or without: more and more of them.

    python benchmarks/scale_recorded.py [RUN] [--ranks 4,64,256,1024] [--in FOLDER] [--summaries] [--record]

RUN is a recorded data parallel job, of sharded_job.py with 4 ranks where none is given; scaled_run.py makes a run of
many ranks of it. Each command is run once; memory is its largest resident set (VmHWM).
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import merge_text as text
import polars as pl
from processes import timed
from scale import record
from scaled_run import write_run

HEADING = "## scale_recorded.py"
OF_SUMMARIES = f"{HEADING} --summaries"
JOB = Path(__file__).parent / "sharded_job.py"
COMMANDS = ("merge", "comms", "ops", "critical-path", "report")
HEAD = ("ranks", "collectives", "events", *(f"{command} {what}" for command in COMMANDS for what in ("s", "MB")))


def row(run: Path, out: Path) -> list[str]:
    """The costs of all commands on a run."""
    rows = [pl.scan_parquet(run / "rank*" / name).select(pl.len()).collect().item()
            for name in ("collectives.parquet", "events.parquet")]
    found = [str(len(list(run.glob("rank*")))), *map(str, rows)]
    for command in COMMANDS:
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir()
        place = {"merge": ["--out", str(out / "merged")], "report": ["--out", str(out / "report.html")]}
        cost = timed([sys.executable, "-m", "distprof", command, str(run), *place.get(command, ())])
        found += [text.number(cost.wall_s, 1), text.megabytes(cost.max_rss_bytes)]
        print(found[0], command, *found[-2:], flush=True)
    return found


def recorded(folder: Path) -> Path:
    """A run of 4 ranks."""
    run = folder / "recorded"
    subprocess.run([sys.executable, "-m", "distprof", "run", "--no-merge", "--out", run, "--nproc-per-node", "4", JOB],
                   check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return run


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", nargs="?", type=Path)
    parser.add_argument("--ranks", default="4,64,256,1024", help="numbers of ranks (default: %(default)s)")
    parser.add_argument("--in", dest="folder", type=Path, help="where files are for the while: a disk with room")
    parser.add_argument("--summaries", action="store_true", help="ranks have summaries, as recorded ones do")
    parser.add_argument("--record", action="store_true", help="put the table into RESULTS.md")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.folder) as name:
        folder, rows = Path(name), []
        source = given.run or recorded(folder)
        for count in map(int, given.ranks.split(",")):
            write_run(source, folder / "run", count, summaries=given.summaries)
            rows.append(row(folder / "run", folder / "out"))
    section = f"{text.machine()}\n\n{text.table(HEAD, rows)}"
    print(section)
    if given.record:
        record(section, OF_SUMMARIES if given.summaries else HEADING)


if __name__ == "__main__":
    main()
