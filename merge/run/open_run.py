"""Opens what a user names: a run directory of ours, or traces of other programs."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from types import MappingProxyType

from distprof.errors import DataError
from distprof.merge.run.recorded import recorded_run
from distprof.merge.run.run_model import Run
from distprof.merge.run.settled import settled
from distprof.merge.run.summaries.summaries import JOINED
from distprof.merge.run.traces.discovery import is_recorded
from distprof.merge.run.traces.open_traces import run_of_traces
from distprof.merge.run.traces.ranking import Naming

NO_SIZES: Mapping[str, int] = MappingProxyType({})


def open_run(path: Path, *more: Path, naming: Naming | None = None, sizes: Mapping[str, int] = NO_SIZES,
             untimed: bool = False, by_host: bool = False, only: Collection[str] = tuple(JOINED)) -> Run:
    """Opens the run directories of a job, or finds the traces of other programs that lie at the given paths.

    Args:
        path: A run directory, a folder of traces, a trace or an archive of traces.
        *more: Run directories that other hosts wrote for the same job, or further traces, archives or folders of
            traces.
        naming: Where the rank of a trace is from, if neither the trace nor its name has it.
        sizes: Axis of the device mesh -> size, in place of what a run says.
        untimed: Execution traces without any timeline are a run too.
        by_host: The files of hosts may be read in place of the folders of ranks, if there are many; who opens a run so
            asks `Run.of_tables` for ranks whose other files it reads.
        only: Tables of these that are wanted then.

    Raises:
        DataError: Nothing can be read, or its parts contradict each other.
        FormatError: It was written by a newer distprof.
        UsageError: `naming` makes no sense, or `sizes` do not make up the world.
    """
    paths = (path, *more)
    recorded = [is_recorded(one) for one in paths]
    if not any(recorded):
        return settled(run_of_traces(paths, naming, untimed=untimed), sizes)
    if not all(recorded):
        other = paths[recorded.index(False)]
        raise DataError(f"{other} is not a run directory",
                        hint="merge foreign traces separately from runs recorded by distprof"
                        if other.exists() else "distprof run prints the directory it writes")
    return settled(recorded_run(*paths, by_host=by_host, only=only), sizes)
