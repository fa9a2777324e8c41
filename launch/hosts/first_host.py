"""The server on the first host of a job: receives files from other hosts, and sends them the state of the watch."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import ssl
import threading
import time
from collections.abc import Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distprof.contract.watch_state import REQUEST_JSON, STATE_JSON, WATCH
from distprof.errors import DataError
from distprof.files import MOST_LINES_BYTES, read_small
from distprof.launch.hosts.received_files import ReceivedFiles, take_request
from distprof.launch.hosts.wire import (
    HEAD,
    MAGIC,
    MOST_SAID,
    NONCE_BYTES,
    PROOF_BYTES,
    Answer,
    Ask,
    Beat,
    Done,
    Drop,
    Hello,
    Move,
    Put,
    Said,
    Seals,
    encoded,
    is_proof,
    length_in,
    proof,
    said_in,
)
from distprof.launch.watching.claim import CLAIM_JSON
from distprof.launch.watching.watcher_protocol import listening

PROVES_S, SILENT_S = 10.0, 30.0
"""Timeouts in seconds: for a new connection to authenticate itself, and for silence after which a host counts as
gone."""
SHUTDOWN_S = 1.0
UNPROVEN = 64
"""Maximum number of simultaneous connections that are not authenticated yet; more are closed at once."""
TOLD = {CLAIM_JSON: 2.0, REQUEST_JSON: 0.5, STATE_JSON: 2.0}
"""Files of `watch/` that are sent to other hosts -> shortest interval in seconds."""


@dataclass(slots=True, kw_only=True)
class OtherHost:
    """Another host that authenticated itself."""

    host: str
    node: int
    is_shared: bool
    """Whether it records into the run directory of the first host."""
    seen_s: float
    """When its last message arrived, in seconds of the monotonic clock."""
    received_s: float = 0.0
    """When it last sent part of a file, likewise; 0: never."""
    connected: int = 0
    done: Done | None = None


class FirstHost:
    """A server in its own thread.

    Args:
        run: The run directory.
        directory_id: The id of that directory.
        context: TLS context; None: connections are not encrypted.
    """

    def __init__(self, run: Path, directory_id: str, context: ssl.SSLContext | None = None) -> None:
        self.token = secrets.token_hex(32)
        self.hosts: dict[int, OtherHost] = {}
        """By node number in the rendezvous."""
        self._run, self._directory_id, self._context = run, directory_id, context
        self._owners: dict[str, str] = {}
        self._received: dict[tuple[str, str], ReceivedFiles] = {}
        """By stem and directory id: it counts what a host sends over all its connections."""
        self._unproven = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="distprof hosts", daemon=True)

    @property
    def places(self) -> list[str]:
        """What was received: rank folders without `.partial`, host folders and summary files."""
        return sorted(self._owners)

    def listen(self, host: str, port: int) -> int:
        """Starts the server and returns its port.

        Raises:
            OSError: The port is in use.
        """
        server = listening(host, port)
        self._thread.start()
        handshake_s, shutdown_s = (None, None) if self._context is None else (PROVES_S, SHUTDOWN_S)
        self._call(asyncio.start_server(self._connected, sock=server, ssl=self._context, limit=1 << 20,
                                        ssl_handshake_timeout=handshake_s, ssl_shutdown_timeout=shutdown_s))
        return int(server.getsockname()[1])

    def _call(self, what: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(what, self._loop).result(PROVES_S)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Handles one connection from start to end; an error ends only this connection."""
        try:
            if self._unproven >= UNPROVEN:
                return
            self._unproven += 1
            try:
                mine, theirs = await asyncio.wait_for(self._prove(reader, writer), PROVES_S)
            finally:
                self._unproven -= 1
            await self._serve(_Talk(reader, writer, mine, theirs))
        except (OSError, DataError, EOFError, TimeoutError):  # gone, or not part of this job
            return
        finally:
            with contextlib.suppress(Exception):
                writer.close()

    async def _prove(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> tuple[Seals, Seals]:
        """Checks that the other side knows the token, and proves that this side does.

        Raises:
            DataError: The other side does not know it.
        """
        mine = secrets.token_bytes(NONCE_BYTES)
        writer.write(MAGIC + mine)
        theirs = await reader.readexactly(NONCE_BYTES)
        given = await reader.readexactly(PROOF_BYTES)
        if not is_proof(given, self.token, "other host", mine, theirs):
            raise DataError("a wrong token")
        writer.write(proof(self.token, "first host", mine, theirs))
        return (Seals(self.token, "first host", mine, theirs), Seals(self.token, "other host", mine, theirs))

    async def _serve(self, talk: _Talk) -> None:
        hello = await talk.heard(PROVES_S)
        if not isinstance(hello, Hello):
            raise DataError("no greeting")
        is_shared = hello.directory_id == self._directory_id
        one = self.hosts.get(hello.node)
        if one is None or one.host != hello.host:
            one = self.hosts[hello.node] = OtherHost(host=hello.host, node=hello.node, is_shared=is_shared,
                                                     seen_s=time.monotonic())
        one.connected, one.done = one.connected + 1, None
        files = self._received.setdefault((hello.stem, hello.directory_id), ReceivedFiles(
            self._run, hello.stem, hello.directory_id, self._owners))
        told: dict[str, tuple[float, int]] = {}
        try:
            await talk.say(Answer(is_shared=is_shared, place=os.fspath(self._run)))
            while True:
                said = await talk.heard(SILENT_S)
                one.seen_s = time.monotonic()
                await talk.say(self._answer(said, one, files, told))
        finally:
            one.connected -= 1

    def _answer(self, said: Said, one: OtherHost, files: ReceivedFiles, told: dict[str, tuple[float, int]]) -> Answer:
        if isinstance(said, Beat):
            return Answer(files=self._news(told))
        if isinstance(said, Ask):
            with contextlib.suppress(OSError):
                take_request(self._run, said.content)
        elif isinstance(said, Done):
            one.done = said
        elif one.is_shared:
            return Answer(refused="it is there already")
        elif isinstance(said, Put):
            one.received_s = time.monotonic()
            return files.put(said)
        elif isinstance(said, Move):
            return files.move(said)
        elif isinstance(said, Drop):
            return files.drop(said)
        return Answer()

    def _news(self, told: dict[str, tuple[float, int]]) -> dict[str, bytes]:
        """Returns the contents, by name, of the files of the watch that changed since a host last received them."""
        found = {}
        for name, every_s in TOLD.items():
            last_s, changed_ns = told.get(name, (0.0, 0))
            if time.monotonic() - last_s < every_s:
                continue
            with contextlib.suppress(OSError):
                now_ns = (self._run / WATCH / name).stat().st_mtime_ns
                if now_ns != changed_ns:
                    found[name] = read_small(self._run / WATCH / name, MOST_LINES_BYTES)
                    told[name] = time.monotonic(), now_ns
        return found


class _Talk:
    """An authenticated connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, mine: Seals, theirs: Seals) -> None:
        self._reader, self._writer, self._mine, self._theirs = reader, writer, mine, theirs

    async def heard(self, patience_s: float) -> Said:
        """Returns the next message, which must arrive completely within `patience_s` seconds.

        Raises:
            TimeoutError: It did not arrive in time.
            EOFError: The connection was closed.
            DataError: It is not a valid message, or was changed in transit.
        """
        return said_in(await asyncio.wait_for(self._next(), patience_s))

    async def _next(self) -> bytes:
        head = await self._reader.readexactly(HEAD.size)
        return self._theirs.opened(head, await self._reader.readexactly(length_in(head, MOST_SAID)))

    async def say(self, answer: Answer) -> None:
        """Sends an answer.

        Raises:
            OSError: The connection broke, or the host did not receive it within `SILENT_S`.
        """
        self._writer.write(self._mine.sealed(encoded(answer)))
        await asyncio.wait_for(self._writer.drain(), SILENT_S)
