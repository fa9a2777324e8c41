"""Lists a bucket: a page in one request where that is all, else folders side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from distprof.storage.stream import requests
from distprof.storage.tally import Tally

Page = Mapping[str, Any]
Ask = Callable[..., Page]
"""Makes one request of `list_objects_v2`, with its options."""
SIDE_BY_SIDE = 64
"""Groups of folders that are listed at a time, at most; S3 gives 1,000 objects a request, one after the other."""


def listed(ask: Ask, prefix: str, tally: Tally) -> Iterator[Mapping[str, Any]]:
    """All objects whose keys begin with a prefix.

    Args:
        ask: Makes the requests.
        prefix: Ends with a slash, or is empty.
        tally: Counts what comes.
    """
    first = ask(Prefix=prefix)
    if not first.get("IsTruncated"):
        yield from first.get("Contents", ())
        return
    folders = list[str]()
    for page in _pages(ask, tally, Prefix=prefix, Delimiter="/"):
        yield from page.get("Contents", ())
        folders += [one["Prefix"] for one in page.get("CommonPrefixes", ()) if one.get("Prefix")]
    for objects in requests().map(lambda group: _all(ask, tally, group), _groups(folders, len(prefix))):
        yield from objects


def _pages(ask: Ask, tally: Tally, **options: str) -> Iterator[Page]:
    """Pages to the last one.

    Raises:
        RemoteError: One is followed by itself, or by nothing.
    """
    page, token = ask(**options), ""
    while True:
        tally.took(objects=len(page.get("Contents", ())), folders=1 + len(page.get("CommonPrefixes", ())))
        yield page
        before, token = token, page.get("NextContinuationToken", "")
        if not page.get("IsTruncated"):
            return
        if token in ("", before):
            raise tally.endless()
        page = ask(**options, ContinuationToken=token)


def _all(ask: Ask, tally: Tally, prefix: str) -> list[Mapping[str, Any]]:
    return [one for page in _pages(ask, tally, Prefix=prefix) for one in page.get("Contents", ())]


def _groups(folders: list[str], common: int) -> list[str]:
    """Prefixes that take in each folder once: as long as possible, but no more than `SIDE_BY_SIDE` of them."""
    longest = max(map(len, folders), default=common)
    best = [folder[:common + 1] for folder in folders]
    for length in range(common + 2, longest + 1):
        cut = [folder[:length] for folder in folders]
        if len(set(cut)) > SIDE_BY_SIDE:
            break
        best = cut
    return list(_none_within_another(best))


def _none_within_another(prefixes: Iterable[str]) -> Iterator[str]:
    """A short name may be the begin of another prefix, which it then takes in."""
    last: str | None = None
    for prefix in sorted(prefixes):
        if last is None or not prefix.startswith(last):
            last = prefix
            yield prefix
