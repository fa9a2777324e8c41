"""Lists a folder of a host by SFTP, with all that is in it: folders side by side."""

from __future__ import annotations

import asyncio
import posixpath
import stat
from collections.abc import Sequence
from typing import Any

from distprof.storage.backend import Entry
from distprof.storage.tally import Tally

SIDE_BY_SIDE = 16
"""Folders at a time: the server holds each of them open."""


async def listed(sftp: Any, root: str, tally: Tally) -> dict[str, Entry]:
    """All files at and below a path, by what follows it; "" is the file itself. Nothing where nothing is."""
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


async def _folder(sftp: Any, root: str, inside: str, seen: set[str],
                  tally: Tally) -> tuple[dict[str, Entry], Sequence[str]]:
    """Files and folders of one."""
    from asyncssh import SFTPNoSuchFile

    files, folders, children = dict[str, Entry](), list[str](), list[Any]()
    tally.took(folders=1, depth=inside.count("/"))
    try:
        async for child in sftp.scandir(posixpath.join(root, inside)):
            children.append(child)
            tally.took(objects=1)
    except SFTPNoSuchFile:  # it was removed just now
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


async def _target(sftp: Any, link: str, seen: set[str]) -> Any:
    """What a link leads to; None for nothing, and for a folder where another link has led: they may go in circles."""
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
    """What is known of a file; its time is in seconds, and tells whether it was replaced."""
    modified_ns = int(about.mtime or 0) * 1_000_000_000
    return Entry(size=about.size, modified_ns=modified_ns, tag=str(modified_ns))
