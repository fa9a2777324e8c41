"""Takes out of the text of a trace what tells whose it is: folders, which have names of users in them, and hosts.

A file keeps its name, and one of an installed package its path within the packages, so that lines of code still say
what they are.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_PART = rb"[\w.@+~=-]{1,255}"
_ROOTS = (rb"home|Users|root|mnt|data|tmp|var|opt|usr|workspace|scratch|nfs|net|export|projects?|cluster|private|"
          rb"Volumes|(?:work|home|fs|gpfs|lustre|efs|fsx)[0-9]*")
_FOLDERS = re.compile(
    rb"(?<![\w.:/~\\])(?:/(?:(?:" + _ROOTS + rb")/(?:" + _PART + rb"/){0,60}(?=" + _PART + rb")"  # of a known root
    rb"|(?:" + _PART + rb"/){2,60}(?=" + _PART + rb"\.\w))"                                        # of any file
    rb"|[A-Za-z]:(?:(?:\\\\|/)[^\\/\"*?<>|:]{1,255}){0,60}(?:\\\\|/)(?=[^\\/\"*?<>|:]))")          # of Windows, in JSON
_HOME = re.compile(rb"((?:/home|/Users|[A-Za-z]:\\\\Users)(?:/|\\\\))"
                   rb"(?:[^/\\\"\x00-\x20:;,()&|]| (?=[^/\\\" ]{1,64}[/\\])|\\u[0-9a-f]{4}){1,64}")
"""The folder of a user, wherever it stands; with a blank in it, if it is not the last of a path."""
_PACKAGES = (b"site-packages", b"dist-packages", b"lib/python3.")
"""From the last of these on a path is one of an installed package."""
_HOST = re.compile(rb'("(?:host|node)_?(?:name)?"\s*:\s*)"([^"\\]*)"', re.IGNORECASE)
_TELLING = re.compile(rb"(?=.*[A-Za-z])(?=.*[\d.-]).{4}")
"""Names of hosts that are looked for in all texts: others are words or numbers that mean something else too."""
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
        text = _FOLDERS.sub(_shown, _HOME.sub(rb"\1user", text))
        text = _HOST.sub(lambda found: found[1] + b'"%s"' % names.get(found[2], b"host"), text)
        for host, instead in self.hosts:
            if _TELLING.match(host) and host.lower() in text.lower():  # of many hosts a trace has one or two
                everywhere = rb"(?<![\w-])" + re.escape(host) + rb'(?![\w-])(?!"\s*:)'  # but in keys
                text = re.sub(everywhere, instead, text, flags=re.IGNORECASE)
        return text

    def pieces(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        """The same of a text in pieces; what may go on in the next one waits for it."""
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
