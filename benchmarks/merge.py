"""Measures merging of real traces of 4 ranks, by distprof and by other programs.

    python benchmarks/merge.py [--megabytes 120] [--repeat 3] [--peers] [--tracelens FOLDER] [--record]

The traces are those of a torchrun job under torch.profiler (traced_job.py), made once and kept in `--data`. Every
program runs as a process of its own, in turns, again while its runs take no more than a minute. Measured are

* merging: time and memory until a trace of all ranks is on disk; cat, igzip and gzip of the same bytes are limits;
* ranks: 64 ranks, which are links to the same files, against 4;
* loading: our table of events, and against it HTA's parser (`--peers` installs it from PyPI, in a place of its own).

`--record` puts the tables at the end of RESULTS.md. Memory is the largest resident set of a program that is one
process; of one that starts others it is the largest sum of PSS, looked at every 10 ms in runs of their own.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from pathlib import Path

import merge_text as text
from contenders import OURS, PROGRAMS, Peers, contenders, last_line
from measured import PATIENCE_S, Result, again, empty, take_turns
from processes import timed

HERE = Path(__file__).parent
NUM_RANKS, MANY_RANKS = 4, 64
EVENTS = "events.parquet"
"""In what ours writes."""
HTA, FROM_TABLE, FROM_JSON = "HTA parse_traces", f"polars, our {EVENTS}", f"distprof merge, JSON to {EVENTS}"
METHOD = f"""\
Input: real traces of a 4-rank gloo job under torch.profiler, with shapes and stacks, plain JSON, in the page cache.
Every time is of the fastest run; programs run again while their runs take no more than {PATIENCE_S} s. "others" is how
many cores the rest of the machine kept busy meanwhile. Peak memory is the resident set of a program that is one
process, and the PSS of the process tree of distprof merge. All programs run from bytecode, as installing leaves them.
1 MB is 10^6 bytes."""


def traces_of(data: Path, megabytes: float) -> list[Path]:
    """Plain traces of a real job, in a folder of their own; made where they are not there yet."""
    folder = data / f"{NUM_RANKS}x{megabytes:g}MB"
    if not folder.exists():
        print(f"{folder}: recording {NUM_RANKS} ranks ...", flush=True)
        unfinished = folder.with_suffix(".partial")
        empty(unfinished)
        timed([sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={NUM_RANKS}",
               str(HERE / "traced_job.py"), "--out", str(unfinished), "--megabytes", f"{megabytes:g}"])
        unfinished.rename(folder)
    return [folder / f"rank{rank}_trace.json" for rank in range(NUM_RANKS)]


def measure(traces: list[Path], args: argparse.Namespace) -> list[str]:
    """Paragraphs and tables of the report."""
    peers = Peers(args.data / "peers") if args.peers else None
    output = args.data / "output"
    known, absent = contenders(peers, args.tracelens)
    results = [Result(contender=contender, traces=traces) for contender in known]
    many = Result(contender=OURS, traces=many_ranks(traces, args.data / "links"))
    take_turns(results, output, args.repeat)
    take_turns([many], output, args.repeat)
    if results[0].failure or many.failure:
        sys.exit(f"distprof merge: {results[0].failure or many.failure}")
    loads, without = loading(results[0], output, peers, args.repeat)
    remarks = [*absent, *without, *text.failures(results)]
    return [text.description(traces), text.merges(results), f"{MANY_RANKS} ranks, which are links to these files:",
            text.ranks(results[0], many), "All events in memory:", loads, *map("Not measured: {}".format, remarks)]


def many_ranks(traces: list[Path], folder: Path) -> list[Path]:
    """Links to the same files under the names of more ranks."""
    empty(folder)
    links = [folder / f"rank{rank}_trace.json" for rank in range(MANY_RANKS)]
    for rank, link in enumerate(links):
        link.symlink_to(traces[rank % len(traces)].resolve())
    return links


def loading(ours: Result, output: Path, peers: Peers | None, repeat: int) -> tuple[str, list[str]]:
    """The table, and a line for everyone who is not in it."""
    empty(output)
    timed(OURS.command(ours.traces, output / OURS.writes))
    commands, absent = _loaders(ours.traces, output / OURS.writes / EVENTS, peers)
    loads = {name: _loads(command, repeat) for name, command in commands.items()}
    if FROM_TABLE in loads:
        num_rows = loads[FROM_TABLE][0].num_rows
        loads[FROM_JSON] = [text.Load(seconds=cost.wall_s, num_rows=num_rows) for cost in ours.costs]
    return text.loads(loads, loads.get(HTA)), absent


def _loaders(traces: list[Path], events: Path, peers: Peers | None) -> tuple[dict[str, list[str]], list[str]]:
    commands, absent = {}, []
    try:
        if peers is None:
            absent.append(f"{HTA}: --peers installs and measures it")
        else:
            commands[HTA] = peers.hta(traces)
    except subprocess.CalledProcessError as error:
        absent.append(f"{HTA}: cannot be installed: {last_line(error.stderr)}")
    if events.exists():
        commands[FROM_TABLE] = [sys.executable, str(PROGRAMS / "parquet_load.py"), str(events)]
    else:
        absent.append(f"{FROM_TABLE}: distprof merge wrote none")
    return commands, absent


def _loads(command: list[str], repeat: int) -> list[text.Load]:
    loads: list[text.Load] = []
    while len(loads) < repeat and again([load.seconds for load in loads]):
        printed = json.loads(last_line(timed(command).printed))
        loads.append(text.Load(seconds=printed["load_s"], num_rows=printed["rows"]))
    return loads


def record(section: str) -> None:
    """Puts it at the end of RESULTS.md, under the heading of this benchmark."""
    results = HERE / "RESULTS.md"
    content = results.read_text().rstrip("\n")
    heading = "## merge.py"
    if heading not in content.splitlines():
        content += f"\n\n{heading}"
    results.write_text(f"{content}\n\n{section}\n")


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, default=120, help="of a rank's trace (default: %(default)s)")
    parser.add_argument("--repeat", type=int, default=3, help="runs of each program (default: %(default)s)")
    parser.add_argument("--data", type=Path, default=HERE / ".data", help="where traces are kept")
    parser.add_argument("--peers", action="store_true", help="install and measure HTA, and TraceLens with --tracelens")
    parser.add_argument("--tracelens", type=Path, metavar="FOLDER", help="a copy of its source")
    parser.add_argument("--record", action="store_true", help="add the tables to RESULTS.md")
    args = parser.parse_args()
    machine = text.machine()
    traces = traces_of(args.data, args.megabytes)
    try:
        section = "\n\n".join([f"{machine}\n{METHOD}", *measure(traces, args)])
    finally:
        shutil.rmtree(args.data / "output", ignore_errors=True)
        shutil.rmtree(args.data / "links", ignore_errors=True)
    print(section)
    if args.record:
        record(section)


if __name__ == "__main__":
    main()
