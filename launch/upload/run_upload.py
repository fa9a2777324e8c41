"""Uploads a run directory, many parts at a time, and says so."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from distprof.errors import DataError, DistprofError, StorageError
from distprof.launch.upload.part_upload import Part, Uploaded, parts_of, upload_part
from distprof.storage.faults import RemoteError
from distprof.storage.listing import LISTINGS
from distprof.storage.remote_path import RemotePath
from distprof.storage.writing.uploading import Moved
from distprof.terminal import quoted
from distprof.threads import thread_pool
from distprof.units import counted, size

RIGHTS = "can these credentials write there? see docs/object-storage.md for the permissions needed"
AT_ONCE = 8
"""Parts; most of their files are small."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """A part that did not arrive."""

    part: Part
    why: str
    hint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunUploaded:
    """What became of the parts of a run."""

    uploaded: Sequence[Uploaded]
    failed: Sequence[Failed]

    @property
    def num_bytes(self) -> int:
        """That were moved."""
        return sum(one.num_bytes for one in self.uploaded)


def upload_run(run: Path, url: str, moved: Moved = lambda _: None) -> RunUploaded:
    """Uploads what is not there yet: ranks, then what was made of them, then run.json.

    Raises:
        DataError: There is not a run directory.
    """
    if not run.is_dir():
        raise DataError(f"no run directory at {run}", hint="distprof run prints the directory")
    parts = parts_of(run)
    if not any(part.is_rank for part in parts):
        raise DataError(f"no ranks in {run}",
                        hint="distprof run prints the directory it writes")
    ranks = uploaded(filter(lambda part: part.is_rank, parts), url, moved)
    others = [uploaded([part], url, moved) for part in parts if not part.is_rank]
    LISTINGS.forget(url)
    return RunUploaded(uploaded=[one for some in (ranks, *others) for one in some.uploaded],
                       failed=[one for some in (ranks, *others) for one in some.failed])


def uploaded(parts: Iterable[Part], url: str, moved: Moved = lambda _: None) -> RunUploaded:
    """Uploads some parts; one that fails stops none of the others, unless the storage itself fails."""
    refused: list[Failed] = []

    def upload(part: Part) -> Uploaded | Failed:
        if refused:  # asking again for each of a thousand ranks would only take time
            return Failed(part=part, why=refused[0].why, hint=refused[0].hint)
        outcome = _attempt(lambda: upload_part(part, url, moved), part)
        if isinstance(outcome, Failed) and outcome.hint and part.is_rank:
            refused.append(outcome)
        return outcome

    with thread_pool(AT_ONCE) as executor:
        outcomes = list(executor.map(upload, parts))
    return RunUploaded(uploaded=[one for one in outcomes if isinstance(one, Uploaded)],
                       failed=[one for one in outcomes if isinstance(one, Failed)])


def _attempt(upload: Callable[[], Uploaded], part: Part) -> Uploaded | Failed:
    try:
        return upload()
    except StorageError as error:
        return Failed(part=part, why=str(error.args[0]), hint=error.hint or "")
    except DistprofError as error:
        return Failed(part=part, why=str(error.args[0]), hint="")
    except OSError as error:
        denied = isinstance(error, RemoteError) and error.errno == errno.EACCES
        return Failed(part=part, why=f"{error.filename}: {error.strerror or error}", hint=RIGHTS if denied else "")


def lines_of(done: RunUploaded, run: Path, url: RemotePath) -> Iterator[str]:
    """What arrived, and what comes next."""
    ranks = sum(one.part.is_rank for one in done.uploaded)
    moved = f"{size(done.num_bytes)} moved" if done.num_bytes else "everything was already there"
    yield f"{counted(ranks, 'rank')} in {url}: {moved}"
    yield f"Next: distprof {'comms' if (run / 'merged').is_dir() else 'merge'} {quoted(url)}"
