"""Programs that take turns: contenders and traces come in, what each run of each cost goes out."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from contenders import Contender
from isal import igzip
from processes import Cost, Failed, peak_pss_bytes, timed

PATIENCE_S = 60
"""A program runs again as long as all its runs take no longer."""
SLICE = re.compile(rb'"ph":\s*"X"')
CHUNK = 1 << 20
LONGEST_SLICE = 32
"""Bytes that a match of `SLICE` has at most."""


@dataclass(slots=True, kw_only=True)
class Result:
    """All runs of one program on the same traces."""

    contender: Contender
    traces: list[Path]
    costs: list[Cost] = field(default_factory=list)
    peaks_bytes: list[int] = field(default_factory=list)
    written_bytes: int | None = None
    num_slices: int | None = None
    """In the merged trace."""
    failure: str | None = None

    @property
    def num_bytes(self) -> int:
        """Of the input."""
        return sum(trace.stat().st_size for trace in self.traces)

    @property
    def fastest(self) -> Cost | None:
        """The run that was least disturbed."""
        return min(self.costs, key=lambda cost: cost.wall_s, default=None)

    @property
    def wall_s(self) -> float | None:
        """Of the fastest run."""
        return self.fastest.wall_s if self.fastest else None

    @property
    def peak_bytes(self) -> int | None:
        """Of the run that took most memory."""
        return max(self.peaks_bytes, default=None)

    @property
    def wants_more(self) -> bool:
        """False after a failure, and after long runs."""
        return self.failure is None and again([cost.wall_s for cost in self.costs])


def again(runs_s: list[float]) -> bool:
    """True where one more run is within the patience."""
    return not runs_s or sum(runs_s) + min(runs_s) <= PATIENCE_S


def take_turns(results: list[Result], folder: Path, repeat: int) -> None:
    """Runs everyone once, then again; `folder` is emptied before every run."""
    for _ in range(repeat):
        for result in results:
            if result.wants_more:
                try:
                    _run(result, folder)
                except Failed as error:
                    result.failure = str(error)


def _run(result: Result, folder: Path) -> None:
    contender = result.contender
    command = contender.command(result.traces, folder / contender.writes)
    empty(folder)
    cost = timed(command)
    if contender.trace:
        result.written_bytes = (folder / contender.trace).stat().st_size
        result.num_slices = result.num_slices or count_slices(folder / contender.trace)
        if contender.processes:
            empty(folder)
            result.peaks_bytes.append(peak_pss_bytes(command))
        else:
            result.peaks_bytes.append(cost.max_rss_bytes)
    result.costs.append(cost)


def empty(folder: Path) -> None:
    """Makes it, with nothing in it and nothing of earlier runs waiting to be written to disk."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    os.sync()


def count_slices(trace: Path) -> int:
    """Slices of a Chrome trace, plain or gzipped, by the look of the text."""
    count, rest = 0, b""
    for chunk in _chunks(trace):
        text, end = rest + chunk, 0
        for match in SLICE.finditer(text):
            count, end = count + 1, match.end()
        rest = text[max(end, len(text) - LONGEST_SLICE):]
    return count


def _chunks(path: Path) -> Iterator[bytes]:
    with igzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
        while chunk := file.read(CHUNK):
            yield chunk
