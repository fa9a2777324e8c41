"""The folder of a merge: where it goes, and how it is put there completely or not at all."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from glob import escape
from pathlib import Path

from distprof.contract.merged import COPIED, MERGED_COLLECTIVES, MERGED_MODULES, MERGED_OPERATORS, MERGED_STEPS
from distprof.contract.paths import MERGED, REPORT_HTML, SUMMARY_JSON
from distprof.ending import held, note
from distprof.errors import LIMITS, OutputError, UsageError
from distprof.files import MOST_LINES_BYTES, hint_of, read_small, sync
from distprof.merge.chrome.formats import FORMATS
from distprof.merge.run.traces.discovery import is_recorded
from distprof.system import exchange

OURS = frozenset((SUMMARY_JSON, MERGED_MODULES.file, MERGED_COLLECTIVES.file, MERGED_STEPS.file, REPORT_HTML,
                  MERGED_OPERATORS.file, *(table.file for table in COPIED),
                  *(file for form in FORMATS.values() for file in form.files)))
"""Files of a merge."""
DAY_S = 86_400


@contextmanager
def written_whole(merged: Path) -> Iterator[Path]:
    """Yields a temporary folder to write to; moves it to its place if all goes well, else removes it.

    Raises:
        OutputError: It cannot be written.
        OSError: A limit of the process is reached.
    """
    temporary: Path | None = None
    spare = os.open(os.devnull, os.O_RDONLY)  # so that cleanup can open a file when no other can be opened
    try:
        merged.parent.mkdir(parents=True, exist_ok=True)
        temporary = _beneath(merged)
        note(temporary)
        temporary.mkdir()
        yield temporary
        with held():
            _swap(temporary, merged)
    except OSError as error:
        if error.errno in LIMITS:
            raise
        reason = os.strerror(error.errno) if error.errno else str(error)  # libraries raise errors without a number
        raise OutputError(f"cannot write {merged}: {reason}", hint=hint_of(error)) from error
    finally:
        os.close(spare)
        if temporary is not None:
            with held():
                _discard(temporary)


def beside(paths: Sequence[Path]) -> Path:
    """Returns the default place of a merge: in the folder, or in the first of several run directories.

    Raises:
        UsageError: The traces are not in one folder.
    """
    if paths[0].is_dir() and (len(paths) == 1 or is_recorded(paths[0])):
        return paths[0] / MERGED
    raise UsageError("--out DIR is required: only folders have a default place", hint="add --out merged")


def free(merged: Path, paths: Sequence[Path], *, force: bool) -> Path:
    """Returns the path if a merge may be written there. Only an earlier merge is ever replaced.

    Raises:
        OutputError: There are other files, or there is a merge and `force` is not set.
    """
    merged = merged.resolve()
    if merged.is_dir() and not any(merged.iterdir()):
        return merged
    if merged.exists() and not _is_merge(merged):
        raise others(merged)
    if any(merged == path.resolve() or merged in path.resolve().parents for path in paths):
        raise OutputError(f"the output folder {merged} must not be the folder of the traces",
                          hint="choose another --out")
    if merged.exists() and not force:
        raise earlier(merged)
    return merged


def others(merged: Path) -> OutputError:
    """Returns the error for a place that has files other than a merge."""
    return OutputError(f"{merged} has other files: --out must be new, empty or an earlier merge",
                       hint="choose another --out")


def earlier(merged: Path) -> OutputError:
    """Returns the error for a merge that is not to be replaced."""
    return OutputError(f"{merged} already holds a merge", hint="replace it with --force")


def _beneath(merged: Path) -> Path:
    """Returns an unused name on the same file system, for a later rename. Other merges may run at the same time."""
    inside = merged.is_dir() and (os.path.ismount(merged) or not os.access(merged.parent, os.W_OK))
    parent = merged if inside else merged.parent
    for left in parent.glob(f".{escape(merged.name)}.????????.tmp"):  # left by a merge that was killed
        with suppress(FileNotFoundError):  # another merge has just removed it
            if time.time() - left.stat().st_mtime > DAY_S:
                shutil.rmtree(left, ignore_errors=True)
    return _named(parent, merged.name)


def _named(parent: Path, name: str) -> Path:
    return parent / f".{name}.{os.urandom(4).hex()}.tmp"


def _swap(temporary: Path, merged: Path) -> None:
    """Puts a complete merge in place. An earlier merge stays until then, unless its folder cannot be renamed."""
    if temporary.parent == merged:  # a folder that cannot be renamed
        for name in OURS:
            _remove(merged / name)
        for path in temporary.iterdir():
            path.rename(merged / path.name)
    elif merged.exists() and exchange(temporary.absolute(), merged.absolute()):
        _discard(temporary)
    elif merged.exists():  # if killed between the two renames, the earlier merge is left under another name
        old = temporary.with_suffix(".old")
        merged.rename(old)
        try:
            temporary.rename(merged)
        except OSError:  # another merge was faster, or the rename failed: then the old merge is restored
            if not merged.exists():
                old.rename(merged)
            raise
        finally:
            _discard(old)
    else:
        temporary.rename(merged)
    for left in merged.parent.glob(f".{escape(merged.name)}.????????.old"):  # of a merge that was killed
        _discard(left)
    sync(merged.parent)


def _discard(folder: Path) -> None:
    """Removes a folder if it exists. Renames it first, so that workers that still write to it cannot find it."""
    gone = _named(folder.parent, folder.name.removeprefix(".").rpartition(".")[0].rpartition(".")[0])
    with suppress(OSError):
        note(gone)  # there may be no memory left to remove it
        folder.rename(gone)
        _remove(gone)


def _remove(path: Path) -> None:
    """Removes a file or folder with only one open file at a time; `shutil.rmtree` needs several."""
    if path.is_dir() and not path.is_symlink():
        for name in os.listdir(path):  # noqa: PTH208 (it closes the folder before it returns)
            _remove(path / name)
        path.rmdir()
    else:
        path.unlink(missing_ok=True)


def _is_merge(folder: Path) -> bool:
    """Returns whether a folder contains a merge and nothing else."""
    if not folder.is_dir() or any(path.name not in OURS and not path.name.startswith(".") for path in folder.iterdir()):
        return False
    try:
        found = json.loads(read_small(folder / SUMMARY_JSON, MOST_LINES_BYTES))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(found, dict) and {"format", "world_size", "per_gpu"} <= found.keys()
