"""`python -m distprof.compat.megengine.profiler [flags] script.py [args]`: profiles a whole script."""

from __future__ import annotations

import argparse
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

from distprof.compat.megengine.command_line import Parser, exit_code
from distprof.compat.megengine.merged_events import merge_trace_events
from distprof.compat.megengine.regions import OPTIONS, Profiler
from distprof.compat.megengine.session import CHROME_TIMELINE, FORMATS
from distprof.errors import UsageError
from distprof.terminal import say

PROG = "distprof.compat.megengine.profiler"


def parser() -> Parser:
    """Returns the parser."""
    found = Parser(prog=PROG, description="Profile a script with MegEngine's topics.", allow_abbrev=False)
    add = found.add_argument
    add("-m", "--module", action="store_true", help="treat the script as a module name")
    add("-o", "--output", default="profile", metavar="DIR", help="output folder  [default: profile]")
    add("-f", "--format", action="append", choices=FORMATS,
        help=f"output format, can be repeated  [default: {CHROME_TIMELINE}]")
    add("--merge_trace_events", "--merge-trace-events", action="store_true",
        help="merge the timelines in the folder afterwards; without a script, only merge")
    add("--clean", action="store_true", help="first remove earlier profiler output from the folder")
    for name, default in OPTIONS.items():
        add(f"--{name}", f"--{name.replace('_', '-')}", type=int, default=default, metavar="N",
            help=f"[default: {default}]")
    add("script", nargs="?", help="and its arguments")
    add("arguments", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    return exit_code(lambda: run(arguments))


def run(arguments: Sequence[str] | None = None) -> None:
    """Profiles a script, then merges.

    Raises:
        UsageError: There is nothing to do.
        DataError: There is nothing to merge.
        SystemExit: The script raised it.
    """
    args = parser().parse_args(arguments)
    if args.script is None and not args.merge_trace_events:
        raise UsageError("no script given", hint=f"python -m {PROG} train.py")
    folder = Path(args.output)
    if args.clean and args.script is not None:
        _clean(folder)
    try:
        if args.script is not None:
            _profile(args)
    finally:
        if args.merge_trace_events:
            say(f"merged: {merge_trace_events(args.output)}")


def _profile(args: argparse.Namespace) -> None:
    profiler = Profiler(args.output, formats=args.format or [CHROME_TIMELINE],
                        **{name: getattr(args, name) for name in OPTIONS})
    sys.argv = [args.script, *args.arguments]
    try:
        with profiler:
            if args.module:
                sys.path.insert(0, "")
                runpy.run_module(args.script, run_name="__main__", alter_sys=True)
            else:
                sys.path.insert(0, str(Path(args.script).resolve().parent))
                runpy.run_path(args.script, run_name="__main__")
    finally:
        profiler.dump()


def _clean(folder: Path) -> None:
    for form in FORMATS:
        for path in folder.glob(f"*.{form}"):
            path.unlink()


if __name__ == "__main__":
    sys.exit(main())
