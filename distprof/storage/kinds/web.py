"""Servers of the web: folders are pages with links, and not every server can send a part of a file.

A server is believed in nothing that would take time or memory without end. Pages are read side by side.
"""

from __future__ import annotations

import base64
import errno
import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any
from urllib.parse import unquote, urlsplit

from distprof.storage.backend import Backend, Entry, entry_of
from distprof.storage.credentials import whole_query
from distprof.storage.faults import LIES, RemoteError
from distprof.storage.retrying import Tally, awaited, persistently
from distprof.storage.stream import requests

_LINK = re.compile(r"""<a\s+(?:[^<>]*?\s)?href\s*=\s*["']([^"'<>]+)""", re.IGNORECASE)
_ADDRESS = re.compile(r"https?://[-a-zA-Z0-9@:%_+.~#?&/=]+")
SIDE_BY_SIDE = 16
"""Folders at a time."""


def listed(page: Callable[[str], str], url: str) -> list[str]:
    """What follows the URL, of all files below it; folders are what links with a slash at their end lead to.

    Args:
        page: Gives the page of a folder, by what follows the URL.
        url: Without a slash at its end.
    """
    tally, files, folders, seen = Tally(url), list[str](), [""], {""}
    while folders:
        some, folders = folders[:SIDE_BY_SIDE], folders[SIDE_BY_SIDE:]
        for inside, text in zip(some, requests().map(page, some), strict=True):
            for link in _links(text, f"{url}/{inside}".rstrip("/")):
                name = f"{inside}/{link}".strip("/")
                if name in seen:
                    continue
                seen.add(name)
                is_folder = link.endswith("/")
                tally.took(objects=not is_folder, folders=is_folder, depth=name.count("/") if is_folder else 0)
                (folders if is_folder else files).append(name)
    return files


def _links(text: str, url: str) -> Iterator[str]:
    """What follows the URL of a page, of links to what is below it."""
    own = urlsplit(url)
    for link in dict.fromkeys((*_ADDRESS.findall(text), *_LINK.findall(text))):
        if link.startswith("http"):
            inside = re.sub("^https?:", "", link).removeprefix(f"//{own.netloc.rpartition('@')[2]}{own.path}/")
            below = not inside.startswith("//")
        elif link.startswith("/"):
            inside, below = link.removeprefix(f"{own.path}/"), link.startswith(f"{own.path}/")
        else:
            inside, below = link.removeprefix("./"), True
        if below and inside.strip("/") and not inside.startswith(("?", "#", "..", "mailto:", "javascript:")):
            yield inside


OPTIONS: Mapping[str, Any] = MappingProxyType({
    "use_listings_cache": False,
    "client_kwargs": {"auto_decompress": False},  # a file is its bytes, and a small answer does not become a large one
})
MOST_PAGE_BYTES = 32 << 20
HTML = ("text/html", "application/xhtml")
NO_HEAD = frozenset((400, 403, 405, 501))
"""Answers of servers that know no HEAD, or sign another method."""


def headers(host: str) -> dict[str, str]:
    """What each request says to a host, which may have user and password in front.

    Of a header aiohttp leaves the password away where another host is redirected to; in a URL it would be in messages.
    """
    before, _, _ = host.rpartition("@")
    said = {"Accept-Encoding": "identity"}
    if before:
        user, _, password = map(unquote, before.partition(":"))
        said["Authorization"] = f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"
    return said


class Web(Backend):
    """One host."""

    def key(self, url: str) -> str:
        """The URL, whose user and password are in a header."""
        return whole_query(url).rstrip("/")

    def entries(self, url: str) -> dict[str, Entry]:
        """The file at a URL, or those that its page links to, and the pages of its folders."""
        about = self._described(url)
        if about is None:
            return {}
        if not about["mimetype"].startswith(HTML):
            return {"": entry_of(about)}
        nothing: Mapping[str, Any] = {}
        found = listed(lambda inside: self._page(url, inside), url)
        return dict(self._named("", dict.fromkeys(found, nothing)))

    def _described(self, url: str) -> Mapping[str, Any] | None:
        """What the server says of a URL; None where nothing is."""
        try:
            return persistently(url, lambda: self._info(self.key(url)))
        except RemoteError as error:
            if error.errno == errno.ENOENT:
                return None
            raise

    def _info(self, key: str) -> Mapping[str, Any]:
        found: Mapping[str, Any] = awaited(self.filesystem.loop, self._head, key)
        return found

    async def _head(self, key: str) -> Mapping[str, Any]:
        async with await self._request("HEAD", key) as response:
            if response.status not in NO_HEAD and "Content-Length" in response.headers:
                return _about(response)
        async with await self._request("GET", key) as response:  # of which no body is read
            return _about(response)

    async def _request(self, method: str, key: str, **more: str) -> Any:
        session = await self.filesystem.set_session()
        options = {name: value for name, value in self.filesystem.kwargs.items() if name != "headers"}
        said = {**self.filesystem.kwargs.get("headers", {}), **more}
        return await session.request(method, self.filesystem.encode_url(key), headers=said, **options)

    def _page(self, url: str, inside: str) -> str:
        """The page of a folder; nothing where there is none."""
        place = f"{url}/{inside}" if inside else url
        key = self.key(url) + (f"/{inside}/" if inside else "")
        get = partial(awaited, self.filesystem.loop, self._text, key, place)
        try:
            return str(persistently(place, get, num_bytes=1 << 20))
        except RemoteError as error:
            if error.errno == errno.ENOENT and inside:  # a link that leads nowhere
                return ""
            raise

    async def _text(self, key: str, place: str) -> str:
        content = bytearray()
        async with await self._request("GET", key) as response:
            response.raise_for_status()
            if not response.headers.get("Content-Type", HTML[0]).startswith(HTML):
                return ""
            if response.headers.get("Content-Encoding", "identity") != "identity":
                raise RemoteError(errno.EIO, "its page of links is compressed, although distprof did not request "
                                             "that", place, LIES)
            async for piece in response.content.iter_chunked(1 << 16):
                content += piece
                if len(content) > MOST_PAGE_BYTES:
                    raise RemoteError(errno.EIO, f"its page of links has over {MOST_PAGE_BYTES >> 20} MB", place, LIES)
        return content.decode(errors="replace")

    def _get(self, key: str, start: int, end: int, entry: Entry) -> Any:
        return awaited(self.filesystem.loop, self._read, key, start, end)

    async def _read(self, url: str, start: int, end: int) -> bytes:
        """Where the server sends the whole file, what is not asked for is passed over."""
        async with await self._request("GET", url, Range=f"bytes={start}-{end - 1}") as response:
            response.raise_for_status()
            is_part = response.status == 206
            if is_part and not response.headers.get("Content-Range", "").strip().startswith(f"bytes {start}-"):
                raise ConnectionError(f"the server sent a range other than bytes {start} to {end - 1}")
            skipped, content = 0 if is_part else start, bytearray()
            async for piece in response.content.iter_chunked(1 << 18):
                content += piece[skipped:]
                skipped = max(skipped - len(piece), 0)
                if len(content) >= end - start:
                    break
        return bytes(content[:end - start])


def _about(response: Any) -> Mapping[str, Any]:
    """Of an answer: a server that compresses all the same tells a length that is no file's, which reading finds out."""
    response.raise_for_status()
    said = response.headers
    return {"size": response.content_length, "mimetype": said.get("Content-Type", "").strip().lower(),
            "ETag": said.get("ETag", "")}
