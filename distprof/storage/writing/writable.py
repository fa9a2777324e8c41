"""Writes objects of a storage; those of S3 override what S3 does by itself."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from distprof.storage.retrying import persistently

COPY_BYTES = 8 << 20
PART_BYTES = 16 << 20
"""Of the parts that `put_file` makes; more of a file that would have too many."""
MOST_PARTS = 10_000


def part_bytes(size: int) -> int:
    """Length of the parts of a file that is so long."""
    return max(PART_BYTES, -(-size // MOST_PARTS))


class Writable:
    """What `Backend` can write, by what every filesystem of fsspec has."""

    has_parts = False
    """Whether the storage itself puts parts together."""

    @property
    def filesystem(self) -> Any:
        """Of fsspec."""
        raise NotImplementedError

    def key(self, url: str) -> str:
        """What fsspec calls the object of a URL."""
        raise NotImplementedError

    def put(self, url: str, content: bytes, *, only_new: bool = False) -> bool:
        """Writes a small object.

        Args:
            url: Of the object.
            content: All of it.
            only_new: Leaves an object that is there already.

        Returns:
            False where one was there.

        Raises:
            RemoteError: It may not be written.
            StorageError: The storage does not answer, or refuses the keys.
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
        """Writes a file of any length by what the package has for that; tried again, it begins anew."""
        def put() -> None:
            self._make_folder_of(self.key(url))
            self.filesystem.put_file(os.fspath(file), self.key(url))

        persistently(url, put, num_bytes=file.stat().st_size)

    def _make_folder_of(self, key: str) -> None:
        self.filesystem.makedirs(self.filesystem._parent(key), exist_ok=True)

    def remove(self, urls: Sequence[str]) -> None:
        """Removes objects, as far as they are there."""
        for url in urls:
            persistently(url, lambda url=url: self._remove(self.key(url)))  # type: ignore[misc]

    def _remove(self, key: str) -> None:
        try:
            self.filesystem.rm_file(key)
        except FileNotFoundError:
            pass

    def begin_parts(self, url: str) -> str:
        """Begins an object of parts, which any process may write; its id."""
        return secrets.token_hex(8)

    def put_part(self, url: str, upload: str, number: int, content: bytes) -> str:
        """Writes part `number`, from 1; what `complete_parts` is to be told of it."""
        self.put(self._part(url, upload, number), content)
        return str(len(content))

    def complete_parts(self, url: str, upload: str, tags: Mapping[int, str]) -> None:
        """Makes the object of its parts, in the order of their numbers: only then is it there."""
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
        """Removes the parts of an object that will not be made."""
        folder = self.key(os.path.dirname(self._part(url, upload, 0)))  # noqa: PTH120 (a URL)
        found = persistently(url, lambda: self.filesystem.find(folder))
        for key in found:
            self._remove(key)

    def abort_left(self, url: str) -> int:
        """Aborts what was begun at or below a URL and never completed; how many there were."""
        return 0

    def _part(self, url: str, upload: str, number: int) -> str:
        folder, _, name = url.rpartition("/")
        return f"{folder}/.{name}.{upload}.parts/{number:05d}"
