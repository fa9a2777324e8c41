"""What workers write to a folder of a storage without sending it to its owner: one joined object, and one per worker.

The objects per worker all appear when their owner says so, or not at all:

    objects = WholeObjects("s3://bucket/run/merged", "s3://bucket/run/merged")
    place = objects.place("events.parquet/rank00007.parquet")               # by the owner
    tags = place.put(file)                                                  # anywhere
    objects.add(place.name, tags)                                           # by the owner
    objects.complete()
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import IO

from distprof.ending import held
from distprof.storage.stream import requests
from distprof.storage.writing.joined import Joined
from distprof.storage.writing.uploading import Upload, abort, begin, complete, put_part, told_by_worker, told_of
from distprof.storage.writing.writable import part_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """What the writer of an object needs to upload it; it can be sent to other processes and hosts."""

    name: str
    """Path below the URL of all objects."""
    upload: Upload
    shown: str
    """Name of the place of all objects in messages."""

    def put(self, file: IO[bytes]) -> Mapping[int, str]:
        """Uploads the content of a file, part by part. A repetition uploads the same parts again.

        Returns:
            What the owner has to be given.

        Raises:
            OutputError: This process cannot write to the storage.
        """
        length, tags = part_bytes(file.seek(0, os.SEEK_END)), dict[int, str]()
        file.seek(0)
        with told_by_worker(self.shown):
            while (content := file.read(length)) or not tags:
                tags[len(tags) + 1] = put_part(self.upload, len(tags) + 1, content)
        return tags


class WholeObjects:
    """The owner's side. End it with `complete` or `abort`."""

    def __init__(self, url: str, shown: str) -> None:
        """Begins without objects.

        Args:
            url: URL above all objects.
            shown: Name of the place in error messages.
        """
        self._url, self._shown = url, shown
        self._begun = dict[str, Upload]()
        self._tags = dict[str, Mapping[int, str]]()

    @property
    def names(self) -> set[str]:
        """Names of the objects that were uploaded."""
        return set(self._tags)

    def place(self, name: str) -> Place:
        """Begins an object and returns what its writer needs.

        Raises:
            OutputError: It may not be written.
        """
        with told_of(self._shown), held():  # no signal before it is known what to abort
            upload = self._begun[name] = begin(f"{self._url}/{name}")
        return Place(name=name, upload=upload, shown=self._shown)

    def add(self, name: str, tags: Mapping[int, str]) -> None:
        """Registers an object that was uploaded."""
        self._tags[name] = tags

    def complete(self) -> None:
        """Makes the uploaded objects appear, replacing earlier ones."""
        with told_of(self._shown):
            for name in requests().map(self._complete, list(self._tags)):
                del self._begun[name]
        self.abort()

    def _complete(self, name: str) -> str:
        complete(self._begun[name], self._tags[name])
        return name

    def abort(self) -> None:
        """Removes all objects that are not complete."""
        for _ in requests().map(abort, list(self._begun.values())):
            pass
        self._begun.clear()


@dataclass(frozen=True, slots=True, kw_only=True)
class ByWorkers:
    """The owner's side of the joined object and the others. End it with `complete` or `abort`."""

    joined: Joined | None
    """The object into which all pieces are joined; None if there are too many of them."""
    joined_name: str
    objects: WholeObjects

    @property
    def names(self) -> set[str]:
        """Names of what will exist below the folder."""
        is_joined = self.joined is not None and self.joined.is_begun
        return self.objects.names | ({self.joined_name} if is_joined else set())

    def complete(self) -> None:
        """Completes all objects."""
        self.objects.complete()
        if self.joined is not None:
            self.joined.complete()

    def abort(self) -> None:
        """Removes everything that is not complete."""
        self.objects.abort()
        if self.joined is not None:
            self.joined.abort()
