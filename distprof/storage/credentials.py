"""Keeps secrets separate from URLs: nothing that is printed, listed, sent or raised contains them.

`kept` removes the password from a URL that a user gives. Everything else uses the URL without it, and only the client
of the storage asks for the secret part.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from distprof.hidden import MARK, hidden, learn

WEB = ("http", "https")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/+")
_WHOLE: dict[str, str] = {}
"""Host `scheme://user@host`, or address with a query, without secrets -> the same with secrets."""


def is_url(text: str) -> bool:
    """True for URLs such as `s3://bucket/run`."""
    return _SCHEME.match(text) is not None and "://" in text


def kept(url: str) -> str:
    """Returns the URL without its secrets, which are kept for the client.

    On the web, a user without a password is removed as well, because it is usually a token; so are secrets in a query.
    """
    scheme, _, rest = url.partition("://")
    host, slash, path = rest.partition("/")
    shown = f"{scheme}://{_shown_host(scheme, host)}"
    if shown != f"{scheme}://{host}":
        _WHOLE[shown] = f"{scheme}://{host}"
    if scheme not in WEB or "?" not in path:
        return f"{shown}{slash}{path}"
    seen = hidden(f"{shown}/{path}")
    if seen != f"{shown}/{path}":
        _WHOLE[_one_slash(seen)] = f"{shown}/{path}"
    return seen


def _shown_host(scheme: str, host: str) -> str:
    if f"{scheme}://{host}" in _WHOLE:  # it is already without secrets
        return host
    before, at, name = host.rpartition("@")
    user, colon, password = before.partition(":")
    if colon:
        learn(user, password)
        return f"{user}{at}{name}"
    if before and scheme in WEB:
        learn("", before)
        return f"{MARK}@{name}"
    return host


def whole_host(scheme: str, host: str) -> str:
    """Returns the host of a URL with its user and password."""
    return _WHOLE.get(f"{scheme}://{host}", f"{scheme}://{host}").partition("://")[2]


def whole_query(url: str) -> str:
    """Returns a web URL with the secrets of its query, but without user and password, which are sent in a header."""
    scheme, _, rest = _WHOLE.get(_one_slash(url), url).partition("://") if "?" in url else url.partition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}://{host.rpartition('@')[2]}{slash}{path}"


def exported(url: str) -> Mapping[str, str]:
    """Returns what another process has to `remember` before it opens a URL."""
    return {shown: whole for shown, whole in _WHOLE.items()
            if shown == _one_slash(url) or url == shown or url.startswith(f"{shown}/")}


def remember(whole: Mapping[str, str]) -> None:
    """Takes over the secrets that another process has `exported`."""
    for url in whole.values():
        kept(url)


def _one_slash(url: str) -> str:
    """Collapses repeated slashes, as paths do."""
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{re.sub('/+', '/', rest)}"
