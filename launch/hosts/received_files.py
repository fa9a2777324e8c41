"""Files received from other hosts, in the run directory of the first: each host can write only its own files."""

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
    """A file as it may be written."""

    path: PurePosixPath
    """In the run directory, without `..`."""
    owned: str
    """What belongs to one host alone: the folder of a rank without `.partial`, the folder of a host, or a file."""


def received_file(path: str, *, stem: str, directory_id: str) -> ReceivedFile:
    """Where a file that a host sends is written.

    Args:
        path: As that host names it.
        stem: Of that host; it sends no folders of other hosts.
        directory_id: Of its run directory. Summaries of two launchers on one machine have the same name: to that of the
            host that sends them this is added.

    Raises:
        DataError: No host sends such a file.
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
    """The folder of a rank.

    Raises:
        DataError: It is none.
    """
    found = RANK_FOLDER.fullmatch(path)
    if found is None or int(found["rank"]) >= MOST_RANKS:
        raise DataError(f"{path!r} is no folder of a rank")
    return ReceivedFile(path=PurePosixPath(path), owned=rank_place(path))


def rank_place(folder: str) -> str:
    """The folder of a rank, whether it is whole or not."""
    return folder.removesuffix(PARTIAL_SUFFIX)


MOST_FILE_BYTES, MOST_HOST_BYTES, MOST_HOST_FILES = 16 << 30, 512 << 30, 200_000
"""Of a file, and of all that a host sends."""
FREE_BYTES = 512 << 20
"""So much stays free on the disk, which the ranks of this host write to as well."""


class ReceivedFiles:
    """The files that one host sends.

    Args:
        run: The run directory of this host.
        stem: Of the host that sends: its name and boot id.
        directory_id: Of its run directory.
        owners: Directory by what was copied from it; shared by all hosts. What is there and not in it is of the ranks
            of this host.
    """

    def __init__(self, run: Path, stem: str, directory_id: str, owners: dict[str, str]) -> None:
        self._run, self._stem, self._directory_id, self._owners = run, stem, directory_id, owners
        self._num_bytes, self._files = 0, set[PurePosixPath]()

    def put(self, said: Put) -> Answer:
        """Writes a part of a file; where bytes to append do not fit, the answer has the size that is there."""
        return self._answer(lambda: self._put(said))

    def move(self, said: Move) -> Answer:
        """Renames the folder of a rank, which is whole now, or of an earlier attempt."""
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
        with suppress(FileNotFoundError):  # a rank of this host moved what an earlier attempt left
            (self._run / old.path).rename(self._run / new.path)
        if new.owned != old.owned:
            self._owners[new.owned] = self._directory_id
            if not self._is_there(old):
                del self._owners[old.owned]
        return Answer()

    def _claimed(self, place: ReceivedFile) -> ReceivedFile:
        """The same, once it is known that it is of this host.

        Raises:
            DataError: It is of another one.
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
        """Makes a folder in the run directory, which is not made again where it was removed.

        Raises:
            DataError: It would lie elsewhere.
        """
        above = [folder, *folder.parents]
        inside = above[:above.index(self._run)]
        if any(one.is_symlink() for one in inside):
            raise DataError("a link is in the way")
        for one in reversed(inside):
            one.mkdir(exist_ok=True)


def _write(path: Path, flags: int, said: Put) -> Answer:
    """Writes a part behind what is there; the size of that, where it does not fit."""
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
    """Takes over what another host asks of the ranks, unless what is asked here is as new.

    Args:
        run: The run directory of this host.
        content: Of the other host's `watch/request.json`.

    Raises:
        OSError: It cannot be written.
    """
    try:
        asked = msgspec.json.decode(content, type=WindowRequest)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False
    try:
        known = msgspec.json.decode(read_small(run / WATCH / REQUEST_JSON), type=WindowRequest)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        known = WindowRequest(number=0, first_step=0, steps="")
    if (asked.number, asked.stacks) <= (known.number, known.stacks) or asked.number < known.number:
        return False
    write_unsynced(run, REQUEST_JSON, content)
    return True
