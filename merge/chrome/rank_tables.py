"""Writes a folder of a merge with a table of each rank, which workers write there or store elsewhere themselves."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from distprof.merge.chrome.rank_events import RankCounts
from distprof.merge.chrome.rank_plan import RankPlan
from distprof.merge.chrome.work_folder import Attempt, make_work_folder

if TYPE_CHECKING:
    from distprof.storage.writing.by_workers import Place, WholeObjects


class RankTables:
    """Implements an `Output` of such tables, except for `rank_writer`."""

    def __init__(self, folder: Path, name: str, objects: WholeObjects | None) -> None:
        """Writes nothing yet.

        Args:
            folder: Folder of the merge.
            name: Name of the folder in it.
            objects: Where workers store the tables; None: in the folder.
        """
        self._merge, self._name, self._objects = folder, name, objects

    def begin(self) -> None:
        if self._objects is None:
            (self._merge / self._name).mkdir()
        self._work = make_work_folder(self._merge)

    def where(self, plan: RankPlan) -> tuple[Path, Path, Place | None]:
        """Returns the path of a rank's table, the folder where it is made, and the place where it is stored instead."""
        name = self._file(plan)
        return self._merge / name, self._work, None if self._objects is None else self._objects.place(name)

    def add(self, plan: RankPlan, counts: RankCounts) -> None:
        """Registers a table that was stored elsewhere; in a folder it is already complete."""
        if self._objects is not None and (tags := counts.objects.get(self._file(plan))) is not None:
            self._objects.add(self._file(plan), tags)

    def end(self, counts: Sequence[RankCounts]) -> None:
        """Does nothing: all tables are complete."""

    def _file(self, plan: RankPlan) -> str:
        return f"{self._name}/rank{plan.rank:05d}.parquet"


def keep_table(attempt: Attempt, place: Place | None, counts: RankCounts) -> None:
    """Gives a finished file its name, or stores it elsewhere and notes that in the counts."""
    if place is None:
        attempt.keep()
    else:
        counts.objects = {**counts.objects, place.name: place.put(attempt.file)}
