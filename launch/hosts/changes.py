"""Finds what changed in the run directory of a host since the last copy: files of its ranks, of the host, and
summaries."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from distprof.contract import rank_json
from distprof.contract.conditions import HOSTS
from distprof.contract.paths import PARTIAL_SUFFIX, RANK_JSON, STEP_LINES, STUCK_JSON
from distprof.contract.rank_json import RankJson
from distprof.contract.rank_summary import SUMMARIES
from distprof.contract.watch_state import WINDOWS
from distprof.errors import DataError
from distprof.launch.hosts.received_files import RANK_FOLDER
from distprof.launch.hosts.wire import CHUNK_BYTES, Drop, Move, Put

APPENDED = re.compile(rf"(watch-\d+|conditions-\d+)\.bin|{re.escape(STEP_LINES)}")
"""Files that only grow, as long as their inode stays the same."""
FIRST = re.compile(rf"(watch|conditions)-\d+\.bin|{re.escape(STUCK_JSON)}|{re.escape(RANK_JSON)}")
"""Files that a watch reads; they are copied before all others."""
TAIL_BYTES = 64
HERE, WINDOW = "", f"{WINDOWS}/[0-9][0-9][0-9][0-9]/"
AROUND = ("attempt[0-9][0-9][0-9][0-9]/", HERE, f"{WINDOW}attempt[0-9][0-9][0-9][0-9]/", WINDOW)
"""Where rank folders may lie in a run directory. Earlier attempts come first, so that a folder that became part of one
is moved away before its successor is copied."""


@dataclass(slots=True, kw_only=True)
class _File:
    """What was copied of a file."""

    signs: tuple[int, int, int]
    """Inode, size in bytes and modification time in ns of the copied version; zeros if it is not copied completely."""
    copied: int
    """Number of bytes on the first host."""
    tail: bytes = b""
    """The last copied bytes, at most `TAIL_BYTES`: a file that was created again may reuse the old inode."""
    seen: tuple[int, int, int] | None = None
    """`signs` at the last look; a bulk file that changed since then is not copied yet."""


@dataclass(slots=True, kw_only=True)
class _Folder:
    """A folder on the first host."""

    path: str
    """Its path in the run directory of the first host."""
    is_of_rank: bool
    files: dict[str, _File] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One message to the first host about something that changed."""

    said: Put | Move | Drop
    is_bulk: bool
    """Whether it can wait, because no watch reads the file."""
    is_of_rank: bool
    folder: int
    name: str
    signs: tuple[int, int, int] = (0, 0, 0)


class Changes:
    """Finds changes.

    Args:
        run: The run directory.
        stem: Host name and boot id of this host as used in file names. Folders of other hosts on a shared file system
            are copied by those hosts.
        host, boot_id: Host name and boot id of this host.
    """

    def __init__(self, run: Path, stem: str, host: str, boot_id: str) -> None:
        self._run, self._stem, self._mine = run, stem, (host, boot_id)
        self._folders: dict[int, _Folder] = {}
        """By inode, because a folder keeps its inode when it is renamed."""

    def look(self, *, at_end: bool, with_bulk: bool = True) -> Iterator[Change]:
        """Yields all changes; the caller reports each result with `copied` or `differs` before it takes the next one.

        Args:
            at_end: Whether to include bulk files that changed since the last look.
            with_bulk: False yields only what a watch reads, without disturbing another look that is not exhausted.
        """
        for path, folder, is_of_rank in self._found():
            with suppress(OSError):  # renamed in the meantime; the next look finds it
                yield from self._in_folder(path, folder, is_of_rank=is_of_rank, at_end=at_end, with_bulk=with_bulk)

    def copied(self, change: Change) -> None:
        """Records that a change was applied on the first host."""
        one, said = self._folders[change.folder], change.said
        if isinstance(said, Move):
            one.path = said.to
        elif isinstance(said, Drop):
            one.files.pop(change.name, None)
        else:
            end = said.offset + len(said.content)
            file = one.files.setdefault(change.name, _File(signs=(0, 0, 0), copied=0))
            file.copied, file.tail = end, ((file.tail if said.offset else b"") + said.content)[-TAIL_BYTES:]
            if said.is_last:
                file.signs = change.signs

    def differs(self, change: Change, size: int) -> None:
        """Records that the first host has `size` bytes of a file; if these are too many, it is copied again."""
        file = self._folders[change.folder].files.get(change.name)
        if file is not None:
            file.copied, file.signs, file.tail = size, (0, 0, 0), b""

    def forget(self) -> None:
        """Forgets all copies, because another host is now the first one."""
        self._folders = {}

    @property
    def num_ranks(self) -> int:
        """Number of copied rank folders of the last attempt."""
        return sum(one.is_of_rank and "/" not in one.path for one in self._folders.values())

    def _found(self) -> Iterator[tuple[str, Path, bool]]:
        """Yields the folders of this host: path in the run directory, path, and whether it is a rank folder."""
        for around in AROUND:
            for folder in sorted(self._run.glob(f"{around}rank[0-9]*")):
                name = folder.relative_to(self._run).as_posix()
                if RANK_FOLDER.fullmatch(name) and self._is_mine(folder, name):
                    yield name, folder, True
        for around in HERE, WINDOW:
            for folder in (*self._run.glob(f"{around}{HOSTS}/{self._stem}"), *self._run.glob(f"{around}{SUMMARIES}")):
                yield folder.relative_to(self._run).as_posix(), folder, False

    def _is_mine(self, folder: Path, name: str) -> bool:
        with suppress(DataError, OSError):
            known = self._folders.get(folder.stat().st_ino)
            if known is not None and known.path.removesuffix(PARTIAL_SUFFIX) == name.removesuffix(PARTIAL_SUFFIX):
                return True  # hundreds of windows need not be read at each look
            about = rank_json.read(folder / RANK_JSON, RankJson)
            return (about.host, about.boot_id) == self._mine
        return False

    def _in_folder(self, path: str, folder: Path, *, is_of_rank: bool, at_end: bool,
                   with_bulk: bool) -> Iterator[Change]:
        inode = folder.stat().st_ino
        whole = is_of_rank and not path.endswith(PARTIAL_SUFFIX)
        there = f"{path}{PARTIAL_SUFFIX}" if whole else path
        one = self._folders.setdefault(inode, _Folder(path=there, is_of_rank=is_of_rank))
        if one.path.removesuffix(PARTIAL_SUFFIX) != path.removesuffix(PARTIAL_SUFFIX):  # moved to an earlier attempt
            yield Change(said=Move(path=one.path, to=there), is_bulk=False, is_of_rank=True, folder=inode, name="")
        names = {file.name for file in folder.iterdir() if not file.name.startswith(".") and file.is_file()}
        names = {name for name in names if is_of_rank or folder.name != SUMMARIES or name.startswith(self._stem)}
        for name in sorted(names, key=lambda name: (not FIRST.fullmatch(name), name)):
            if not with_bulk and not FIRST.fullmatch(name):
                return
            with suppress(FileNotFoundError):
                yield from self._of_file(one, inode, folder / name, at_end=at_end)
        for name in sorted(one.files.keys() - names):
            yield Change(said=Drop(path=f"{one.path}/{name}"), is_bulk=False, is_of_rank=False, folder=inode, name=name)
        if whole and one.path.endswith(PARTIAL_SUFFIX) and all(
                name in one.files and one.files[name].signs == _signs(folder / name) for name in names):
            yield Change(said=Move(path=one.path, to=path), is_bulk=False, is_of_rank=True, folder=inode, name="")

    def _of_file(self, one: _Folder, inode: int, file: Path, *, at_end: bool) -> Iterator[Change]:
        signs, known = _signs(file), one.files.get(file.name)
        if known is not None and known.signs == signs:
            return
        appends = bool(APPENDED.fullmatch(file.name))
        is_bulk = FIRST.fullmatch(file.name) is None
        if is_bulk and not appends and not at_end:
            known = one.files.setdefault(file.name, _File(signs=(0, 0, 0), copied=0))
            known.seen, before = signs, known.seen
            if before != signs:
                return
        is_same = known is not None and known.signs[0] in (0, signs[0]) and known.copied <= signs[1] and (
            _goes_on(file, known))
        appends = appends and (known is None or is_same)
        begin = known.copied if known is not None and appends else 0
        yield from self._parts(one, inode, file, begin, signs, appends=appends, is_bulk=is_bulk)

    def _parts(self, one: _Folder, inode: int, file: Path, begin: int, signs: tuple[int, int, int], *,
               appends: bool, is_bulk: bool) -> Iterator[Change]:
        with file.open("rb") as source:
            if os.fstat(source.fileno()).st_ino != signs[0]:
                return
            source.seek(begin)
            while True:
                content = source.read(min(CHUNK_BYTES, signs[1] - begin))
                is_last = begin + len(content) >= signs[1] or not content
                said = Put(path=f"{one.path}/{file.name}", offset=begin, content=content, appends=appends,
                           is_last=is_last)
                yield Change(said=said, is_bulk=is_bulk, is_of_rank=one.is_of_rank, folder=inode, name=file.name,
                             signs=signs)
                begin += len(content)
                file_there = one.files.get(file.name)
                if is_last or file_there is None or file_there.copied != begin:  # the last condition: it was refused
                    return


def _goes_on(file: Path, known: _File) -> bool:
    """Returns whether the bytes that were copied last are still at the same offset."""
    with file.open("rb") as source:
        source.seek(known.copied - len(known.tail))
        return source.read(len(known.tail)) == known.tail


def _signs(file: Path) -> tuple[int, int, int]:
    about = file.stat()
    return about.st_ino, about.st_size, about.st_mtime_ns
