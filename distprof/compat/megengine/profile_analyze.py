"""Prints the time of each operator in a profile, with the flags of MegEngine's `profile_analyze`.

    python -m distprof.compat.megengine.profile_analyze profiling.json -t 5
    python -m distprof.compat.megengine.profile_analyze runs/a -t 5 --aggregate-by type --aggregate sum
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from distprof.compat.megengine.analysis.choosing import COLUMNS, Choice
from distprof.compat.megengine.analysis.profile import Profile
from distprof.compat.megengine.analysis.report import PARTS, View, report
from distprof.compat.megengine.command_line import Parser, exit_code
from distprof.errors import UsageError
from distprof.terminal import show

PROG = "distprof.compat.megengine.profile_analyze"
HEAD_BYTES = 1 << 16


def parser() -> Parser:
    """Returns the parser; flags that MegEngine has accept the same values and have the same defaults."""
    found = Parser(prog=PROG, description="List the operators of a MegEngine profile, a run or traces.")
    add = found.add_argument
    add("dump", nargs="+", type=Path, metavar="FILE|RUN",
        help="JSON from get_profile(), one file per rank; or a run directory; or torch.profiler traces")
    add("-t", "--top", type=int, default=3, metavar="N", help="number of rows; 0: all  [default: 3]")
    add("--type", action="append", metavar="T", help="only operators of this type; can be repeated")
    add("--opr-name", metavar="REGEX", help="only operators whose name matches from its beginning")
    add("--input-dtype", metavar="DTYPE", help="only operators with an input of this type, like Float32")
    add("--rank", action="append", type=int, metavar="N", help="only this rank; can be repeated")
    add("--aggregate-by", choices=["type", "rank"], help="one row per value of this key, with --aggregate")
    add("--aggregate", choices=["max", "min", "sum", "mean"],
        help="how to combine time, computation and memory; without --aggregate-by, all operators become one row")
    add("--top-end-key", choices=["end", "kern"], default="end",
        help="end: total time; kern: only the wait before the kernel  [default: end]")
    add("--order-by", default="time", metavar="COLUMN",
        help=f"{', '.join(COLUMNS)}: largest first, or smallest first with a leading +  [default: time]")
    add("--copy-time", action="store_true", help="show the time of Copy operators in the summary")
    add("--min-time", type=float, default=float("-inf"), metavar="S",
        help="only operators that take at least this many seconds")
    add("--max-time", type=float, default=float("inf"), metavar="S",
        help="only operators that take at most this many seconds")
    add("--show-host", action="store_true", help="also print a table of host times")
    add("--dump-only-opr", action="store_true", help="print plain lines of name, type and id, for diff")
    add("--confluence", "--wiki", action="store_true", help="print wiki tables")
    add("--print-only", choices=list(PARTS), help="print only this part")
    add("--json", action="store_true", help="print JSON")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    return exit_code(lambda: show(analyze(arguments)))


def analyze(arguments: Sequence[str] | None = None) -> str:
    """Returns what the command prints.

    Raises:
        UsageError: The flags are invalid.
        DataError: The profile cannot be read.
    """
    args = parser().parse_args(arguments)
    if args.aggregate_by and not args.aggregate:
        raise UsageError("--aggregate-by needs --aggregate", hint="--aggregate sum")
    if args.top < 0:
        raise UsageError(f"--top must be 0 or more, not {args.top}")
    choice = Choice(
        types=args.type or (), opr_name=args.opr_name, input_dtype=args.input_dtype, ranks=args.rank or (),
        end=args.top_end_key, min_time=args.min_time, max_time=args.max_time, aggregate=args.aggregate,
        aggregate_by=args.aggregate_by, order_by=args.order_by)
    view = View(top=args.top, copy_time=args.copy_time, show_host=args.show_host, only_operators=args.dump_only_opr,
                wiki=args.confluence, print_only=args.print_only, as_json=args.json)
    return report(read(args.dump), choice, view)


def read(paths: Sequence[Path]) -> Profile:
    """Reads MegEngine's dumps, a run, or traces.

    Raises:
        DataError: They cannot be read.
    """
    if all(map(_is_dump, paths)):
        from distprof.compat.megengine.analysis.megengine_dump import read_dumps

        return read_dumps(paths)
    from distprof.compat.megengine.analysis.run_profile import read_profile

    return read_profile(paths)


def _is_dump(path: Path) -> bool:
    """Returns whether a file is JSON but not a Chrome trace, which has its events or its schema version near the
    beginning."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        head = file.read(HEAD_BYTES)
    return head.lstrip().startswith(b"{") and b'"traceEvents"' not in head and b'"schemaVersion"' not in head


if __name__ == "__main__":
    sys.exit(main())
