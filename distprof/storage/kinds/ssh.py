"""Accounts reached by SSH: folders are real there, and a file gets its name once it is completely written.

sshfs makes the connection, and asyncssh talks SFTP over it. The file functions of sshfs are not used: they read whole
files if a part is requested, and write in place. Folders are listed in parallel.
"""

from __future__ import annotations

import asyncio
import os
import posixpath
import secrets
import stat
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distprof.storage.backend import LISTING_BYTES, Backend, Entry
from distprof.storage.retrying import Tally, awaited, persistently

if TYPE_CHECKING:
    from asyncssh import SFTPClient

SIDE_BY_SIDE = 16
"""Number of folders listed in parallel: the server keeps each of them open."""


async def listed(sftp: SFTPClient, root: str, tally: Tally) -> dict[str, Entry]:
    """Returns all files at and below a path by what follows it ("" for the file itself); empty if there is none."""
    from asyncssh import SFTPNoSuchFile

    try:
        about = await sftp.stat(root)
    except SFTPNoSuchFile:
        return {}
    if not stat.S_ISDIR(about.permissions):
        return {"": entry_of(about)}
    found, folders, seen = dict[str, Entry](), [""], {await sftp.realpath(root)}
    while folders:
        some, folders = folders[:SIDE_BY_SIDE], folders[SIDE_BY_SIDE:]
        for files, inner in await asyncio.gather(*(_folder(sftp, root, name, seen, tally) for name in some)):
            found |= files
            folders += inner
    return found


async def _folder(sftp: SFTPClient, root: str, inside: str, seen: set[str],
                  tally: Tally) -> tuple[dict[str, Entry], Sequence[str]]:
    """Returns the files and folders in a folder."""
    from asyncssh import SFTPNoSuchFile

    files, folders, children = dict[str, Entry](), list[str](), list[Any]()
    tally.took(folders=1, depth=inside.count("/"))
    try:
        async for child in sftp.scandir(posixpath.join(root, inside)):
            children.append(child)
            tally.took(objects=1)
    except SFTPNoSuchFile:  # it has just been removed
        return {}, []
    for child in children:
        name, about = f"{inside}/{child.filename}".lstrip("/"), child.attrs
        if child.filename in (".", ".."):
            continue
        if stat.S_ISLNK(about.permissions):
            about = await _target(sftp, posixpath.join(root, name), seen)
        if about is not None and stat.S_ISDIR(about.permissions):
            folders.append(name)
        elif about is not None and stat.S_ISREG(about.permissions):
            files[name] = entry_of(about)
    return files, folders


async def _target(sftp: SFTPClient, link: str, seen: set[str]) -> Any:
    """Returns the target of a link; None if missing, or a folder already seen, since links may form cycles."""
    from asyncssh import SFTPError

    try:
        about = await sftp.stat(link)
        if not stat.S_ISDIR(about.permissions):
            return about
        path = await sftp.realpath(link)
    except SFTPError:
        return None
    if path in seen:
        return None
    seen.add(path)
    return about


def entry_of(about: Any) -> Entry:
    """Returns size and time of a file; the time is in whole seconds, and also serves as the tag."""
    modified_ns = int(about.mtime or 0) * 1_000_000_000
    return Entry(size=about.size, modified_ns=modified_ns, tag=str(modified_ns))


OPTIONS: Mapping[str, Any] = {
    "known_hosts": (),  # ~/.ssh/known_hosts; sshfs would trust any host
    "connect_timeout": 30, "keepalive_interval": 15, "keepalive_count_max": 3,  # to detect a host that is gone
    "sftp_client_kwargs": {"path_errors": "surrogateescape"},
}


class Ssh(Backend):
    """One account on one host. A broken connection is replaced with the next request.

    Args:
        scheme: The scheme of its URLs.
        connect: Creates the filesystem of fsspec, which connects.
    """

    def __init__(self, scheme: str, connect: Callable[[], Any]) -> None:
        super().__init__(scheme, None)
        self._connect = connect
        self._connecting = threading.Lock()

    @property
    def filesystem(self) -> Any:
        """The filesystem of fsspec, connected."""
        with self._connecting:
            if self._filesystem is None or self._filesystem.client.is_closed():
                self._filesystem = self._connect()
            return self._filesystem

    def key(self, url: str) -> str:
        """Returns a path from the root of the host, in which no character has a special meaning."""
        return posixpath.normpath("/" + url.partition("://")[2].partition("/")[2])

    def entries(self, url: str) -> dict[str, Entry]:
        """Follows links; raises an error if a folder may not be listed."""
        found: dict[str, Entry] = persistently(url, lambda: self._done(listed, self.key(url), Tally(url)),
                                               num_bytes=LISTING_BYTES)
        return found

    def info(self, url: str) -> Entry:
        async def ask(sftp: SFTPClient) -> Entry:
            return entry_of(await sftp.stat(self.key(url)))

        found: Entry = persistently(url, lambda: self._done(ask))
        return found

    def put_whole(self, url: str, file: Path) -> None:
        async def write(sftp: SFTPClient, there: str) -> None:
            await sftp.put(os.fspath(file), there)

        persistently(url, lambda: self._done(self._placed, self.key(url), write), num_bytes=file.stat().st_size)

    def _get(self, key: str, start: int, end: int, entry: Entry) -> Any:
        async def read(sftp: SFTPClient) -> bytes:
            async with sftp.open(key, "rb") as file:
                content: bytes = await file.read(end - start, start)
            return content

        return self._done(read)

    def _put(self, key: str, content: bytes, *, only_new: bool) -> bool:
        async def write(sftp: SFTPClient, there: str) -> None:
            async with sftp.open(there, "wb") as file:
                await file.write(content)

        return bool(self._done(self._placed, key, write, only_new=only_new))

    async def _placed(self, sftp: SFTPClient, key: str, write: Callable[..., Any], *, only_new: bool = False) -> bool:
        """Writes next to a name, then renames; False if the name has to be new but exists."""
        folder, name = posixpath.split(key)
        beside = f"{folder}/.{name}.{secrets.token_hex(4)}.tmp"
        try:
            await _with_folder(sftp, folder, lambda: write(sftp, beside))
            return await _renamed(sftp, beside, key, only_new=only_new)
        except BaseException:
            with suppress(Exception):
                await sftp.unlink(beside)
            raise

    def _remove(self, key: str) -> None:
        async def remove(sftp: SFTPClient) -> None:
            from asyncssh import SFTPNoSuchFile

            with suppress(SFTPNoSuchFile):
                await sftp.unlink(key)

        self._done(remove)

    def _done(self, work: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        filesystem = self.filesystem

        async def call() -> Any:
            async with filesystem._pool.get() as sftp:
                return await work(sftp, *arguments, **options)

        return awaited(filesystem.loop, call)


async def _with_folder(sftp: SFTPClient, folder: str, write: Callable[[], Any]) -> None:
    """Writes, creating the folder if it does not exist."""
    from asyncssh import SFTPNoSuchFile

    try:
        await write()
    except SFTPNoSuchFile:
        await sftp.makedirs(folder, exist_ok=True)
        await write()


async def _renamed(sftp: SFTPClient, old: str, new: str, *, only_new: bool) -> bool:
    """Renames; False if the name has to be new but exists, which the server checks atomically."""
    from asyncssh import SFTPFailure, SFTPFileAlreadyExists, SFTPOpUnsupported

    if not only_new:
        with suppress(SFTPOpUnsupported):
            await sftp.posix_rename(old, new)
            return True
        await sftp.unlink(new)
    try:
        await sftp.rename(old, new)
    except (SFTPFailure, SFTPFileAlreadyExists):  # the older protocol has no more specific error
        if not only_new or not await sftp.lexists(new):
            raise
        await sftp.unlink(old)
        return False
    return True
