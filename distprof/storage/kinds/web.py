"""Servers of the web: folders are pages with links, and not every server can send a part of a file."""

from __future__ import annotations

from typing import Any

from distprof.storage.backend import Backend, Entry
from distprof.storage.faults import Kind, fault_of


class Web(Backend):
    """One host."""

    def _is_file(self, root: str) -> bool:
        try:
            about = self.filesystem.info(root)
        except FileNotFoundError as error:  # which fsspec makes of everything that goes wrong
            if error.__cause__ is None or fault_of(error.__cause__).kind is Kind.MISSING:
                raise
            raise error.__cause__ from None
        return not str(about.get("mimetype", "")).startswith(("text/html", "application/xhtml"))

    def _get(self, key: str, start: int, end: int, entry: Entry) -> Any:
        from fsspec.asyn import sync

        return sync(self.filesystem.loop, self._read, key, start, end)

    async def _read(self, url: str, start: int, end: int) -> bytes:
        """Where the server sends the whole file, what is not asked for is passed over."""
        session = await self.filesystem.set_session()
        options = {key: value for key, value in self.filesystem.kwargs.items() if key != "headers"}
        headers = {**self.filesystem.kwargs.get("headers", {}), "Range": f"bytes={start}-{end - 1}"}
        async with session.get(self.filesystem.encode_url(url), headers=headers, **options) as response:
            response.raise_for_status()
            skipped, content = 0 if response.status == 206 else start, bytearray()
            async for piece in response.content.iter_chunked(1 << 18):
                content += piece[skipped:]
                skipped = max(skipped - len(piece), 0)
                if len(content) >= end - start:
                    break
        return bytes(content[:end - start])
