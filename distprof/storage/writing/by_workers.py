"""What workers write of a folder in a storage, without sending it to its owner: one object of all, and one of each."""

from __future__ import annotations

from dataclasses import dataclass

from distprof.storage.writing.joined import Joined
from distprof.storage.writing.whole_objects import WholeObjects


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
