"""Lists a folder of the web: a page of links, and those of the folders that they lead to, side by side."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

from distprof.storage.stream import requests
from distprof.storage.tally import Tally

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
