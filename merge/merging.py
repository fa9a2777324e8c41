"""Merging: paths come in, a folder with the merged trace and tables is written whole or not at all."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from distprof.contract import MERGED, SUMMARY_JSON
from distprof.errors import IncompleteError, OutputError, UsageError
from distprof.files import sync
from distprof.merge.archives import unpack
from distprof.merge.first_pass import FirstPass, Progress
from distprof.merge.options import MergeOptions
from distprof.merge.ranking import Naming
from distprof.merge.run import Run, open_run

EVERYTHING = MergeOptions()


def merge(*paths: Path, options: MergeOptions = EVERYTHING, out: Path | None = None, naming: Naming | None = None,
          force: bool = False, strict: bool = False, progress: Progress = lambda _: None) -> str:
    """Writes the merged trace and tables whole or not at all.

    Args:
        *paths: A run directory, or traces of other programs: folders, files, archives.
        options: What goes in and how.
        out: Where to write; `merged/` in the run directory or folder where it is not given.
        naming: How to tell the rank of a trace, where neither the trace nor its name does.
        force: Replace an earlier merge.
        strict: Fail where something is missing.
        progress: Is told how much of the work is done, from 0 to 1.

    Raises:
        DataError: The run cannot be read.
        OutputError: There is a merge already, or it cannot be written.
        UsageError: It takes `out`, or `naming` makes no sense.
        IncompleteError: Something is missing and `strict` is set; what there is was merged.
    """
    run = open_run(*paths, naming=naming)
    merged = _free(out if out is not None else _beside(paths), force=force)
    temporary = merged.with_name(f".{merged.name}.tmp")
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        with _unpacked(run, temporary) as unpacked, FirstPass(unpacked, options) as reading:
            from distprof.merge import writing  # takes a while, and the first pass runs meanwhile

            written = writing.write_merge(unpacked, reading, temporary, options, progress)
        if merged.exists():
            shutil.rmtree(merged)
        temporary.rename(merged)
        sync(merged.parent)
    except OSError as error:
        raise OutputError(f"cannot write {merged}: {error.strerror or error}", hint="make room or change permissions "
                          "there, or write elsewhere with --out DIR") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    check(written.problems, strict=strict)
    return writing.told(written, merged)


@contextmanager
def _unpacked(run: Run, folder: Path) -> Iterator[Run]:
    """The run with members of compressed archives unpacked: each would be read through all that come before it."""
    unpacked = folder / "unpacked"
    unpacked.mkdir()
    try:
        files = unpack([rank.trace for rank in run.ranks if rank.trace is not None], unpacked)
        yield replace(run, ranks=[rank if rank.trace is None else replace(
            rank, trace=files.get(rank.trace, rank.trace)) for rank in run.ranks])
    finally:
        shutil.rmtree(unpacked)


def _beside(paths: Sequence[Path]) -> Path:
    if len(paths) == 1 and paths[0].is_dir():
        return paths[0] / MERGED
    raise UsageError("expected --out DIR, found none: only a folder has a place for its merge", hint="add --out merged")


def _free(merged: Path, *, force: bool) -> Path:
    """The path, if a merge may be written there. Nothing but a merge is ever replaced."""
    merged = merged.resolve() if merged.name in ("", "..") else merged
    if merged.is_dir() and not any(merged.iterdir()):
        return merged
    if merged.exists() and not (merged.is_dir() and (merged / SUMMARY_JSON).is_file()):
        raise OutputError(f"expected a new or empty folder or an earlier merge, found other files at {merged}",
                          hint="choose another --out")
    if merged.exists() and not force:
        raise OutputError(f"expected no earlier merge, found {merged}", hint="--force replaces it")
    return merged


def check(problems: list[str], *, strict: bool) -> None:
    """Raises IncompleteError where something is missing and that matters."""
    if strict and problems:
        raise IncompleteError(f"incomplete: {'; '.join(problems)}", hint="without --strict this exits with 0")
