"""An object joined from pieces, each uploaded by the process that has it; it appears as a whole or not at all.

A long piece is uploaded in parts by its writer, on any host; small ones are uploaded by the owner of the object,
several in one part. What the owner has between two long pieces may be less than S3 accepts as a part. Then it adds the
start of the next long piece, and the first part of that piece's writer is dropped: both have part numbers of their own.

    joined = Joined("s3://bucket/run/merged/trace.json.gz", "s3://bucket/run/merged")
    joined.begin(len(ranks), between=b",")
    parts = joined.share(7).put(file)       # anywhere
    joined.append(7, file, parts)           # by the owner, in the order of the pieces
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from distprof.ending import held
from distprof.storage.kinds.schemes import backend_of
from distprof.storage.writing.uploading import (
    LEAST_BYTES,
    Upload,
    abort,
    begin,
    complete,
    put_part,
    told_by_worker,
    told_of,
)
from distprof.storage.writing.writable import MOST_PARTS, PART_BYTES

END_PARTS = 100
"""Part numbers reserved for what follows the pieces."""
LEAST_NUMBERS = 3
"""Minimum part numbers per piece: for the owner, for its start, for its rest."""
MOST_PIECES = (MOST_PARTS - END_PARTS) // LEAST_NUMBERS


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What the writer of a piece has uploaded."""

    tags: Mapping[int, str]
    num_bytes: int
    """Size of the piece."""
    begin_bytes: int
    """Bytes of the piece in its first part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What the writer of a piece needs to upload it; it can be sent to other processes and hosts."""

    upload: Upload
    shown: str
    """Name of the place in messages."""
    number: int
    """Number of its first part."""
    most: int
    """Maximum number of parts."""
    between: bytes
    """Written before the piece."""

    def put(self, file: IO[bytes]) -> Parts | None:
        """Uploads a piece, and truncates the file to its start, which the owner may need.

        A repetition uploads the same parts.

        Args:
            file: Contains the piece; open for reading and writing.

        Returns:
            None if the piece is too small: its file is left unchanged, for the owner.

        Raises:
            OutputError: This process cannot write to the storage.
        """
        size = file.seek(0, os.SEEK_END)
        if size < LEAST_BYTES:
            return None
        lengths, tags, before = _lengths(size, self.most), dict[int, str](), self.between
        file.seek(0)
        with told_by_worker(self.shown):
            for number, length in enumerate(lengths, self.number):
                tags[number] = put_part(self.upload, number, before + file.read(length))
                before = b""
        file.truncate(lengths[0])
        return Parts(tags=tags, num_bytes=size, begin_bytes=lengths[0])


def _lengths(size: int, most: int) -> list[int]:
    """Returns the lengths of a long piece's parts, none of which is too small."""
    if size < 2 * LEAST_BYTES:
        return [size]
    rest = size - LEAST_BYTES
    count = min(most - 1, -(-rest // PART_BYTES))
    return [LEAST_BYTES, *(rest * (at + 1) // count - rest * at // count for at in range(count))]


class Joined:
    """The owner's side. End it with `complete` or `abort`.

    Args:
        url: The URL of the object.
        shown: Name of the place in error messages.
    """

    def __init__(self, url: str, shown: str) -> None:
        self._url, self._shown = url, shown
        self._upload: Upload | None = None
        self._tags = dict[int, str]()
        self._held = bytearray()
        """Bytes that are not in a part yet."""
        self.num_bytes = 0

    @staticmethod
    def takes(url: str, num_pieces: int) -> bool:
        """Returns whether the storage supports uploads in parts, with numbers for this many pieces."""
        return backend_of(url).has_parts and num_pieces <= MOST_PIECES

    @property
    def is_begun(self) -> bool:
        """Whether the object was begun."""
        return self._upload is not None

    def begin(self, num_pieces: int, between: bytes) -> None:
        """Begins the object.

        Args:
            num_pieces: At most `MOST_PIECES`.
            between: What writers put before a piece; the owner also writes it there.
        """
        self._between, self._most = between, (MOST_PARTS - END_PARTS) // max(1, num_pieces)
        with told_of(self._shown), held():  # no signal before it is known what to abort
            self._upload = begin(self._url)

    def share(self, index: int) -> Share:
        """Returns what the writer of a piece needs."""
        assert self._upload is not None
        return Share(upload=self._upload, shown=self._shown, number=self._number(index) + 1, most=self._most - 1,
                     between=self._between)

    def _number(self, index: int) -> int:
        """Returns the owner's part number for a piece."""
        return 1 + index * self._most

    def wants_begin(self) -> bool:
        """Returns whether `append` needs the start of the next piece even if its writer has uploaded it.

        Call it before `between` is written.
        """
        return 0 < len(self._held) < LEAST_BYTES

    def write(self, content: bytes) -> None:
        """Adds content between pieces."""
        self._held += content

    def append(self, index: int, file: Path, parts: Parts | None) -> None:
        """Adds a piece; `between` must have been written before, where it belongs.

        Args:
            index: Number of the piece, from 0; pieces come in this order, some may be missing.
            file: The piece, or only its start if parts of it were uploaded.
            parts: What its writer has uploaded; None if nothing.
        """
        if parts is None:
            self._held += file.read_bytes()
            if len(self._held) >= PART_BYTES:
                self._put(self._number(index))
            return
        tags, before = dict(parts.tags), self._held.removesuffix(self._between)
        if 0 < len(before) < LEAST_BYTES:
            with file.open("rb") as source:
                self._held += source.read(parts.begin_bytes)
            del tags[min(tags)]
            self.num_bytes -= parts.begin_bytes
            self._put(self._number(index))
        else:
            self._held = before
            self.num_bytes += len(self._between)
            self._put(self._number(index))
        self._tags |= tags
        self.num_bytes += parts.num_bytes

    def finish(self, contents: Iterable[bytes]) -> None:
        """Adds content after the pieces."""
        number = MOST_PARTS - END_PARTS + 1
        for content in contents:
            self._held += content
            if len(self._held) >= PART_BYTES and number < MOST_PARTS:
                self._put(number)
                number += 1
        self._put(number)

    def _put(self, number: int) -> None:
        """Uploads the held bytes, if there are any."""
        if self._held:
            assert self._upload is not None
            with told_of(self._shown):
                self._tags[number] = put_part(self._upload, number, bytes(self._held))
            self.num_bytes += len(self._held)
            self._held.clear()

    def complete(self) -> None:
        """Makes the object appear, if it was begun."""
        if self._upload is not None:
            with told_of(self._shown):
                complete(self._upload, self._tags)
            self._upload = None

    def abort(self) -> None:
        """Removes the object's parts, unless it is complete."""
        if self._upload is not None:
            abort(self._upload)
            self._upload = None
