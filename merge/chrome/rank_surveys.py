"""Surveys the traces of all ranks in workers, which write the ranks afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from distprof.contract.problems import TraceDamaged
from distprof.errors import DataError, UsageError
from distprof.freed_memory import giving_back
from distprof.merge.chrome.options import MergeOptions
from distprof.merge.chrome.survey import Survey, survey_trace
from distprof.merge.chrome.work_folder import make_work_folder, remove_work_folder
from distprof.merge.run.run_model import Rank, Run
from distprof.merge.run.timelines import damages_of
from distprof.merge.run.traces.trace_head import is_merged
from distprof.merge.scan.trace_file import TraceFile
from distprof.merge.workers.choice import BUILT_IN, Workers, open_pool
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
    """Reads every trace that the options select, in workers that start at once; the second pass uses them, too."""

    def __init__(self, run: Run, options: MergeOptions, folder: Path | None = None,
                 workers: Workers = BUILT_IN) -> None:
        """Starts reading.

        Args:
            run: The run whose ranks are surveyed.
            options: Select the ranks.
            folder: For temporary files; None: everything that surveys find is kept in memory.
            workers: The workers that do it.

        Raises:
            DataError: There are no such workers.
            UsageError: The options ask for ranks that do not exist.
        """
        self._traces = _traces(run, options)
        if workers.scheduler is not None:  # workers have other working directories
            self._traces = [(rank, replace(trace, path=trace.path.absolute())) for rank, trace in self._traces]
        self._folder = folder
        work = None if folder is None else make_work_folder(folder)
        self.pool = open_pool(workers, len(self._traces), work, [trace.path for _, trace in self._traces])
        """May be given other work on these traces."""
        self._found = self.pool.begun(_survey, ((f"survey rank {rank.number}", (rank.number, trace, work))
                                                for rank, trace in self._traces))

    def __enter__(self) -> RankSurveys:
        return self

    def __exit__(self, *_: object) -> None:
        self.pool.close()
        if self._folder is not None:
            remove_work_folder(self._folder)

    def abandon(self) -> None:
        """Stops at once, for a process that is about to end."""
        self.pool.abandon()

    def read(self, progress: Progress = lambda _: None) -> Readings:
        """Waits for all surveys."""
        found, problems = list[RankSurvey](), list[TraceDamaged]()
        for done, ((rank, trace), survey) in giving_back(enumerate(zip(self._traces, self._found, strict=True), 1)):
            progress(done / len(self._traces))
            if isinstance(survey, DataError):
                problems.append(TraceDamaged(rank=rank.number, file=trace.name, what="all", detail=str(survey.args[0])))
                continue
            problems += damages(rank.number, trace, survey)
            found.append(RankSurvey(rank=rank, trace=trace, survey=survey))
        return Readings(ranks=found, problems=problems)

    def sent(self, survey: Survey) -> Survey:
        """Returns the survey in a form that a worker can use: complete if the worker cannot access its file."""
        return survey if self.pool.shares_folder else survey.whole()

    def in_order(self, work: Callable[..., Result], items: Iterable[tuple[str, Sequence[Any]]],
                 wants_spares: Callable[[], bool] | None = None) -> Iterator[Result]:
        """Yields what the same workers return for each item, a name and its arguments.

        Args:
            work: What they do.
            items: The items, in the order of the results.
            wants_spares: Called for each item: returns whether files are needed that its worker holds in reserve.
        """
        if wants_spares is not None:
            self.pool.wants_spares, self.pool.batch = wants_spares, 1
        return self.pool.in_order(work, items)


def _traces(run: Run, options: MergeOptions) -> list[tuple[Rank, TraceFile]]:
    found = [(rank, rank.trace) for rank in run.ranks if rank.trace is not None]
    if options.ranks is None or not found:
        return found
    chosen = [(rank, trace) for rank, trace in found if rank.number in options.ranks]
    if not chosen:
        raise UsageError(f"no rank in --ranks {options.ranks} has a timeline",
                         hint=f"ranks with a timeline: {spans([rank.number for rank, _ in found])}")
    return chosen


def _survey(rank: int, trace: TraceFile, work: Path | None) -> Survey | DataError:
    try:
        survey = survey_trace(trace, folder=work)
    except DataError as error:
        return error
    if is_merged(survey.metadata):
        return DataError(f"{trace.name} is a merged trace, not the trace of one rank")
    return survey if work is None else survey.laid_in(work / f"rank{rank}.survey")


def damages(rank: int, trace: TraceFile, survey: Survey) -> Iterator[TraceDamaged]:
    """Yields what is lost of a trace."""
    yield from damages_of(rank, trace, survey.damage, survey.losses, survey.num_events)
    if survey.bad_times:
        yield TraceDamaged(rank=rank, file=trace.name, what="events", num_events=survey.bad_times)
