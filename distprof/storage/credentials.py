"""Secrets of URLs, apart from the URLs: nothing that is printed, listed, sent or raised has them.

`kept` takes the password out of a URL where a user names it. All other rooms know the URL without it, and the client of
the storage alone asks for the rest.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from distprof.hidden import MARK, hidden, learn

WEB = ("http", "https")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/+")
_WHOLE: dict[str, str] = {}
"""Of a host `scheme://user@host`, or of an address with a query, as it is shown -> as it is."""


def is_url(text: str) -> bool:
    """True for `s3://bucket/run` and its like."""
    return _SCHEME.match(text) is not None and "://" in text


def kept(url: str) -> str:
    """The URL as everybody may see it; what is left out is kept for the client.

    On the web a user without a password is left out as well, since it is a token as a rule; so are secrets in a query.
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
    if f"{scheme}://{host}" in _WHOLE:  # as it is shown
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
    """The host of a URL with its user and password."""
    return _WHOLE.get(f"{scheme}://{host}", f"{scheme}://{host}").partition("://")[2]


def whole_query(url: str) -> str:
    """A URL of the web with the secrets of its query, and without user and password, which go into a header."""
    scheme, _, rest = _WHOLE.get(_one_slash(url), url).partition("://") if "?" in url else url.partition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}://{host.rpartition('@')[2]}{slash}{path}"


def exported(url: str) -> Mapping[str, str]:
    """What another process has to `remember` before it opens a URL."""
    return {shown: whole for shown, whole in _WHOLE.items()
            if shown == _one_slash(url) or url == shown or url.startswith(f"{shown}/")}


def remember(whole: Mapping[str, str]) -> None:
    """Takes over what another process `exported`."""
    for url in whole.values():
        kept(url)


def _one_slash(url: str) -> str:
    """As paths have it."""
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{re.sub('/+', '/', rest)}"
