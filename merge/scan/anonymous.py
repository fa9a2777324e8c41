"""Removes from the text of a trace what identifies its owner: hosts, and folders, which contain names of users.

A file keeps its name, and a file of an installed package also its path within the packages, so that lines of code can
still be identified.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_PART = rb"[\w.@+~=-]{1,255}"
_ROOTS = (rb"home|Users|root|mnt|data|tmp|var|opt|usr|workspace|scratch|nfs|net|export|projects?|cluster|private|"
          rb"Volumes|(?:work|home|fs|gpfs|lustre|efs|fsx)[0-9]*")
_FOLDERS = re.compile(
    rb"(?<![\w.:/~\\])(?:/(?:(?:" + _ROOTS + rb")/(?:" + _PART + rb"/){0,60}(?=" + _PART + rb")"  # below a known root
    rb"|(?:" + _PART + rb"/){2,60}(?=" + _PART + rb"\.\w))"                                        # of any file
    rb"|[A-Za-z]:(?:(?:\\\\|/)[^\\/\"*?<>|:]{1,255}){0,60}(?:\\\\|/)(?=[^\\/\"*?<>|:]))")          # on Windows, in JSON
_HOME = re.compile(rb"((?:/home|/Users|[A-Za-z]:\\\\Users)(?:/|\\\\))"
                   rb"(?:[^/\\\"\x00-\x20:;,()&|]| (?=[^/\\\" ]{1,64}[/\\])|\\u[0-9a-f]{4}){1,64}")
"""The home folder of a user, anywhere in a text; its name may contain a blank unless it is the last part of a path."""
_PACKAGES = (b"site-packages", b"dist-packages", b"lib/python3.")
"""A path is kept from the last of these on, which marks an installed package."""
_HOST = re.compile(rb'("(?:host|node)_?(?:name)?"\s*:\s*)"([^"\\]*)"', re.IGNORECASE)
_TELLING = re.compile(rb"(?=.*[A-Za-z])(?=.*[\d.-]).{4}")
"""Matches host names that are replaced in all texts; others are words or numbers that also have other meanings."""
HELD_BYTES = 1 << 10
"""Limit on the length of a path, and of a key with its value, so that both are found across pieces of text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Anonymiser:
    """Replaces names of hosts, and folders."""

    hosts: tuple[tuple[bytes, bytes], ...] = ()
    """Name of a host -> its replacement; longer names first, since they may contain shorter ones."""

    @classmethod
    def of(cls, hosts: dict[str, str]) -> Anonymiser:
        """Makes an anonymiser for host names as they are written in JSON."""
        order = sorted(hosts, key=len, reverse=True)
        return cls(hosts=tuple((host.encode(), hosts[host].encode()) for host in order))

    def text(self, text: bytes) -> bytes:
        """Returns a text without what identifies its owner."""
        names = dict(self.hosts)
        text = _FOLDERS.sub(_shown, _HOME.sub(rb"\1user", text))
        text = _HOST.sub(lambda found: found[1] + b'"%s"' % names.get(found[2], b"host"), text)
        for host, instead in self.hosts:
            if _TELLING.match(host) and host.lower() in text.lower():  # of many hosts, a trace names only one or two
                everywhere = rb"(?<![\w-])" + re.escape(host) + rb'(?![\w-])(?!"\s*:)'  # except in keys
                text = re.sub(everywhere, instead, text, flags=re.IGNORECASE)
        return text

    def pieces(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        """Does the same for a text in pieces; what may continue in the next piece is held back."""
        held = b""
        for piece in pieces:
            held += piece
            cut = held.rfind(b'",', 0, max(len(held) - HELD_BYTES, 0)) + 1
            yield self.text(held[:cut])
            held = held[cut:]
        yield self.text(held)


def _shown(found: re.Match[bytes]) -> bytes:
    first = max(found[0].rfind(name) for name in _PACKAGES)
    return b"" if first < 0 else found[0][first:]
