"""Finds sequences of kernels, copies and fills that device streams ran repeatedly and that may be fused or captured."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from distprof.arrays import Integers
from distprof.contract.problems import Problem, Unreadable
from distprof.errors import DataError, UsageError
from distprof.merge.match.backend_names import communicates
from distprof.merge.operators.device_texts import DeviceTexts, run_texts
from distprof.merge.operators.repeats import Repeat, maximal_repeats
from distprof.merge.operators.selection import Selection, check, check_words
from distprof.merge.run.run_model import Run
from distprof.merge.run.timelines import with_timelines

SORTS = {"device_ns": "device_ns", "gap_ns": "gap_ns", "calls": "calls", "kernels": "length", "self": "device_ns"}
"""What --sort accepts -> an attribute."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelSequence:
    """A sequence of commands, summed over all its occurrences, which do not overlap."""

    names: Sequence[str]
    """Names of its commands, in order."""
    launched_by: Sequence[str | None]
    """What most often launched each command: an operator, or a call outside of all operators; None if unknown."""
    modules: Sequence[str]
    """Paths of the innermost modules that contain all commands of an occurrence."""
    phases: Sequence[str]
    calls: int
    ranks: Sequence[int]
    device_ns: int
    """Run time of its commands."""
    gap_ns: int
    """Time from the end of each command to a later start of the next."""

    @property
    def length(self) -> int:
        return len(self.names)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSequences:
    """The sequences of a run."""

    found: Sequence[KernelSequence]
    """Sequences that are shown."""
    number: int
    """Number of all sequences."""
    num_commands: int
    """Number of selected commands on devices."""
    device_ns: int
    """Run time of all commands, including those that were not selected."""
    ranks: Sequence[int]
    """Ranks whose timeline could be read."""
    num_stepless: int
    stepless_ns: int
    problems: Sequence[Problem]


def run_sequences(run: Run, selection: Selection, *, most: int, sort: str = "self",
                  top: int | None = None) -> RunSequences:
    """Finds the sequences that are maximal repeats: see `maximal_repeats`.

    They are consecutive commands on one stream of a rank, launched in one step and, if operators are selected, in one
    call of an operator. Collectives alone do not count: their time is spent waiting for other ranks.

    Args:
        run: The run as it was opened.
        selection: Which commands; others separate sequences.
        most: Maximum length.
        sort: A key of `SORTS`, largest first.
        top: How many are kept.

    Raises:
        DataError: No rank has a timeline, or none used a device.
        UsageError: There is no such order, rank, step or phase.
    """
    if sort not in SORTS:
        raise UsageError(f"unknown --sort {sort!r} for --sequences; choose from {', '.join([*SORTS][:-1])}")
    check_words(selection)
    run = with_timelines(run)
    each = list(run_texts(run, selection))
    read = [one for one in each if isinstance(one, DeviceTexts)]
    if not read:
        raise DataError(f"no timeline in {run.path}",
                        hint=None if run.kind == "traces" else "record one with --steps trace=6 or memory=3")
    if not any(one.device_ns or one.num_stepless for one in read):
        raise DataError(f"the timelines of {run.path} have no kernels", hint="--sequences is for jobs on GPUs")
    check(selection, [one.rank for one in read], {step for one in read for step in one.steps},
          {phase for one in read for phase in one.phases})
    chosen = [one for one in read if one.rank in selection.ranks or not selection.ranks]
    rows = _joined(chosen)
    repeats = _summed(rows, _with_work(rows, maximal_repeats(
        rows["symbol"].to_numpy(), rows["text"].to_numpy(), most)))
    repeats.sort(key=lambda one: (-getattr(one, SORTS[sort]), -one.device_ns, int(one.repeat.starts[0])))
    return RunSequences(
        found=[*_described(rows, repeats[:top])], number=len(repeats), num_commands=len(rows),
        device_ns=sum(one.device_ns for one in chosen), ranks=[one.rank for one in chosen],
        num_stepless=sum(one.num_stepless for one in chosen), stepless_ns=sum(one.stepless_ns for one in chosen),
        problems=[problem for one in each for problem in ([one] if isinstance(one, Unreadable) else one.problems)])


def _joined(each: Sequence[DeviceTexts]) -> pl.DataFrame:
    """Returns the rows of all ranks, with a number for each name, and text numbers that are unique across ranks."""
    frames, texts = list[pl.DataFrame](), 0
    for one in each:
        frames.append(one.rows.with_columns(pl.col("text") + texts))
        texts = texts + int(one.rows["text"].max() or 0) + 1  # type: ignore[arg-type]
    rows = pl.concat(frames)
    return rows.with_columns(symbol=rows["name"].to_physical().cast(pl.Int64))


def _with_work(rows: pl.DataFrame, repeats: Iterable[Repeat]) -> list[Repeat]:
    """Returns the repeats that do not consist of collectives alone."""
    exchanging = [name for name in rows["name"].unique().to_list() if communicates(name or "")]
    working = ~rows["name"].is_in(exchanging).fill_null(value=False).to_numpy()
    return [one for one in repeats if working[one.starts[0]:one.starts[0] + one.length].any()]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Summed:
    repeat: Repeat
    device_ns: int
    gap_ns: int

    @property
    def calls(self) -> int:
        return len(self.repeat.starts)

    @property
    def length(self) -> int:
        return self.repeat.length


def _summed(rows: pl.DataFrame, repeats: Sequence[Repeat]) -> list[_Summed]:
    start, end = rows["start_ns"].to_numpy(), rows["end_ns"].to_numpy()
    ran = np.concatenate(([0], np.cumsum(end - start)))
    gaps = np.concatenate(([0], np.cumsum(np.maximum(start[1:] - end[:-1], 0))))  # gaps between texts belong to none
    return [_Summed(repeat=one, device_ns=_within(ran, one.starts, one.length),
                    gap_ns=_within(gaps, one.starts, one.length - 1)) for one in repeats]


def _within(until: Integers, starts: Integers, length: int) -> int:
    return int((until[starts + length] - until[starts]).sum())


def _described(rows: pl.DataFrame, repeats: Sequence[_Summed]) -> Iterator[KernelSequence]:
    for one in repeats:
        starts, length = one.repeat.starts, one.length
        inside = rows[(starts[:, None] + np.arange(length)).ravel()]
        launched_by, paths = (_kinds(inside[name], length) for name in ("launched_by", "module_path"))
        around = [common_path(kind) for kind in paths]
        yield KernelSequence(
            names=inside["name"].head(length).to_list(), launched_by=launched_by[0],
            modules=[*dict.fromkeys(path for path in around if path is not None)],
            phases=inside["phase"].drop_nulls().unique(maintain_order=True).to_list(), calls=len(starts),
            device_ns=one.device_ns, gap_ns=one.gap_ns, ranks=rows["rank"][starts].unique().sort().to_list())


def _kinds(words: pl.Series, length: int) -> list[list[str | None]]:
    """Returns the distinct word lists of concatenated occurrences: most frequent first, then as they appear."""
    numbers = words.to_physical().fill_null(np.iinfo(np.uint32).max).to_numpy().reshape(-1, length)
    _, first, times = np.unique(numbers, axis=0, return_index=True, return_counts=True)
    return [words[place * length:(place + 1) * length].to_list()
            for place in first[np.lexsort((first, -times))].tolist()]


def common_path(paths: Iterable[str | None]) -> str | None:
    """Returns the path of the innermost module that contains all these paths; None if none of them is in a module."""
    known = {path for path in paths if path is not None}
    if not known:
        return None
    common = list[str]()
    for parts in zip(*(path.split(".") for path in known), strict=False):
        if len(set(parts)) > 1:
            break
        common.append(parts[0])
    return ".".join(common)
