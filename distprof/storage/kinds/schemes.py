"""Which package and which class read the URLs of a scheme, and the existing clients."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from types import MappingProxyType
from typing import Any

from distprof.errors import StorageError, UsageError
from distprof.storage.backend import Backend
from distprof.storage.credentials import whole_host
from distprof.storage.faults import KEYS
from distprof.storage.kinds import ssh, web
from distprof.storage.kinds.s3 import S3

UNCACHED: Mapping[str, Any] = MappingProxyType({"use_listings_cache": False})


class Objects(Backend):
    """Buckets or containers of Google Cloud Storage and Azure.

    An object is complete after the request that writes it, and needs no folder.
    """

    def _found(self, root: str) -> Mapping[str, Any]:
        """Adds details, because adlfs returns only a list of names if the URL is an object itself."""
        found = super()._found(root)
        return found if isinstance(found, Mapping) else {name: self.filesystem.info(name) for name in found}

    def _put(self, key: str, content: bytes, *, only_new: bool) -> bool:
        """Makes the storage prevent two clients from creating the same object; some compatible storages do not."""
        options: dict[str, Any] = {"mode": "create"} if only_new else {}
        if only_new and self.filesystem.exists(key):
            return False
        try:
            self.filesystem.pipe_file(key, content, **options)
        except FileExistsError:
            if not only_new:
                raise
            return False
        return True

    def _make_folder_of(self, key: str) -> None:
        """Does nothing: it would require the permission to create buckets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheme:
    """How the URLs of a scheme are read."""

    kind: Callable[[str, Any], Backend] = Backend
    package: str = ""
    """The package that is imported; "" if unknown."""
    install: str = ""
    """What to install with pip."""
    logger: str = ""
    """Name of a logger that prints tracebacks of errors that we report in one line."""
    options: Mapping[str, Any] = field(default_factory=lambda: UNCACHED)
    """Options for fsspec; what a user has configured there has priority."""
    is_for_all_hosts: bool = False
    """Whether one client reaches all hosts, whatever follows the scheme."""


_S3 = Scheme(kind=S3, package="s3fs", install="distprof[s3]", is_for_all_hosts=True, options={
    **UNCACHED,
    # only we retry: retries by botocore and s3fs would multiply with ours, and report nothing
    "config_kwargs": {"retries": {"mode": "standard", "total_max_attempts": 1}, "max_pool_connections": 64}})
_GS = Scheme(kind=Objects, package="gcsfs", install="distprof[gs]", logger="gcsfs", is_for_all_hosts=True)
_AZURE = Scheme(kind=Objects, package="adlfs", install="distprof[azure]", logger="azure")
_SSH = Scheme(package="sshfs", install="distprof[ssh]", logger="asyncssh", options=ssh.OPTIONS)
_WEB = Scheme(kind=web.Web, package="aiohttp", install="aiohttp", options=web.OPTIONS)
SCHEMES: Mapping[str, Scheme] = {
    "s3": _S3, "s3a": _S3, "gs": _GS, "gcs": _GS, "abfs": _AZURE, "abfss": _AZURE, "az": _AZURE,
    "ssh": _SSH, "sftp": _SSH, "http": _WEB, "https": _WEB,
}
"""Schemes for which more is known than what fsspec says."""
_SETTING_UP = threading.Lock()
_KNOWN: dict[tuple[str, str], Backend] = {}
"""Scheme, and host with password if it determines the client -> client."""


def backend_of(url: str) -> Backend:
    """Returns the storage of a URL.

    Raises:
        UsageError: Such URLs cannot be read, or not with what is installed.
    """
    scheme, host = _reached(url)
    whole = whole_host(scheme, host)
    with _SETTING_UP:
        if (scheme, whole) not in _KNOWN:
            _KNOWN[scheme, whole] = _made(scheme, host)
        return _KNOWN[scheme, whole]


def forget_clients() -> None:
    """Drops all clients, so that new ones use the current environment."""
    _KNOWN.clear()


def _reached(url: str) -> tuple[str, str]:
    """Returns the scheme of a URL, and its host if it determines the client."""
    scheme, _, rest = url.partition("://")
    return scheme, "" if SCHEMES.get(scheme, Scheme()).is_for_all_hosts else rest.partition("/")[0]


def _made(scheme: str, host: str) -> Backend:
    """Creates a client. It connects here or with its first request.

    Raises:
        UsageError: Such URLs cannot be read, or not with what is installed.
        StorageError: There are no credentials.
    """
    about = SCHEMES.get(scheme, Scheme())
    if about.logger:
        logging.getLogger(about.logger).addHandler(logging.NullHandler())  # otherwise Python prints unhandled records
    if about is _SSH:
        _imported(scheme, about)
        return ssh.Ssh(scheme, lambda: _filesystem(scheme, host, about))
    try:
        return about.kind(scheme, _filesystem(scheme, host, about))
    except ImportError as error:
        raise _missing(scheme, about, error) from error
    except OSError as error:
        first = next(iter(str(error).splitlines()), "")  # hdfs lists every place where it looked for Java
        raise StorageError(f"cannot reach {scheme}://{host}: {first}",
                           hint="see docs/object-storage.md for what each storage needs") from error
    except ValueError as error:
        if about is _AZURE:
            raise StorageError(f"cannot reach {scheme}://{host}: {error}", hint=KEYS) from error
        raise UsageError(f"{scheme}:// is not a usable URL like s3://bucket/run: {error}",
                         hint="see docs/object-storage.md for what distprof can read") from error


def _filesystem(scheme: str, host: str, about: Scheme) -> Any:
    from fsspec.config import conf
    from fsspec.core import url_to_fs  # slow to import, and not needed for local runs

    options = {name: value for name, value in about.options.items() if name not in conf.get(scheme, {})}
    whole = whole_host(scheme, host)
    if about is _WEB:
        options["headers"] = {**conf.get(scheme, {}).get("headers", {}), **web.headers(whole)}
    url = f"{scheme}://{host if about is _WEB else whole}/" if host else f"{scheme}://"
    return url_to_fs(url, skip_instance_cache=True, **options)[0]


def _imported(scheme: str, about: Scheme) -> None:
    """Imports sshfs; without it, fsspec would use paramiko with a class of its own that trusts any host."""
    try:
        import_module(about.package)
    except ImportError as error:
        raise _missing(scheme, about, error) from error


def _missing(scheme: str, about: Scheme, error: ImportError) -> UsageError:
    hint = f"pip install '{about.install}'" if about.install else "see docs/object-storage.md for packages"
    return UsageError(f"no installed package reads {scheme}:// URLs: {error}", hint=hint)
