"""The body of `distprof merge`: writes the folder of the merge completely or not at all."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from distprof.contract.paths import TRACE_JSON
from distprof.ending import held
from distprof.errors import DataError, Ended
from distprof.merge.chrome.formats import FORMATS
from distprof.merge.chrome.options import MergeOptions
from distprof.merge.chrome.rank_surveys import Progress, RankSurveys
from distprof.merge.chrome.work_folder import removed_if_killed
from distprof.merge.run.open_run import NO_SIZES, open_run
from distprof.merge.run.run_model import Run
from distprof.merge.run.timelines import reading_in, with_timelines
from distprof.merge.run.traces.ranking import Naming
from distprof.merge.scan.anonymous import Anonymiser
from distprof.merge.scan.archives import unpack
from distprof.merge.scan.engine import described, is_compiled
from distprof.merge.workers.choice import BUILT_IN, Workers
from distprof.merge.writing.merge_folder import beside, free, written_whole
from distprof.storage.places import remote
from distprof.terminal import say

if TYPE_CHECKING:
    from distprof.storage.remote_path import RemotePath
    from distprof.storage.writing.by_workers import ByWorkers

EVERYTHING = MergeOptions()


def merge(*paths: Path, options: MergeOptions = EVERYTHING, out: Path | None = None, naming: Naming | None = None,
          sizes: Mapping[str, int] = NO_SIZES, force: bool = False, strict: bool = False,
          brief: bool = False, workers: Workers = BUILT_IN, progress: Progress = lambda _: None) -> str:
    """Writes the merged trace and tables completely or not at all.

    Args:
        *paths: A run directory, or traces of other programs: folders, files, archives.
        options: What to merge and how.
        out: Where to write; default: `merged/` in the run directory or folder.
        naming: How to find the rank of a trace that has it neither in its contents nor in its name.
        sizes: Axis of the device mesh -> size; replaces what the run says.
        force: Replace an earlier merge.
        strict: Fail if something is missing.
        brief: Return the ten-line summary instead of what was written.
        workers: The workers that read the traces.
        progress: Called with the fraction of the work that is done, from 0 to 1.

    Raises:
        DataError: The run cannot be read, or `brief` is set for traces of another program.
        OutputError: There is a merge already, or it cannot be written.
        UsageError: `out` is required, or `naming` is invalid.
        IncompleteError: Something is missing and `strict` is set; the rest was merged.
    """
    run = with_timelines(open_run(*paths, naming=naming, sizes=sizes))
    run = anonymous(run) if options.anonymise else run
    run = replace(run, run_id=options.name) if options.name and run.kind == "traces" else run
    if brief and run.kind != "distprof":
        raise DataError(f"--answer needs a run recorded by distprof, but {run.path} has foreign "
                        "traces", hint="merge them without --answer")
    merged = out if out is not None else beside(paths)
    elsewhere, by_workers = remote(merged), None
    if elsewhere is None:
        merged = free(merged, paths, force=force)
        place = written_whole(merged)
    else:
        from distprof.merge.writing.remote_merge import free_elsewhere, uploaded_whole

        by_workers = _by_workers(run, elsewhere, options, workers)
        place = uploaded_whole(free_elsewhere(elsewhere, paths, force=force), paths, force=force,
                               by_workers=by_workers)
    if not is_compiled():
        say(described())
    with (place as folder,
          nullcontext() if workers.scheduler is None else removed_if_killed(folder),
          _unpacked(run, folder, options) as unpacked,
          _surveys(unpacked, options, folder, workers) as reading,
          nullcontext() if workers == BUILT_IN else reading_in(reading.pool)):
        from distprof.merge.writing import merge_files as writing  # slow to import; the first pass runs meanwhile

        written = writing.write_merge(unpacked, reading, folder, options, progress, by_workers)
    from distprof.merge.text.problems import fail_if_incomplete  # imported by now

    fail_if_incomplete(written.problems, strict=strict)
    return writing.answer_text(written) if brief else writing.summary_text(written, merged)


def anonymous(run: Run) -> Run:
    """Renames hosts to `host0` and so on, and removes hosts and folders from traces when they are read."""
    hosts = {host: f"host{number}" for number, host in enumerate(dict.fromkeys(
        rank.host for rank in run.ranks if rank.host))}
    anonymiser = Anonymiser.of(hosts)
    run_id = "anonymous" if run.kind == "traces" else run.run_id  # other run ids are times
    return replace(run, run_id=run_id, ranks=[
        replace(rank, host=hosts.get(rank.host, ""), trace=rank.trace and replace(rank.trace, anonymiser=anonymiser))
        for rank in run.ranks])


def _by_workers(run: Run, merged: RemotePath, options: MergeOptions, workers: Workers) -> ByWorkers | None:
    """Returns what workers of a cluster upload themselves; workers on this machine gain nothing by it."""
    from distprof.storage.writing.by_workers import ByWorkers, WholeObjects
    from distprof.storage.writing.joined import Joined

    url = f"{merged.url}/{TRACE_JSON}"
    if workers.scheduler is None or not FORMATS[options.format].by_workers or not Joined.takes(url, 0):
        return None
    joined = Joined(url, str(merged)) if Joined.takes(url, len(run.ranks)) else None
    return ByWorkers(joined=joined, joined_name=TRACE_JSON, objects=WholeObjects(merged.url, str(merged)))


@contextmanager
def _surveys(run: Run, options: MergeOptions, folder: Path, workers: Workers) -> Iterator[RankSurveys]:
    """Waits for the workers at the end; if a signal ends this process, stops them instead (threads end with it)."""
    reading: RankSurveys | None = None
    try:
        with held():  # a process that has just been started is registered only afterwards
            reading = RankSurveys(run, options, folder, workers)
        yield reading
    except Ended:
        if reading is not None:
            reading.abandon()
            reading = None
        raise
    finally:
        if reading is not None:
            reading.__exit__()


@contextmanager
def _unpacked(run: Run, folder: Path, options: MergeOptions) -> Iterator[Run]:
    """Unpacks members of compressed archives, because each would be read through all members before it; and adds traces
    of other programs to the traces of their ranks.
    """
    unpacked = folder / "unpacked"
    unpacked.mkdir()
    try:
        files = unpack([rank.trace for rank in run.ranks if rank.trace is not None], unpacked)
        run = replace(run, ranks=[rank if rank.trace is None else replace(
            rank, trace=files.get(rank.trace, rank.trace)) for rank in run.ranks])
        if any(rank.beside for rank in run.ranks) and FORMATS[options.format].chooses_events:
            from distprof.merge.chrome.companions import with_companions

            run = with_companions(run, unpacked)
        yield run
    finally:
        shutil.rmtree(unpacked)
