"""What workers write of a folder in a storage, without sending it to its owner: one object of all, and one of each.

Of each are all objects there when their owner says so, or none:

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
    """What the writer of an object needs to put it; it can be sent to other processes and hosts."""

    name: str
    """Below the URL of all."""
    upload: Upload
    shown: str
    """What to call the place of all."""

    def put(self, file: IO[bytes]) -> Mapping[int, str]:
        """Puts what a file holds, a part at a time. Whoever puts it again puts the same parts anew.

        Returns:
            What the owner is to be told.

        Raises:
            OutputError: This process cannot write there.
        """
        length, tags = part_bytes(file.seek(0, os.SEEK_END)), dict[int, str]()
        file.seek(0)
        with told_by_worker(self.shown):
            while (content := file.read(length)) or not tags:
                tags[len(tags) + 1] = put_part(self.upload, len(tags) + 1, content)
        return tags


class WholeObjects:
    """The owner's side. Leave it by `complete` or `abort`."""

    def __init__(self, url: str, shown: str) -> None:
        """Has none yet.

        Args:
            url: Above all of them.
            shown: What to call the place in errors.
        """
        self._url, self._shown = url, shown
        self._begun = dict[str, Upload]()
        self._tags = dict[str, Mapping[int, str]]()

    @property
    def names(self) -> set[str]:
        """Of those that were put."""
        return set(self._tags)

    def place(self, name: str) -> Place:
        """Begins an object; what its writer needs.

        Raises:
            OutputError: It may not be written.
        """
        with told_of(self._shown), held():  # a signal must not come before it is known what to abort
            upload = self._begun[name] = begin(f"{self._url}/{name}")
        return Place(name=name, upload=upload, shown=self._shown)

    def add(self, name: str, tags: Mapping[int, str]) -> None:
        """Takes in an object that was put."""
        self._tags[name] = tags

    def complete(self) -> None:
        """Those that were put are there, in the place of earlier ones."""
        with told_of(self._shown):
            for name in requests().map(self._complete, list(self._tags)):
                del self._begun[name]
        self.abort()

    def _complete(self, name: str) -> str:
        complete(self._begun[name], self._tags[name])
        return name

    def abort(self) -> None:
        """Leaves none, but for those that are complete."""
        for _ in requests().map(abort, list(self._begun.values())):
            pass
        self._begun.clear()


@dataclass(frozen=True, slots=True, kw_only=True)
class ByWorkers:
    """The owner's side. Leave it by `complete` or `abort`."""

    joined: Joined | None
    """The object that pieces of all are put together to; None where these are too many."""
    joined_name: str
    objects: WholeObjects

    @property
    def names(self) -> set[str]:
        """Of what will be there, below the folder."""
        is_joined = self.joined is not None and self.joined.is_begun
        return self.objects.names | ({self.joined_name} if is_joined else set())

    def complete(self) -> None:
        """All is there."""
        self.objects.complete()
        if self.joined is not None:
            self.joined.complete()

    def abort(self) -> None:
        """Leaves nothing, but for what is complete."""
        self.objects.abort()
        if self.joined is not None:
            self.joined.abort()
