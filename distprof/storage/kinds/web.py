"""Web servers: folders are pages with links, and not every server can send a part of a file.

Nothing that a server claims can make a request take unlimited time or memory. Pages are read in parallel.
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
"""Number of folders read in parallel."""


def listed(page: Callable[[str], str], url: str) -> list[str]:
    """Returns the paths of all files below a URL, relative to it; links that end with a slash lead to folders.

    Args:
        page: Returns the page of a folder, given its path relative to the URL.
        url: URL without a slash at its end.
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
    """Yields the paths, relative to a page's URL, of links to what is below it."""
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
    "client_kwargs": {"auto_decompress": False},  # a file is its bytes; a small answer cannot expand into a large one
})
MOST_PAGE_BYTES = 32 << 20
HTML = ("text/html", "application/xhtml")
NO_HEAD = frozenset((400, 403, 405, 501))
"""Status codes of servers that do not support HEAD, or whose signature covers another method."""


def headers(host: str) -> dict[str, str]:
    """Returns the headers of each request to a host, which may be preceded by user and password.

    aiohttp drops the password from a header when redirected to another host; in a URL it would appear in messages.
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
        """Returns the URL; its user and password are sent in a header."""
        return whole_query(url).rstrip("/")

    def entries(self, url: str) -> dict[str, Entry]:
        """Returns the file at a URL, or the files that its page and the pages of its folders link to."""
        about = self._described(url)
        if about is None:
            return {}
        if not about["mimetype"].startswith(HTML):
            return {"": entry_of(about)}
        nothing: Mapping[str, Any] = {}
        found = listed(lambda inside: self._page(url, inside), url)
        return dict(self._named("", dict.fromkeys(found, nothing)))

    def _described(self, url: str) -> Mapping[str, Any] | None:
        """Returns what the server reports about a URL; None if there is nothing."""
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
        async with await self._request("GET", key) as response:  # its body is not read
            return _about(response)

    async def _request(self, method: str, key: str, **more: str) -> Any:
        session = await self.filesystem.set_session()
        options = {name: value for name, value in self.filesystem.kwargs.items() if name != "headers"}
        said = {**self.filesystem.kwargs.get("headers", {}), **more}
        return await session.request(method, self.filesystem.encode_url(key), headers=said, **options)

    def _page(self, url: str, inside: str) -> str:
        """Returns the page of a folder; '' if there is none."""
        place = f"{url}/{inside}" if inside else url
        key = self.key(url) + (f"/{inside}/" if inside else "")
        get = partial(awaited, self.filesystem.loop, self._text, key, place)
        try:
            return str(persistently(place, get, num_bytes=1 << 20))
        except RemoteError as error:
            if error.errno == errno.ENOENT and inside:  # a broken link
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
        """Reads a range; if the server sends the whole file instead, the rest is skipped."""
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
    """Converts an answer; if a server compresses anyway, its length is wrong, which reading detects."""
    response.raise_for_status()
    said = response.headers
    return {"size": response.content_length, "mimetype": said.get("Content-Type", "").strip().lower(),
            "ETag": said.get("ETag", "")}
