"""The folders of a run's ranks as they appear, are completed and are replaced; and the steps their ranks are in."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from distprof.contract import rank_json
from distprof.contract.paths import RANK_FOLDER, RANK_JSON
from distprof.contract.rank_json import RankJson
from distprof.errors import DataError
from distprof.merge.watch.pieces import PATTERN, Piece, RankReader
from distprof.process.identity import boot_id
from distprof.storage.places import remote

OPENED_EVERY = 5
"""Files that seem unchanged are nevertheless opened at every fifth look."""
LOCAL_EVERY_S = 5.0
"""Time between two searches for ranks on this machine, which may be restarted."""


@dataclass(slots=True, kw_only=True)
class _Rank:
    """A rank whose folder was found."""

    rank: int
    host: str
    inode: int
    """Inode of the folder, which a rename does not change; 0 for remote folders, which have none."""
    reader: RankReader
    last: Path | None = None
    """The file that was modified last."""
    seen: tuple[int, int] | None = None
    """Modification time of the folder, in ns, and size of `last`, when they were last read."""
    unread: int = 0
    """Number of looks without change since the files were last opened."""

    def news(self) -> Piece | None:
        """Reads what was appended; None if nothing was.

        Files are opened if something seems changed, and every few looks: a file server may report sizes late.
        """
        self.unread += 1
        if self.unread < OPENED_EVERY and self.seen is not None and self.seen == self._signs():
            return None
        files = list(self.reader.folder.glob(PATTERN))
        self.last = max(files, key=lambda file: file.stat().st_mtime_ns, default=None)
        self.seen, self.unread = self._signs(), 0
        piece = self.reader.new()
        return piece if len(piece.columns["first_step"]) or piece.samples or piece.notes else None

    def _signs(self) -> tuple[int, int] | None:
        if self.last is None:
            return None
        folder = self.reader.folder
        return folder.stat().st_mtime_ns, (folder / self.last.name).stat().st_size


@dataclass(frozen=True, slots=True, kw_only=True)
class News:
    """What a rank wrote since the last look."""

    rank: int
    host: str
    piece: Piece


class RankFolders:
    """Finds the folders of ranks, and reads what they append.

    Args:
        run: The run directory. Nothing is written to it.
    """

    def __init__(self, run: Path) -> None:
        self.attempt = 0
        """The latest attempt that was seen: how often torchrun had restarted the job."""
        self._run = run
        self._ranks: dict[int, _Rank] = {}

    def look(self) -> list[News]:
        """Reads what is new on all ranks; if a later attempt began, all of it, and nothing of earlier ones.

        A rank without a `rank.json` is left for a later look.
        """
        for number, folder, inode in self._found():
            self._take(number, folder, inode)
        found = []
        for one in self._ranks.values():
            with suppress(OSError):  # the folder was renamed meanwhile, or removed
                if (piece := one.news()) is not None:
                    found.append(News(rank=one.rank, host=one.host, piece=piece))
        return found

    @property
    def hosts(self) -> dict[int, str]:
        """Host name of each rank that was found."""
        return {one.rank: one.host for one in self._ranks.values()}

    def _take(self, number: int, folder: Path, inode: int) -> None:
        known = self._ranks.get(number)
        if known is not None and known.inode == inode:
            known.reader.folder = folder  # renamed, as the rank has finished recording
            return
        try:
            about = rank_json.read(folder / RANK_JSON, RankJson)
        except DataError:  # the file is not written yet, or damaged
            return
        if about.attempt < self.attempt:
            return
        if about.attempt > self.attempt:
            self.attempt, self._ranks = about.attempt, {}
        self._ranks[number] = _Rank(rank=number, host=about.host, inode=inode, reader=RankReader(folder))

    def _found(self) -> Iterator[tuple[int, Path, int]]:
        """Yields rank, folder and inode of each; of two folders of a rank, the one that is still being written."""
        found: dict[int, tuple[Path, int]] = {}
        for name, inode in sorted(self._entries()):
            fits = RANK_FOLDER.fullmatch(name)
            if fits is not None:
                found[int(fits[1])] = (self._run / name, inode)
        for number, (folder, inode) in found.items():
            yield number, folder, inode

    def _entries(self) -> list[tuple[str, int]]:
        try:
            if remote(self._run) is not None:
                return [(child.name, 0) for child in self._run.iterdir()]
            with os.scandir(self._run) as entries:
                return [(entry.name, entry.inode()) for entry in entries]
        except OSError:  # the run directory was removed
            return []


class LocalRanks:
    """The processes of the ranks on this machine.

    Args:
        run: The run directory.
    """

    def __init__(self, run: Path) -> None:
        self._run, self._due_s = run, 0.0
        self._boot_id, self._host = boot_id(), socket.gethostname()
        self._pids: dict[int, int] = {}
        self._attempt = 0
        self.about: RankJson | None = None
        """`rank.json` of one of these ranks; None until there is one."""

    def __call__(self) -> dict[int, int]:
        """Returns the process id of each rank, at most `LOCAL_EVERY_S` old."""
        if time.monotonic() >= self._due_s:
            self._due_s = time.monotonic() + LOCAL_EVERY_S
            # containers of one machine count as different hosts, although their boot id is the same
            here = [about for about in self._every() if about.pid > 0 and (about.boot_id, about.host) == (
                self._boot_id, self._host)]
            attempt = max((about.attempt for about in here), default=self._attempt)
            kept = self._pids if attempt == self._attempt else {}  # also ranks whose folders are gone
            self._attempt = attempt
            self._pids = kept | {about.rank: about.pid for about in here if about.attempt == attempt}
            self.about = here[0] if here else self.about
        return self._pids

    def _every(self) -> Iterator[RankJson]:
        for path in self._run.glob(f"rank*/{RANK_JSON}"):
            with suppress(DataError, OSError):  # the file is not written yet, or the folder was renamed
                yield rank_json.read(path, RankJson)


MOST_RANKS = 16
"""Most ranks whose files are read to find the current step: all ranks of a job are in about the same one."""
RECENT_NS = 60_000_000_000
"""The step time is estimated from the steps that ended within this time."""
FAST = 0.1
"""Quantile of their step times: a fast step, so that the step of a request is not passed earlier than predicted."""
CLOCKS_S = 5.0
"""Clocks of two hosts are assumed to differ by no more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LatestStep:
    """The last step that is known to have ended."""

    step: int
    age_s: float
    """Upper bound of the time since then."""
    step_s: float
    """Duration of a fast step."""

    @property
    def now(self) -> int:
        """Latest step that may have ended by now."""
        return self.step + int(self.age_s / self.step_s)


def rank_folders(run: Path) -> list[Path]:
    """Returns the folders of ranks in a run directory, sorted; they end in `.partial` while the rank still records."""
    return sorted(child for child in run.iterdir() if RANK_FOLDER.fullmatch(child.name))


def latest_step(run: Path) -> LatestStep | None:
    """Returns the latest step of a job; None if no rank has recorded a step after its passes."""
    found = [one for folder in _some(rank_folders(run)) if (one := _of_rank(folder)) is not None]
    if not found:
        return None
    return LatestStep(step=max(one.step for one in found), age_s=min(one.age_s for one in found),
                      step_s=float(np.median([one.step_s for one in found])))


def _some(folders: list[Path]) -> list[Path]:
    """Returns the first and the last ones of more than `MOST_RANKS`."""
    half = MOST_RANKS // 2
    return folders if len(folders) <= MOST_RANKS else [*folders[:half], *folders[-half:]]


def _of_rank(folder: Path) -> LatestStep | None:
    rows = RankReader(folder).new().columns
    ends_ns, steps_ns = rows["end_ns"], rows["span_ns"] / rows["num_steps"]
    if not len(ends_ns):
        return None
    step, recent = int(rows["first_step"][-1] + rows["num_steps"][-1] - 1), steps_ns[ends_ns >= ends_ns[-1] - RECENT_NS]
    age_s = max(time.time_ns() - int(ends_ns[-1]), 0) / 1e9
    return LatestStep(step=step, age_s=age_s if _is_here(folder) else max(age_s, CLOCKS_S),
                      step_s=max(float(np.quantile(recent, FAST)) / 1e9, 1e-6))


def _is_here(folder: Path) -> bool:
    try:
        return rank_json.read(folder / RANK_JSON, RankJson).host == socket.gethostname()
    except DataError:
        return False
