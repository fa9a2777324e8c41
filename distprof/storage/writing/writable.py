"""Writes objects of a storage; the class of S3 overrides what S3 does by itself."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from distprof.storage.retrying import persistently

COPY_BYTES = 8 << 20
PART_BYTES = 16 << 20
"""Size of the parts that `put_file` makes; larger if a file would otherwise have too many."""
MOST_PARTS = 10_000


def part_bytes(size: int) -> int:
    """Returns the size of the parts for a file of this size."""
    return max(PART_BYTES, -(-size // MOST_PARTS))


class Writable:
    """The part of `Backend` that writes, with what every filesystem of fsspec has."""

    has_parts = False
    """Whether the storage itself joins parts."""

    @property
    def filesystem(self) -> Any:
        """The filesystem of fsspec."""
        raise NotImplementedError

    def key(self, url: str) -> str:
        """Returns fsspec's name of the object at a URL."""
        raise NotImplementedError

    def put(self, url: str, content: bytes, *, only_new: bool = False) -> bool:
        """Writes a small object.

        Args:
            url: The URL of the object.
            content: Its content.
            only_new: Whether to leave an existing object unchanged.

        Returns:
            False if it existed.

        Raises:
            RemoteError: It may not be written.
            StorageError: The storage does not answer, or refuses the credentials.
        """
        return persistently(url, lambda: self._put(self.key(url), content, only_new=only_new),
                            num_bytes=len(content))

    def _put(self, key: str, content: bytes, *, only_new: bool) -> bool:
        self._make_folder_of(key)
        if only_new and self.filesystem.exists(key):
            return False
        self.filesystem.pipe_file(key, content)
        return True

    def put_whole(self, url: str, file: Path) -> None:
        """Writes a file of any length with fsspec's function for that; a repetition starts from the beginning."""
        def put() -> None:
            self._make_folder_of(self.key(url))
            self.filesystem.put_file(os.fspath(file), self.key(url))

        persistently(url, put, num_bytes=file.stat().st_size)

    def _make_folder_of(self, key: str) -> None:
        self.filesystem.makedirs(self.filesystem._parent(key), exist_ok=True)

    def remove(self, urls: Sequence[str]) -> None:
        """Removes objects, if they exist."""
        for url in urls:
            persistently(url, lambda url=url: self._remove(self.key(url)))  # type: ignore[misc]

    def _remove(self, key: str) -> None:
        try:
            self.filesystem.rm_file(key)
        except FileNotFoundError:
            pass

    def begin_parts(self, url: str) -> str:
        """Begins an object of parts, which any process may write; returns its id."""
        return secrets.token_hex(8)

    def put_part(self, url: str, upload: str, number: int, content: bytes) -> str:
        """Writes part `number`, from 1; returns its tag for `complete_parts`."""
        self.put(self._part(url, upload, number), content)
        return str(len(content))

    def complete_parts(self, url: str, upload: str, tags: Mapping[int, str]) -> None:
        """Creates the object from its parts, in the order of their numbers: it does not exist before."""
        parts = [self._part(url, upload, number) for number in sorted(tags)]
        persistently(url, lambda: self._join(self.key(url), [self.key(part) for part in parts]),
                     num_bytes=sum(map(int, tags.values())))
        self.remove(parts)

    def _join(self, key: str, parts: Sequence[str]) -> None:
        with self.filesystem.open(key, "wb", block_size=COPY_BYTES) as whole:
            for part in parts:
                with self.filesystem.open(part, "rb", block_size=COPY_BYTES) as source:
                    while piece := source.read(COPY_BYTES):
                        whole.write(piece)

    def abort_parts(self, url: str, upload: str) -> None:
        """Removes the parts of an object that will not be completed."""
        folder = self.key(os.path.dirname(self._part(url, upload, 0)))  # noqa: PTH120 (a URL)
        found = persistently(url, lambda: self.filesystem.find(folder))
        for key in found:
            self._remove(key)

    def abort_left(self, url: str) -> int:
        """Aborts uploads at or below a URL that were never completed; returns how many there were."""
        return 0

    def _part(self, url: str, upload: str, number: int) -> str:
        folder, _, name = url.rpartition("/")
        return f"{folder}/.{name}.{upload}.parts/{number:05d}"
