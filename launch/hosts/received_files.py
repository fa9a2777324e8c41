"""Writes files received from other hosts to the run directory of the first host; each host can write only its own."""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import msgspec

from distprof.contract.conditions import HOSTS
from distprof.contract.paths import PARTIAL_SUFFIX
from distprof.contract.rank_summary import SUMMARIES
from distprof.contract.run_json import MOST_RANKS
from distprof.contract.watch_state import REQUEST_JSON, WATCH, WINDOWS, WindowRequest, write_unsynced
from distprof.errors import DataError
from distprof.files import read_small
from distprof.launch.hosts.wire import Answer, Drop, Move, Put

_NAME = r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}"
_OF_RUN = rf"(?P<window>{WINDOWS}/\d{{4}}/)?(?P<attempt>attempt\d{{4}}/)?"
RANK_FOLDER = re.compile(rf"{_OF_RUN}rank(?P<rank>\d{{5,7}})(?P<partial>{re.escape(PARTIAL_SUFFIX)})?")
RANK_FILE = re.compile(rf"(?P<folder>{RANK_FOLDER.pattern})/(?P<name>{_NAME})")
HOST_FILE = re.compile(rf"(?P<folder>(?:{WINDOWS}/\d{{4}}/)?{HOSTS}/(?P<stem>{_NAME}))/(?P<name>{_NAME})")
SUMMARY_FILE = re.compile(rf"(?P<folder>(?:{WINDOWS}/\d{{4}}/)?{SUMMARIES})/(?P<name>{_NAME})")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedFile:
    """A file that a host may write."""

    path: PurePosixPath
    """Relative to the run directory, without `..`."""
    owned: str
    """The unit that belongs to a single host: a rank folder without `.partial`, a host folder, or a summary file."""


def received_file(path: str, *, stem: str, directory_id: str) -> ReceivedFile:
    """Returns where to write a file that another host sends.

    Args:
        path: Path as named by the other host.
        stem: Stem of the other host; it may only send its own host folder.
        directory_id: Id of its run directory. It is added to names of summaries, because two launchers on one machine
            use the same names.

    Raises:
        DataError: A host may not send such a file.
    """
    if (found := RANK_FILE.fullmatch(path)) is not None and int(found["rank"]) < MOST_RANKS:
        return ReceivedFile(path=PurePosixPath(path), owned=rank_place(found["folder"]))
    if (found := HOST_FILE.fullmatch(path)) is not None and found["stem"] == stem:
        return ReceivedFile(path=PurePosixPath(path), owned=found["folder"])
    if (found := SUMMARY_FILE.fullmatch(path)) is not None and found["name"].startswith(stem):
        first, dot, rest = found["name"].rpartition(".")
        named = PurePosixPath(found["folder"]) / f"{first}-{directory_id}{dot}{rest}"
        return ReceivedFile(path=named, owned=str(named))
    raise DataError(f"a host may not send a file {path!r}")


def received_folder(path: str) -> ReceivedFile:
    """Returns the rank folder of a path.

    Raises:
        DataError: The path is not a rank folder.
    """
    found = RANK_FOLDER.fullmatch(path)
    if found is None or int(found["rank"]) >= MOST_RANKS:
        raise DataError(f"{path!r} is no folder of a rank")
    return ReceivedFile(path=PurePosixPath(path), owned=rank_place(path))


def rank_place(folder: str) -> str:
    """Returns the path of a rank folder without `.partial`."""
    return folder.removesuffix(PARTIAL_SUFFIX)


MOST_FILE_BYTES, MOST_HOST_BYTES, MOST_HOST_FILES = 16 << 30, 512 << 30, 200_000
"""Maximum size of a file, and of all that a host sends; maximum number of its files."""
FREE_BYTES = 512 << 20
"""Received files leave this many bytes of the disk free, because ranks of this host write to it as well."""


class ReceivedFiles:
    """The files that a host sends, over one connection or several.

    Args:
        run: The run directory of this host.
        stem: Host name and boot id of the sending host.
        directory_id: Id of the run directory of the sending host.
        owners: `owned` -> id of the run directory it was copied from; shared by all hosts. What exists without being
            listed was recorded by ranks of this host.
    """

    def __init__(self, run: Path, stem: str, directory_id: str, owners: dict[str, str]) -> None:
        self._run, self._stem, self._directory_id, self._owners = run, stem, directory_id, owners
        self._num_bytes, self._files = 0, set[PurePosixPath]()

    def put(self, said: Put) -> Answer:
        """Writes part of a file; if its offset is not the end of the existing file, the answer has that file's size."""
        return self._answer(lambda: self._put(said))

    def move(self, said: Move) -> Answer:
        """Renames a rank folder that is complete, or belongs to an earlier attempt."""
        return self._answer(lambda: self._move(said))

    def drop(self, said: Drop) -> Answer:
        """Removes a file."""
        def drop() -> Answer:
            place = self._claimed(received_file(said.path, stem=self._stem, directory_id=self._directory_id))
            (self._run / place.path).unlink(missing_ok=True)
            return Answer()

        return self._answer(drop)

    def _answer(self, act: Callable[[], Answer]) -> Answer:
        try:
            return act()
        except DataError as error:
            return Answer(refused=str(error.args[0]))
        except OSError as error:
            return Answer(refused=f"cannot write there: {error.strerror or error}")

    def _put(self, said: Put) -> Answer:
        place = self._claimed(received_file(said.path, stem=self._stem, directory_id=self._directory_id))
        self._check_sizes(place, said)
        path = self._run / place.path
        self._make(path.parent)
        if said.appends:
            return self._append(path, said)
        temporary = path.with_name(f".{path.name}.copied")
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | (0 if said.offset else os.O_TRUNC)
        answer = _write(temporary, flags, said)
        if answer.size is None and said.is_last:
            temporary.replace(path)
        return answer

    def _append(self, path: Path, said: Put) -> Answer:
        return _write(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, said)

    def _move(self, said: Move) -> Answer:
        old, new = received_folder(said.path), received_folder(said.to)
        if self._owners.get(old.owned) != self._directory_id:
            raise DataError(f"{said.path} does not belong to that host")
        if new.owned != old.owned and not (self._run / new.path).is_dir():
            self._claimed(new)
        self._make((self._run / new.path).parent)
        with suppress(FileNotFoundError):  # a rank of this host has already moved the earlier attempt
            (self._run / old.path).rename(self._run / new.path)
        if new.owned != old.owned:
            self._owners[new.owned] = self._directory_id
            if not self._is_there(old):
                del self._owners[old.owned]
        return Answer()

    def _claimed(self, place: ReceivedFile) -> ReceivedFile:
        """Claims a place for the sending host and returns it.

        Raises:
            DataError: It belongs to another host.
        """
        holder = self._owners.get(place.owned)
        if holder is None:
            if self._is_there(place):
                raise DataError(f"{place.owned} is recorded on this host")
            self._owners[place.owned] = self._directory_id
        elif holder != self._directory_id:
            raise DataError(f"{place.owned} belongs to another host")
        return place

    def _is_there(self, place: ReceivedFile) -> bool:
        return any((self._run / f"{place.owned}{end}").exists() for end in ("", PARTIAL_SUFFIX))

    def _check_sizes(self, place: ReceivedFile, said: Put) -> None:
        self._num_bytes += len(said.content)
        self._files.add(place.path)
        if (said.offset + len(said.content) > MOST_FILE_BYTES or self._num_bytes > MOST_HOST_BYTES
                or len(self._files) > MOST_HOST_FILES):
            raise DataError("this is more than a host may send")
        if shutil.disk_usage(self._run).free - len(said.content) < FREE_BYTES:
            raise DataError("the disk there is full")

    def _make(self, folder: Path) -> None:
        """Creates a folder and its parents in the run directory, but not the run directory itself.

        Raises:
            DataError: A symbolic link would lead elsewhere.
        """
        above = [folder, *folder.parents]
        inside = above[:above.index(self._run)]
        if any(one.is_symlink() for one in inside):
            raise DataError("a link is in the way")
        for one in reversed(inside):
            one.mkdir(exist_ok=True)


def _write(path: Path, flags: int, said: Put) -> Answer:
    """Appends part of a file; if the offset is not the end of the file, the answer has the file's size."""
    number = os.open(path, flags | os.O_CLOEXEC, 0o666)
    try:
        size = os.fstat(number).st_size
        if size != said.offset:
            return Answer(size=size)
        written = os.pwrite(number, said.content, size)
        if written < len(said.content):
            os.ftruncate(number, size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    finally:
        os.close(number)
    return Answer()


def take_request(run: Path, content: bytes) -> bool:
    """Adopts the recording request of another host if it is newer than that of this host.

    Args:
        run: The run directory of this host.
        content: Content of the other host's `watch/request.json`.

    Returns:
        Whether it was adopted.

    Raises:
        OSError: The request cannot be written.
    """
    try:
        asked = msgspec.json.decode(content, type=WindowRequest)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False
    try:
        known = msgspec.json.decode(read_small(run / WATCH / REQUEST_JSON), type=WindowRequest)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        known = WindowRequest(number=0, first_step=0, steps="")
    if (asked.number, asked.stacks) <= (known.number, known.stacks):
        return False
    write_unsynced(run, REQUEST_JSON, content)
    return True
