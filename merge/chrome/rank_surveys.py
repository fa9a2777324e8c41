"""Surveys the traces of all ranks in workers, which write the ranks afterwards."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from distprof.contract.problems import TraceDamaged
from distprof.errors import DataError, UsageError
from distprof.merge.chrome.options import MergeOptions
from distprof.merge.chrome.survey import Survey, survey_trace
from distprof.merge.run.run_model import Rank, Run
from distprof.merge.run.trace_head import is_merged
from distprof.merge.scan.chrome_file import Losses
from distprof.merge.scan.engine import is_compiled
from distprof.merge.scan.trace_file import TraceFile
from distprof.threads import is_scarce, thread_pool
from distprof.units import spans

Progress = Callable[[float], None]
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSurvey:
    """A rank and the survey of its trace."""

    rank: Rank
    trace: TraceFile
    survey: Survey


@dataclass(frozen=True, slots=True, kw_only=True)
class Readings:
    """All ranks whose traces can be read."""

    ranks: list[RankSurvey]
    problems: list[TraceDamaged]
    """Traces that cannot be read, and what is lost of the others."""


class RankSurveys:
    """Reads every trace that the options ask for, in workers that begin at once; the second pass uses them too."""

    def __init__(self, run: Run, options: MergeOptions, folder: Path | None = None) -> None:
        """Begins.

        Args:
            run: Whose ranks are surveyed.
            options: Say which.
            folder: For temporary files, where a trace is long.

        Raises:
            UsageError: The options ask for ranks that are not there.
        """
        self._traces = _traces(run, options)
        self._executor = _executor([trace for _, trace in self._traces])
        self._found = [self._executor.submit(_survey, trace, folder) for _, trace in self._traces]

    def __enter__(self) -> RankSurveys:
        return self

    def __exit__(self, *_: object) -> None:
        self._executor.shutdown(cancel_futures=True)

    def read(self, progress: Progress = lambda _: None) -> Readings:
        """Waits for all of it."""
        found, problems = list[RankSurvey](), list[TraceDamaged]()
        for done, ((rank, trace), future) in enumerate(zip(self._traces, self._found, strict=True), 1):
            survey = future.result()
            progress(done / len(self._traces))
            if isinstance(survey, DataError):
                problems.append(TraceDamaged(rank=rank.number, file=trace.name, what="all", detail=str(survey.args[0])))
                continue
            problems += damages(rank.number, trace, survey)
            found.append(RankSurvey(rank=rank, trace=trace, survey=survey))
        return Readings(ranks=found, problems=problems)

    def map(self, work: Callable[..., Result], *arguments: Iterable[Any]) -> Iterator[Result]:
        """Like the built-in `map`, in the same workers."""
        return self._executor.map(work, *arguments)


def _traces(run: Run, options: MergeOptions) -> list[tuple[Rank, TraceFile]]:
    found = [(rank, rank.trace) for rank in run.ranks if rank.trace is not None]
    if options.ranks is None or not found:
        return found
    chosen = [(rank, trace) for rank, trace in found if rank.number in options.ranks]
    if not chosen:
        raise UsageError(f"expected ranks with a timeline for --ranks, found none in {options.ranks}",
                         hint=f"there are {spans([rank.number for rank, _ in found])}")
    return chosen


def _executor(traces: Sequence[TraceFile]) -> Executor:
    workers = max(1, min(len(traces), os.cpu_count() or 1))
    if is_compiled() or is_scarce():  # that one runs without the interpreter's lock
        return thread_pool(workers)
    from distprof.merge.chrome.worker_processes import process_pool

    return process_pool(workers)


def _survey(trace: TraceFile, folder: Path | None) -> Survey | DataError:
    try:
        survey = survey_trace(trace, folder=folder)
    except DataError as error:
        return error
    if is_merged(survey.metadata):
        return DataError(f"expected the trace of one rank in {trace.name}, found a merged trace")
    return survey


def damages(rank: int, trace: TraceFile, survey: Survey) -> Iterator[TraceDamaged]:
    """What is lost of a trace."""
    if survey.damage is not None:
        yield TraceDamaged(rank=rank, file=trace.name, what="container", detail=str(survey.damage))
    yield from losses_of(rank, trace, survey.losses, survey.num_events)
    if survey.bad_times:
        yield TraceDamaged(rank=rank, file=trace.name, what="events", num_events=survey.bad_times)


def losses_of(rank: int, trace: TraceFile, losses: Losses, num_events: int) -> Iterator[TraceDamaged]:
    """What is lost of the text of a trace."""
    if losses.is_cut:
        yield TraceDamaged(rank=rank, file=trace.name, what="end", lost_bytes=losses.lost_bytes + losses.lost_key_bytes,
                           num_events=num_events)
    elif losses.damaged_events:
        yield TraceDamaged(rank=rank, file=trace.name, what="places", places=losses.damaged_events,
                           lost_bytes=losses.lost_bytes)
    if losses.damaged_keys or (losses.lost_key_bytes and not losses.is_cut):
        yield TraceDamaged(rank=rank, file=trace.name, what="keys", lost_bytes=losses.lost_key_bytes,
                           detail=", ".join(losses.damaged_keys))
