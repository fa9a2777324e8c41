"""Opens what a user names: a run directory of ours, or traces of other programs."""

from __future__ import annotations

from pathlib import Path

from distprof.merge.run.discovery import is_recorded
from distprof.merge.run.open_traces import run_of_traces
from distprof.merge.run.ranking import Naming
from distprof.merge.run.recorded import recorded_run
from distprof.merge.run.run_model import Run


def read_run(path: Path, *more: Path, naming: Naming | None = None) -> Run:
    """Opens a run directory, or finds the traces of other programs that lie at the given paths.

    Args:
        path: A run directory, a folder of traces, a trace or an archive of traces.
        *more: Further traces, archives or folders of traces.
        naming: Where the rank of a trace is from, if neither the trace nor its name has it.

    Raises:
        DataError: Nothing can be read, or its parts contradict each other.
        FormatError: It was written by a newer distprof.
        UsageError: `naming` makes no sense.
    """
    return recorded_run(path) if not more and is_recorded(path) else run_of_traces((path, *more), naming)
