"""Uploads a part of a run: what is there already is left, what makes it whole comes last."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from distprof.contract.paths import FORMAT
from distprof.launch.upload.parts import Part
from distprof.storage.backend import Backend, Entry
from distprof.storage.kinds.schemes import backend_of
from distprof.storage.writing.uploading import Moved, put_file

MANIFEST = ".upload.json"
"""Beside the files of a part, there: their sizes and SHA-256."""
READ_BYTES = 1 << 20


class UploadedFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file as it was uploaded."""

    size: int
    sha256: str


class Manifest(msgspec.Struct, kw_only=True):
    """What a part holds."""

    format: int = FORMAT
    files: dict[str, UploadedFile]


@dataclass(frozen=True, slots=True, kw_only=True)
class Uploaded:
    """What an upload of a part did."""

    part: Part
    num_bytes: int
    """That were moved; 0 where all was there."""


def upload_part(part: Part, run_url: str, moved: Moved = lambda _: None) -> Uploaded:
    """Uploads what is not there yet.

    Raises:
        OSError: A file cannot be read, or an object not written.
        StorageError: The storage does not answer, or refuses the keys.
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
    if part.last in there and lacking and lacking != [part.last]:
        backend.remove([f"{url}/{part.last}"])  # until all is new, there is no such part
        lacking += [part.last] if part.last in files and part.last not in lacking else []
    for name in lacking:
        if name != part.last:
            put_file(files[name], f"{url}/{name}", moved)
    backend.put(f"{url}/{MANIFEST}", msgspec.json.encode(wanted))
    if part.last in lacking:
        put_file(files[part.last], f"{url}/{part.last}", moved)
    return Uploaded(part=part, num_bytes=sum(wanted.files[name].size for name in lacking))


def about(file: Path) -> UploadedFile:
    """Its size and SHA-256."""
    digest, size = hashlib.sha256(), 0
    with file.open("rb") as source:
        while piece := source.read(READ_BYTES):
            digest.update(piece)
            size += len(piece)
    return UploadedFile(size=size, sha256=digest.hexdigest())


def _top_level(backend: Backend, url: str, files: Mapping[str, Path]) -> dict[str, Entry]:
    """The files of the run directory itself; what lies below it is not listed for them."""
    found = {name: backend.entries(f"{url}/{name}").get("") for name in (*files, MANIFEST)}
    return {name: entry for name, entry in found.items() if entry is not None}


def _manifest(backend: Backend, url: str, there: Mapping[str, Entry]) -> Manifest:
    """What is said to be there; nothing where that cannot be read."""
    if MANIFEST not in there:
        return Manifest(files={})
    try:
        return msgspec.json.decode(backend.whole(f"{url}/{MANIFEST}", there[MANIFEST]), type=Manifest)
    except (msgspec.MsgspecError, OSError):
        return Manifest(files={})


def _is_there(name: str, file: Path, wanted: UploadedFile, known: Manifest, entry: Entry | None,
              backend: Backend) -> bool:
    if entry is None or entry.size != wanted.size:
        return False
    return known.files[name] == wanted if name in known.files else backend.holds(file, entry)
