"""Which files one host may write into the run directory of another, and under which names."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePosixPath

from distprof.contract.conditions import HOSTS
from distprof.contract.paths import PARTIAL_SUFFIX
from distprof.contract.rank_summary import SUMMARIES
from distprof.contract.run_json import MOST_RANKS
from distprof.contract.watch_state import WINDOWS
from distprof.errors import DataError

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
    """Where a file is written that a host brings.

    Args:
        path: As that host names it.
        stem: Of that host; it brings no folders of other hosts.
        directory_id: Of its run directory. Summaries of two launchers on one machine have the same name: to that of the
            host that brings them this is added.

    Raises:
        DataError: No host brings such a file.
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
