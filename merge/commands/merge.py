"""The body of `distprof merge`: writes the folder of the merge whole or not at all."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from distprof.contract.merged_tables import MERGED_COLLECTIVES, MERGED_MODULES, MERGED_STEPS
from distprof.contract.paths import MERGED, SUMMARY_JSON
from distprof.contract.problems import Problem
from distprof.errors import IncompleteError, OutputError, UsageError
from distprof.files import sync
from distprof.merge.chrome.formats import FORMATS
from distprof.merge.chrome.options import MergeOptions
from distprof.merge.chrome.rank_surveys import Progress, RankSurveys
from distprof.merge.run.ranking import Naming
from distprof.merge.run.read_run import read_run
from distprof.merge.run.run_model import Run
from distprof.merge.scan.archives import unpack
from distprof.merge.scan.engine import PLAIN, is_compiled
from distprof.merge.text.problems import sentences

EVERYTHING = MergeOptions()
OURS = frozenset((SUMMARY_JSON, MERGED_MODULES.file, MERGED_COLLECTIVES.file, MERGED_STEPS.file, "report.html",
                  *(file for form in FORMATS.values() for file in form.files)))
"""What a merge holds."""
SLOW = ("distprof: merging with the plain Python engine, many times slower than the compiled one  hint: install a C "
        f"compiler, then distprof again{f'; {PLAIN} must not be set' if PLAIN in os.environ else ''}\n")
DAY_S = 86_400


def merge(*paths: Path, options: MergeOptions = EVERYTHING, out: Path | None = None, naming: Naming | None = None,
          force: bool = False, strict: bool = False, progress: Progress = lambda _: None) -> str:
    """Writes the merged trace and tables whole or not at all.

    Args:
        *paths: A run directory, or traces of other programs: folders, files, archives.
        options: What goes in and how.
        out: Where to write; `merged/` in the run directory or folder where it is not given.
        naming: How to find the rank of a trace that neither holds it nor has it in its name.
        force: Replace an earlier merge.
        strict: Fail where something is missing.
        progress: Called with the share of the work that is done, from 0 to 1.

    Raises:
        DataError: The run cannot be read.
        OutputError: There is a merge already, or it cannot be written.
        UsageError: It takes `out`, or `naming` makes no sense.
        IncompleteError: Something is missing and `strict` is set; what there is was merged.
    """
    run = read_run(*paths, naming=naming)
    merged = _free(out if out is not None else _beside(paths), paths, force=force)
    if not is_compiled():
        sys.stderr.write(SLOW)
    temporary: Path | None = None
    try:
        merged.parent.mkdir(parents=True, exist_ok=True)
        temporary = _temporary(merged)
        with _unpacked(run, temporary) as unpacked, RankSurveys(unpacked, options, temporary) as reading:
            from distprof.merge.commands import (
                merge_files as writing,  # takes a while, and the first pass runs meanwhile
            )

            written = writing.write_merge(unpacked, reading, temporary, options, progress)
        _swap(temporary, merged)
    except OSError as error:
        raise OutputError(f"cannot write {merged}: {error.strerror or error}", hint="make room or change permissions "
                          "there, or write elsewhere with --out DIR") from error
    finally:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)
    fail_if_incomplete(written.problems, strict=strict)
    return writing.summary_text(written, merged)


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


def _temporary(merged: Path) -> Path:
    """A new folder on the same file system, so that it can be renamed: another merge may run at the same time."""
    inside = merged.is_dir() and (os.path.ismount(merged) or not os.access(merged.parent, os.W_OK))
    parent = merged if inside else merged.parent
    for left in parent.glob(f".{merged.name}.????????.tmp"):  # of a merge that was killed
        if time.time() - left.stat().st_mtime > DAY_S:
            shutil.rmtree(left, ignore_errors=True)
    folder = parent / f".{merged.name}.{os.urandom(4).hex()}.tmp"
    folder.mkdir()
    return folder


def _swap(temporary: Path, merged: Path) -> None:
    """Puts a whole merge in the place of an earlier one, or of nothing; what was there stays until that is done."""
    if temporary.parent == merged:  # a place that cannot be renamed
        for name in OURS:
            _remove(merged / name)
        for path in temporary.iterdir():
            path.rename(merged / path.name)
    elif merged.exists():
        old = temporary.with_suffix(".old")
        merged.rename(old)
        try:
            temporary.rename(merged)
        except OSError:  # another merge was faster, or there is none now: then the old one comes back
            if not merged.exists():
                old.rename(merged)
            raise
        finally:
            shutil.rmtree(old, ignore_errors=True)
    else:
        temporary.rename(merged)
    sync(merged.parent)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _free(merged: Path, paths: Sequence[Path], *, force: bool) -> Path:
    """The path, if a merge may be written there. Nothing but a merge is ever replaced."""
    merged = merged.resolve()
    if merged.is_dir() and not any(merged.iterdir()):
        return merged
    if merged.exists() and not _is_merge(merged):
        raise OutputError(f"expected a new or empty folder or an earlier merge, found other files at {merged}",
                          hint="choose another --out")
    if any(merged == path.resolve() or merged in path.resolve().parents for path in paths):
        raise OutputError(f"expected another folder than that of the traces, found {merged}",
                          hint="choose another --out")
    if merged.exists() and not force:
        raise OutputError(f"expected no earlier merge, found {merged}", hint="--force replaces it")
    return merged


def _is_merge(folder: Path) -> bool:
    """True where a folder holds a merge and nothing else."""
    if not folder.is_dir() or any(path.name not in OURS and not path.name.startswith(".") for path in folder.iterdir()):
        return False
    try:
        found = json.loads((folder / SUMMARY_JSON).read_text())
    except (OSError, ValueError):
        return False
    return isinstance(found, dict) and {"format", "world_size", "per_gpu"} <= found.keys()


def fail_if_incomplete(problems: Sequence[Problem], *, strict: bool) -> None:
    """Raises IncompleteError where something is missing and that matters."""
    if strict and problems:
        raise IncompleteError(f"incomplete: {'; '.join(sentences(problems))}",
                              hint="without --strict this exits with 0")
