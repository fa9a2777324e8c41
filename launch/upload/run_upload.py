"""Uploads a run directory, several parts at a time; each part is uploaded completely or not at all."""

from __future__ import annotations

import errno
import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from distprof.contract.paths import FORMAT, MERGED, PARTIAL_SUFFIX, RANK_FOLDER, RANK_JSON, RUN_JSON, SUMMARY_JSON
from distprof.errors import DataError, DistprofError, StorageError
from distprof.storage.backend import Backend, Entry
from distprof.storage.faults import RemoteError
from distprof.storage.kinds.schemes import backend_of
from distprof.storage.listing import LISTINGS
from distprof.storage.writing.uploading import Moved, put_file
from distprof.threads import thread_pool

_ATTEMPT = re.compile(r"attempt\d{4,}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A folder of a run directory that is uploaded as a unit."""

    name: str
    """Path relative to the run directory; "" for the files directly in it."""
    folder: Path
    last: str
    """File that makes the part valid for readers, so it is uploaded last; "" if there is none."""

    @property
    def is_rank(self) -> bool:
        """Whether it is a rank folder, of the last attempt or an earlier one."""
        return RANK_FOLDER.fullmatch(self.folder.name) is not None

    @property
    def is_complete_rank(self) -> bool:
        """Whether it is the folder of a rank that will not write any more."""
        return self.is_rank and not self.name.endswith(PARTIAL_SUFFIX) and (self.folder / self.last).is_file()

    def files(self) -> dict[str, Path]:
        """Returns path in the part -> file; `last` comes last."""
        found = self.folder.iterdir() if not self.name else self.folder.rglob("*")
        files = {file.relative_to(self.folder).as_posix(): file for file in sorted(found) if file.is_file()}
        shown = {name: file for name, file in files.items()
                 if not any(one.startswith(".") for one in name.split("/"))}
        return {**{name: file for name, file in shown.items() if name != self.last},
                **{name: file for name, file in shown.items() if name == self.last}}


def parts_of(run: Path) -> list[Part]:
    """Returns all parts of a run directory in upload order: ranks, other folders such as the merge, then run.json."""
    return [*ranks_of(run), *_others(run), Part(name="", folder=run, last=RUN_JSON)]


def ranks_of(run: Path) -> Iterator[Part]:
    """Yields the rank folders, earlier attempts before the last one."""
    for folder in [*sorted(child for child in run.iterdir() if _ATTEMPT.fullmatch(child.name)), run]:
        for child in sorted(folder.iterdir()):
            if child.is_dir() and RANK_FOLDER.fullmatch(child.name):
                yield Part(name=child.relative_to(run).as_posix(), folder=child, last=RANK_JSON)


def _others(run: Path) -> Iterator[Part]:
    for child in sorted(run.iterdir()):
        known = RANK_FOLDER.fullmatch(child.name) or _ATTEMPT.fullmatch(child.name) or child.name.startswith(".")
        if child.is_dir() and not known:
            yield Part(name=child.name, folder=child, last=SUMMARY_JSON if child.name == MERGED else "")


MANIFEST = ".upload.json"
"""Uploaded file beside the files of a part that lists their sizes and SHA-256."""
READ_BYTES = 1 << 20


class UploadedFile(msgspec.Struct, frozen=True, kw_only=True):
    """Size in bytes and SHA-256 of an uploaded file."""

    size: int
    sha256: str


class Manifest(msgspec.Struct, kw_only=True):
    """The files of a part."""

    format: int = FORMAT
    files: dict[str, UploadedFile]


@dataclass(frozen=True, slots=True, kw_only=True)
class Uploaded:
    """The result of uploading a part."""

    part: Part
    num_bytes: int
    """Number of uploaded bytes; 0 if everything was there already."""


def upload_part(part: Part, run_url: str, moved: Moved = lambda _: None) -> Uploaded:
    """Uploads the files of a part that are not there yet; removes those that an earlier upload of the rank or merge put
    there and that are no longer in it.

    Raises:
        OSError: A file cannot be read, or an object cannot be written.
        StorageError: The storage does not answer, or rejects the credentials.
    """
    url = f"{run_url}/{part.name}" if part.name else run_url
    backend, files = backend_of(url), part.files()
    there = backend.entries(url) if part.name else _top_level(backend, url, files)
    wanted = Manifest(files={name: about(file) for name, file in files.items()})
    known = _manifest(backend, url, there)
    lacking = [name for name, file in files.items()
               if not _is_there(name, file, wanted.files[name], known, there.get(name), backend)]
    if not lacking and known == wanted:
        return Uploaded(part=part, num_bytes=0)
    # other folders have files of several hosts, whose uploads replace each other's manifests
    gone = [name for name in there if name in known.files and name not in files] if part.name and part.last else []
    if part.last in there and (gone or set(lacking) - {part.last}):
        backend.remove([f"{url}/{part.last}"])  # makes the part invalid until all files are replaced
        lacking += [part.last] if part.last in files and part.last not in lacking else []
    backend.remove([f"{url}/{name}" for name in gone if name != part.last])
    for name in lacking:
        if name != part.last:
            put_file(files[name], f"{url}/{name}", moved)
    backend.put(f"{url}/{MANIFEST}", msgspec.json.encode(wanted))
    if part.last in lacking:
        put_file(files[part.last], f"{url}/{part.last}", moved)
    return Uploaded(part=part, num_bytes=sum(wanted.files[name].size for name in lacking))


def about(file: Path) -> UploadedFile:
    """Returns size and SHA-256 of a file."""
    digest, size = hashlib.sha256(), 0
    with file.open("rb") as source:
        while piece := source.read(READ_BYTES):
            digest.update(piece)
            size += len(piece)
    return UploadedFile(size=size, sha256=digest.hexdigest())


def _top_level(backend: Backend, url: str, files: Mapping[str, Path]) -> dict[str, Entry]:
    """Returns the entries of the files directly in the run directory, without listing everything below it."""
    found = {name: backend.entries(f"{url}/{name}").get("") for name in (*files, MANIFEST)}
    return {name: entry for name, entry in found.items() if entry is not None}


def _manifest(backend: Backend, url: str, there: Mapping[str, Entry]) -> Manifest:
    """Returns the uploaded manifest; an empty one if it is missing or cannot be read."""
    if MANIFEST not in there:
        return Manifest(files={})
    try:
        return msgspec.json.decode(backend.whole(f"{url}/{MANIFEST}", there[MANIFEST]), type=Manifest)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return Manifest(files={})


def _is_there(name: str, file: Path, wanted: UploadedFile, known: Manifest, entry: Entry | None,
              backend: Backend) -> bool:
    if entry is None or entry.size != wanted.size:
        return False
    return known.files[name] == wanted if name in known.files else backend.holds(file, entry)


RIGHTS = "can these credentials write there? see docs/object-storage.md for the permissions needed"
AT_ONCE = 8
"""Number of parts that are uploaded concurrently; most of their files are small."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """A part that could not be uploaded."""

    part: Part
    why: str
    hint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunUploaded:
    """The results for the parts of a run."""

    uploaded: Sequence[Uploaded]
    failed: Sequence[Failed]

    @property
    def num_bytes(self) -> int:
        """Total number of uploaded bytes."""
        return sum(one.num_bytes for one in self.uploaded)


def upload_run(run: Path, url: str, moved: Moved = lambda _: None) -> RunUploaded:
    """Uploads what is not there yet: ranks, then other folders such as the merge, then run.json.

    Raises:
        DataError: `run` is not a directory or has no ranks.
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
    """Uploads parts. A part that fails does not stop the others, unless the storage itself rejects or fails."""
    refused: list[Failed] = []

    def upload(part: Part) -> Uploaded | Failed:
        if refused:  # trying again for each of a thousand ranks would only take time
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
