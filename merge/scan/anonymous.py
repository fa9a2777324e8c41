"""Takes out of the text of a trace what tells whose it is: folders, which have names of users in them, and hosts.

A file keeps its name, and one of an installed package its path within the packages, so that lines of code still say
what they are.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_PART = rb"[\w.@+~=-]+"
_ROOTS = rb"home|Users|root|mnt|data|tmp|var|opt|usr|workspace|scratch|nfs|net|lustre|gpfs|efs|fsx|work|work[0-9]+"
_FOLDERS = re.compile(
    rb"(?<![\w.:/\\])(?:/(?:(?:" + _ROOTS + rb")/(?:" + _PART + rb"/)*(?=" + _PART + rb")"  # of a known root
    rb"|(?:" + _PART + rb"/)+(?=" + _PART + rb"\.\w))"                                      # of any file with a suffix
    rb"|[A-Za-z]:(?:(?:\\\\|/)[^\\/\"*?<>|:]+)*(?:\\\\|/)(?=[^\\/\"*?<>|:]))")              # of Windows, in JSON
_PACKAGES = re.compile(rb".*((?:site|dist)-packages(?:/|\\\\).*)|.*(lib/python3\.\d+/.*)", re.DOTALL)
_HOST = re.compile(rb'("host_?name"\s*:\s*)"([^"\\]*)"', re.IGNORECASE)
_TELLING = re.compile(rb"[\d.-]|.{8}")
"""Names of hosts that are looked for everywhere: others are words, like `gpu`, that mean something else too."""
HELD_BYTES = 1 << 10
"""A path, or a key with its value, is shorter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Anonymiser:
    """Replaces names, and folders."""

    hosts: tuple[tuple[bytes, bytes], ...] = ()
    """Name of a host -> what is written instead; longer ones first, since they may hold others."""

    @classmethod
    def of(cls, hosts: dict[str, str]) -> Anonymiser:
        """With names as they stand in JSON."""
        order = sorted(hosts, key=len, reverse=True)
        return cls(hosts=tuple((host.encode(), hosts[host].encode()) for host in order))

    def text(self, text: bytes) -> bytes:
        """A text without what tells whose it is."""
        names = dict(self.hosts)
        text = _HOST.sub(lambda found: found[1] + b'"%s"' % names.get(found[2], b"host"), _FOLDERS.sub(_shown, text))
        for host, instead in self.hosts:
            if host in text and _TELLING.search(host):
                text = re.sub(rb"(?<![\w-])" + re.escape(host) + rb"(?![\w-])", instead, text)
        return text

    def pieces(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        """The same of a text in pieces; what may go on in the next one waits for it."""
        held = b""
        for piece in pieces:
            held += piece
            cut = held.rfind(b",", 0, max(len(held) - HELD_BYTES, 0)) + 1
            yield self.text(held[:cut])
            held = held[cut:]
        yield self.text(held)


def _shown(found: re.Match[bytes]) -> bytes:
    packages = _PACKAGES.search(found[0])
    return b"" if packages is None else packages[1] or packages[2]
