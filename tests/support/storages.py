"""Servers of all kinds of storage except S3, which has its own tests, with a common interface."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from support import azure_server, gcs_server, ssh_server
from support.missing import missing

OURS = ("AZURE_", "STORAGE_EMULATOR", "GOOGLE_", "SSH_")


@dataclass(frozen=True, kw_only=True)
class Storage:
    """A place for the objects of one test on a running server."""

    url: str
    environ: Mapping[str, str]
    """Environment variables that make a process a client."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options with which `filesystem` connects."""
    folder: Path | None = None
    """Local folder with the objects, if the server uses one."""

    def filesystem(self) -> Any:
        """Returns an fsspec filesystem that is independent of those of distprof."""
        import fsspec

        if self.folder is not None:
            return fsspec.filesystem("file")
        scheme = self.url.partition("://")[0]
        return fsspec.filesystem(scheme, skip_instance_cache=True, use_listings_cache=False, **self.options)

    def _key(self, url: str) -> str:
        assert url.startswith(self.url)
        return f"{self.folder}{url.removeprefix(self.url)}" if self.folder is not None else url.partition("://")[2]

    def put(self, folder: Path, url: str) -> str:
        """Uploads a folder and returns its URL."""
        there = self.filesystem()
        for file in sorted(folder.rglob("*")):
            if file.is_file():
                key = f"{self._key(url)}/{file.relative_to(folder).as_posix()}"
                if self.folder is not None:
                    there.makedirs(there._parent(key), exist_ok=True)
                there.pipe_file(key, file.read_bytes())
        return url

    def objects(self, url: str) -> dict[str, bytes]:
        """Returns path relative to a URL -> content."""
        there, key = self.filesystem(), self._key(url)
        if not there.exists(key):
            return {}
        return {name.removeprefix(key).removeprefix("/"): there.cat_file(name) for name in there.find(key)}


def use(monkeypatch: pytest.MonkeyPatch, environ: Mapping[str, str]) -> None:
    """Makes this process a client of a server."""
    from distprof.storage.kinds.schemes import forget_clients
    from distprof.storage.listing import LISTINGS

    forget_clients()
    LISTINGS.forget_all()
    for name in [name for name in os.environ if name.startswith(OURS)]:
        monkeypatch.delenv(name)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)


@contextmanager
def _gs(_: Path) -> Iterator[Callable[[str], Storage]]:
    with gcs_server.gcs_server() as address:
        yield lambda name: Storage(url=f"gs://jobs/{name}", environ={"STORAGE_EMULATOR_HOST": address},
                                   options={"endpoint_url": address, "token": "anon"})


@contextmanager
def _azure(_: Path) -> Iterator[Callable[[str], Storage]]:
    with azure_server.azure_server() as address:
        words = azure_server.connection(address)

        def storage(name: str) -> Storage:
            made = Storage(url=f"abfs://{name}", environ={"AZURE_STORAGE_CONNECTION_STRING": words},
                           options={"connection_string": words})
            made.filesystem().mkdir(name)
            return made

        yield storage


def _ssh(scheme: str) -> Callable[[Path], AbstractContextManager[Callable[[str], Storage]]]:
    @contextmanager
    def started(folder: Path) -> Iterator[Callable[[str], Storage]]:
        with ssh_server.ssh_server(folder / "ssh") as server:
            def storage(name: str) -> Storage:
                (folder / name).mkdir()
                return Storage(url=f"{scheme}://{server.host}{folder / name}", environ=server.environ(),
                               folder=folder / name)

            yield storage

    return started


@dataclass(frozen=True)
class Kind:
    """A kind of storage with which tests are repeated."""

    started: Callable[[Path], AbstractContextManager[Callable[[str], Storage]]]
    why_not: Callable[[], str]


KINDS: Mapping[str, Kind] = {
    "gs": Kind(_gs, gcs_server.why_not),
    "abfs": Kind(_azure, azure_server.why_not),
    "ssh": Kind(_ssh("ssh"), lambda: "; ".join(filter(None, (missing("sshfs"), ssh_server.why_not())))),
    "sftp": Kind(_ssh("sftp"), lambda: "; ".join(filter(None, (missing("sshfs"), ssh_server.why_not())))),
}
