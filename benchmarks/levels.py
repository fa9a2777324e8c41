"""Measures `stats`, `comms` and `report` of a made-up run of thousands of ranks, by the summaries of its ranks.

    python benchmarks/levels.py [--pp 8] [--dp 256] [--tp 8] [--repeat 3] [--exact] [--record]

The run is that of many_ranks.py: summaries of all ranks, folders of the first replica of the model and of two late
ranks. Wall and processor time are of the whole command, with the start of Python. `--exact` writes the folders of all
ranks and measures `--exact` as well: of up to a thousand ranks. It also measures what the summary of a rank costs it.
`--record` puts the table at the end of RESULTS.md.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from pathlib import Path

import merge_text as text
from comms import RESULTS
from processes import timed

from distprof.contract.paths import rank_folder
from distprof.contract.rank_summary import SUMMARIES
from distprof.summaries.host_file import packed_frame
from distprof.summaries.maker import summarise

HEADING = "## levels.py"
HEAD = ("command", "wall s", "CPU s", "largest resident set", "other cores busy")
MAKER = Path(__file__).parent / "many_ranks.py"
COMMANDS = (("stats",), ("comms",), ("stats", "--modules"), ("report", "--json"))


def measure(args: argparse.Namespace) -> str:
    """The section."""
    folder = Path(tempfile.mkdtemp(prefix="levels-"))
    try:
        run, num_ranks = folder / "run", args.pp * args.dp * args.tp
        late = (f"{num_ranks // 3}:forward:2:6000000", "1:data:0:9000000")
        # in a process of its own: what is started from a large one is as large for a moment
        made = timed([sys.executable, str(MAKER), str(run), *(f"--{axis}={getattr(args, axis)}" for axis in (
            "pp", "dp", "tp")), *(f"--late={one}" for one in late), *(["--full"] if args.exact else [])])
        size = sum(path.stat().st_size for path in (run / SUMMARIES).iterdir())
        commands = [*COMMANDS, *((*command, "--exact") for command in COMMANDS if args.exact)]
        lines = [line_of(command, run, args.repeat) for command in commands]
        cost = cost_of_one(run / rank_folder(0))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    said = (f"{num_ranks} made-up ranks = pp {args.pp} x dp {args.dp} x tp {args.tp}, summaries of "
            f"{size / num_ranks / 1e3:.1f} KB a rank, written in {made.cpu_s:.0f} s of a processor; fastest of "
            f"{args.repeat} runs. At its end a rank spends {1e3 * cost:.1f} ms of a processor on its summary.")
    return f"{text.machine()}\n\n{said}\n\n{text.table(HEAD, lines)}"


def line_of(command: tuple[str, ...], run: Path, repeat: int) -> list[str]:
    """A command line, and what it costs."""
    costs = [timed([sys.executable, "-m", "distprof", *command, str(run)]) for _ in range(repeat)]
    best = min(costs, key=lambda cost: cost.wall_s)
    return [" ".join(command), text.number(best.wall_s, 2), text.number(best.cpu_s, 2),
            f"{max(cost.max_rss_bytes for cost in costs) / 1e6:.0f} MB", text.number(best.others_cores, 1)]


def cost_of_one(folder: Path, times: int = 20) -> float:
    """Seconds of a processor that it takes to make and pack a summary, when all is imported."""
    packed_frame(summarise(folder))
    begin = time.process_time()
    for _ in range(times):
        packed_frame(summarise(folder))
    return (time.process_time() - begin) / times


def record(section: str) -> None:
    """Puts it at the end of RESULTS.md, under the heading of this benchmark."""
    content = RESULTS.read_text().rstrip("\n")
    if HEADING not in content.splitlines():
        content += f"\n\n{HEADING}"
    RESULTS.write_text(f"{content}\n\n{section}\n")


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for axis, size in (("pp", 8), ("dp", 256), ("tp", 8), ("repeat", 3)):
        parser.add_argument(f"--{axis}", type=int, default=size, help="(default: %(default)s)")
    parser.add_argument("--exact", action="store_true", help="folders of all ranks, and `--exact` as well")
    parser.add_argument("--record", action="store_true", help="add the table to RESULTS.md")
    args = parser.parse_args()
    section = measure(args)
    print(section)
    if args.record:
        record(section)


if __name__ == "__main__":
    main()
