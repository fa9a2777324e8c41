"""The frame of every benchmark: options with a smallest value each, a folder, a section of RESULTS.md, and ratios.

A benchmark calls `run` with its measurement and its options. It then also has the options `--smallest` (so small that
it only shows that it runs), `--in FOLDER` (for cached inputs and temporary files), and `--record`. A ratio, to a peer
or a limit measured in the same run, is compared with the recorded one: the benchmark exits with 1 if it is clearly
worse. Lower ratios are better.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from tempfile import TemporaryDirectory
from textwrap import fill
from typing import Any

from measuring.check import RATIO
from measuring.processes import Failed
from measuring.tables import table

HERE = Path(__file__).parents[1]
RESULTS = HERE / "RESULTS.md"
DISTPROF = (sys.executable, "-m", "distprof")
"""The distprof command, run as a process."""
HEAD = (RATIO, "recorded", "too high from")
BY_COMMIT = "## Ratios by commit"
"""The last section of RESULTS.md: one row per ratio and commit for which it was recorded."""
BY_COMMIT_HEAD = ("benchmark: ratio", "date", "commit", "value")
ROW = re.compile(r"\| ([^|]+?) +\| +([\d.]+) \| +([\d.]+) \|")
PACKAGES = ("torch", "isal", "polars", "viztracer")


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """A flag of a benchmark; its type is that of its default. If that is a list, the flag takes several values."""

    default: Any
    smallest: Any
    help: str = ""

    def add(self, parser: argparse.ArgumentParser, name: str, *, smallest: bool) -> None:
        """Adds the flag to a parser."""
        default, flag = self.smallest if smallest else self.default, f"--{name.replace('_', '-')}"
        if isinstance(default, bool):
            parser.add_argument(flag, action="store_true", default=default, help=self.help)
        elif isinstance(default, list):
            parser.add_argument(flag, nargs="+", type=type(default[0]), default=default, help=self.help)
        else:
            parser.add_argument(flag, type=type(default), default=default, help=self.help)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """A ratio that must not become much larger than the recorded one."""

    value: float
    factor: float = 1.25
    """The ratio is too high from this multiple of the recorded one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The results of a benchmark."""

    text: Sequence[str]
    """Paragraphs and tables in Markdown."""
    ratios: dict[str, Ratio] = field(default_factory=dict)


def run(measure: Callable[[argparse.Namespace], Found], doc: str | None, **options: Option) -> None:
    """The main program of a benchmark: measures, prints its section and compares or records its ratios.

    Args:
        measure: Gets the values of the options, and `folder` for files.
        doc: Description for `--help`.
        options: Name -> option.
    """
    args = _parser(doc, options, smallest="--smallest" in sys.argv[1:]).parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    try:
        found = measure(args)
    except Failed as error:
        sys.exit(str(error))
    heading, paragraphs = _heading(args, options), [machine(), *found.text]
    print("\n\n".join([heading, *paragraphs]), flush=True)
    if args.smallest:
        return
    is_worse = _compare(heading, found.ratios)
    if args.record:
        record(heading, "\n\n".join([*paragraphs, *_of_ratios(found.ratios)]))
        record_of_commit(heading, found.ratios)
    elif is_worse:
        sys.exit(1)


def _heading(args: argparse.Namespace, options: dict[str, Option]) -> str:
    """Returns a heading with the command line, without options that have their default."""
    words = [Path(sys.argv[0]).name]
    for name, option in options.items():
        value, flag = getattr(args, name), f"--{name.replace('_', '-')}"
        if value is True:
            words.append(flag)
        elif value != option.default:
            words += [flag, *map(str, value if isinstance(value, list) else [value])]
    return f"## {shlex.join(words)}"


def _compare(heading: str, ratios: dict[str, Ratio]) -> bool:
    """Prints ratios with the recorded ones; returns whether any is clearly worse."""
    known = recorded(heading)
    for what, ratio in ratios.items():
        print(f"{RATIO} {heading.removeprefix('## ')}: {what}: {compared(ratio.value, known.get(what))}")
    return any(what in known and ratio.value >= known[what][1] for what, ratio in ratios.items())


def _parser(doc: str | None, options: dict[str, Option], *, smallest: bool) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--smallest", action="store_true", help="only show that it runs")
    form.add_argument("--record", action="store_true", help="put the section into RESULTS.md, in place of its last one")
    parser.add_argument("--in", dest="folder", type=Path, default=HERE / ".data", metavar="FOLDER",
                        help="inputs that are kept, and files for the while: a disk with room")
    for name, option in options.items():
        option.add(parser, name, smallest=smallest)
    return parser


@contextmanager
def files(args: argparse.Namespace) -> Iterator[Path]:
    """Yields a temporary folder."""
    with TemporaryDirectory(dir=args.folder, prefix="while-") as name:
        yield Path(name)


def machine() -> str:
    """Returns date, commit, processor, cores and versions as text."""
    packages = ", ".join(f"{name} {_version(name)}" for name in PACKAGES)
    return fill(f"{date.today()}, {commit()}, {os.cpu_count()} cores ({_processor()}), "
                f"Python {platform.python_version()}, {packages}.", width=120)


def commit() -> str:
    """Returns the commit of this checkout, and whether files differ from it, as text."""
    done = subprocess.run(["git", "-C", str(HERE), "describe", "--always", "--dirty=, changed"], capture_output=True,
                          text=True, check=False)
    return f"commit {done.stdout.strip()}" if not done.returncode else "no commit"


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _of_ratios(ratios: dict[str, Ratio]) -> list[str]:
    return [table(HEAD, [[what, f"{ratio.value:.3f}", f"{ratio.factor * ratio.value:.3f}"]
                         for what, ratio in ratios.items()])] if ratios else []


def recorded(heading: str) -> dict[str, tuple[float, float]]:
    """Returns name -> (recorded ratio, too high from) of a section of RESULTS.md."""
    section = RESULTS.read_text().partition(f"\n{heading}\n")[2].partition("\n## ")[0]
    return {row[1]: (float(row[2]), float(row[3])) for row in ROW.finditer(section.partition(f"\n| {RATIO} ")[2])}


def compared(value: float, known: tuple[float, float] | None) -> str:
    """Returns a ratio with the recorded one as text."""
    if known is None:
        return f"{value:.3f}, none recorded"
    was, limit = known
    return f"{value:.3f}, {value / was:.2f} times the recorded {was:.3f}{', TOO HIGH' if value >= limit else ''}"


def record(heading: str, section: str) -> None:
    """Writes a section to RESULTS.md; replaces an earlier one with the same heading."""
    before, _, behind = RESULTS.read_text().partition(f"\n{heading}\n")
    _, following, others = behind.partition("\n## ")
    RESULTS.write_text(f"{before.rstrip()}\n\n{heading}\n\n{section}\n{following}{others}")


def record_of_commit(heading: str, ratios: dict[str, Ratio]) -> None:
    """Adds ratios to the table by commit; replaces those of the same commit."""
    before, _, section = RESULTS.read_text().partition(f"\n{BY_COMMIT}\n")
    lines = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("|")]
    known = [[cell.strip() for cell in line] for line in lines[2:]]
    new = [[f"{heading.removeprefix('## ')}: {what}", str(date.today()), commit(), f"{ratio.value:.3f}"]
           for what, ratio in ratios.items()]
    names = {(row[0], row[2]) for row in new}
    rows = sorted([*(row for row in known if (row[0], row[2]) not in names), *new], key=lambda row: row[:2])
    RESULTS.write_text(f"{before.rstrip()}\n\n{BY_COMMIT}\n\n{table(BY_COMMIT_HEAD, rows)}\n")
