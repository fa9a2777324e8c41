"""Extracts commands and their shown output from pages of the documentation."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

VALUE = r"[\d,]+(?:\.\d+)?(?: (?:[KMGT]?FLOP/s|[kKMGT]?B|[KMGT]|[num]?s)\b)?"
BARS = r"[.~A]+"
VARIES = re.compile(rf"(?P<axis>\|0 .*)|(?P<bars>[.~A]{{5,}})|(?<![\w.])(?<!Rank ){VALUE}")
"""Matches what differs between runs: axis and bars of a drawing, numbers with their units, but not numbers in names."""


class Shown(NamedTuple):
    """A command, and the lines of its output that a page shows."""

    command: str
    lines: list[str]


def consoles(page: str) -> Iterator[Shown]:
    """Yields the commands after `$` in the `console` blocks of a page, in order."""
    for block in re.findall(r"^```console\n(.*?)^```", page, re.MULTILINE | re.DOTALL):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, *lines = part.splitlines()
            yield Shown(command, lines)


def commands(page: Path) -> Iterator[list[str]]:
    """Yields the arguments of each `distprof` command in blocks and in inline code."""
    text = page.read_text()
    blocks = re.findall(r"^(?: {4,}|\$ )(?:[A-Z_]+=\S+ )*distprof ([a-z].*)", text, re.MULTILINE)
    for line in [*blocks, *re.findall(r"`distprof ([a-z][^`]*)`", text)]:
        words = shlex.split(line.partition("  ")[0].rstrip("\\"), comments=True)
        yield list(takewhile(lambda word: word not in (">", "|", "..."), words))


def differences(shown: list[str], printed: str) -> list[str]:
    """Returns the lines of a page that are missing in the output; numbers and column widths may differ, order may not.

    A line `...` stands for any lines; `...` at either end of a line stands for the rest of it. Lines with "all equal"
    show counts and must be identical.
    """
    left, missing = [" ".join(line.split()) for line in printed.splitlines()], []
    for line in (line for line in shown if line.strip() != "..."):
        pattern = _pattern(" ".join(line.split()))
        place = next((index for index, one in enumerate(left) if pattern.fullmatch(one)), None)
        if place is None:
            missing.append(line)
        else:
            left = left[place + 1:]
    return missing


def _pattern(line: str) -> re.Pattern[str]:
    before, after = (".*" if cut else "" for cut in (line.startswith("...") and "~" not in line, line.endswith(" ...")))
    line = line.removeprefix("..." if before else "").removesuffix("..." if after else "").strip()
    if "all equal" in line:
        return re.compile(before + re.escape(line) + after)
    if line.startswith("Rank 2 delays"):
        return re.compile(r"Rank 2 delays .*")      # the reason takes one line or two
    parts, end = [], 0
    for found in VARIES.finditer(line):
        varying = r"\|0.*" if found["axis"] else BARS if found["bars"] else VALUE
        parts += [re.escape(line[end:found.start()]), varying]
        end = found.end()
    return re.compile(f"{before}{''.join(parts)}{re.escape(line[end:])}{' ' if after else ''}{after}")
