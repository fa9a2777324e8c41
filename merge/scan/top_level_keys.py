"""Reads the keys beside the events of a trace file: `"schemaVersion": 1`, `"distributedInfo": {...}`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from distprof.merge.scan.json_values import key_at, object_of, short_members, skip, value_end, value_of
from distprof.merge.scan.text_window import TextFeed

MOST_METADATA_BYTES = 64 << 20
"""Maximum bytes of the keys beside the events: a file with more is not a trace."""
EVENTS = "traceEvents"
SECOND = re.compile(rb'\}\s*+(?=\{\s*+"(?:schemaVersion|traceEvents|displayTimeUnit|deviceProperties)"\s*+:)')
"""Matches the end of a trace that is followed by another one, as `cat` or gzip members join files."""
OVERLAP = 64
"""Bytes that are searched again, because a key may span two chunks."""
_OF_TRACES = ("traceEvents", "distributedInfo", "deviceProperties", "schemaVersion", "baseTimeNanoseconds", "traceName",
              "displayTimeUnit")
"""Keys that show that a file is a trace."""
_SIGN = re.compile(rf'"(?:{"|".join(_OF_TRACES)})"[ \t\r\n]*+:'.encode())
_AHEAD = re.compile(
    _SIGN.pattern + rb'|"(?:host_name|metadata|distprof)"[ \t\r\n]*+:'
    rb'|\{[ \t\r\n]*+"(?:ph|name|cat|pid|tid|ts|dur)"[ \t\r\n]*+:')
"""Matches where reading resumes after damage: a key that traces have, or the first event."""
_PHASE = re.compile(rb'[{,][ \t\r\n]*+"ph"[ \t\r\n]*+:')
EVENT_BYTES = 1 << 12
"""The phase of an event is within its first bytes of this number."""
_GAP = re.compile(rb"[ \t\r\n,]*+")
_END = re.compile(rb"\][ \t\r\n]*+(?:[,}]|\Z)")
MOST_BRACKETS = 1000
"""Limit on brackets tried as the end of a text without events: each requires a look at what follows it."""
_REST = re.compile(rb"\s*+\Z")
_SALVAGED = ("distributedInfo",)
"""Objects of which single members are useful."""
MOST_UNCLOSED = 64
"""Limit on values that are not closed before the end of the text: detecting one requires reading all of it."""


class TopLevelKeys:
    """Reads the keys before and after the events. Damaged text is skipped, and reading resumes after it."""

    def __init__(self, feed: TextFeed) -> None:
        self.values: dict[str, Any] = {}
        self.is_array = False
        """True for a trace without keys beside the events, which may lack the closing bracket."""
        self.is_cut = False
        """True if the file ends inside the keys."""
        self.stopped_at = ""
        """The key of the list at which reading stopped last."""
        self.damaged: list[str] = []
        """Keys whose values cannot be kept."""
        self.lost_bytes = 0
        """Bytes of text skipped because of damage."""
        self.has_second = False
        """True if another trace, which is not read, follows the end of this one."""
        self.is_of_trace = False
        """True if a key that traces have was found."""
        self._feed = feed

    def read_until(self, *lists: str) -> bytes | None:
        """Reads the keys at the beginning of a file.

        Args:
            *lists: Keys whose lists end the reading.

        Returns:
            The text from the first element of such a list on; None if there is none.
        """
        text = self._feed.next()
        while text and not text.strip():
            text = self._feed.next()
        text = text.lstrip()
        if text.startswith(b"["):
            self.is_array = True
            return text[1:]
        if text.startswith(b"{"):
            text = text[1:]
        else:
            self.lost_bytes += 1 if text else 0
        return self._read(text, lists)

    def read_after_events(self, text: bytes) -> bytes | None:
        """Reads what follows the bracket that ends the events; `text` is its first part.

        Returns:
            The text from the first event of another list of events on; None if there is none.
        """
        if self.is_array:
            return None
        text += self._more(MOST_METADATA_BYTES)
        second = SECOND.search(text)
        if second is not None:
            self.has_second, text = True, text[:second.start() + 1]
        members = object_of(b"{" + text.lstrip().removeprefix(b","))
        if members is not None and EVENTS not in members:
            self._keep_all(members)
            return None
        return self._walk(text, (EVENTS,))

    def _read(self, text: bytes, lists: Sequence[str]) -> bytes | None:
        """Reads the text up to the list as a whole if it is strict JSON, as it nearly always is, else key by key."""
        begins = re.compile(rb'"(?:' + "|".join(lists).encode() + rb')"\s*:\s*\[')
        held, searched = bytearray(text), 0
        while (found := begins.search(held, max(searched - OVERLAP, 0))) is None:
            searched = len(held)
            more = self._feed.next() if searched <= MOST_METADATA_BYTES else b""
            if not more:
                break
            held += more
        if found is not None:
            members = object_of(b"{" + bytes(held[:found.start()]).rstrip().removesuffix(b",") + b"}")
            if members is not None:
                self._keep_all(members)
                self.stopped_at = found[0].split(b'"')[1].decode()
                return bytes(held[found.end():])
        return self._walk(bytes(held), lists)

    def _keep_all(self, members: dict[str, bytes]) -> None:
        for key, value in members.items():
            self._keep(key, value)

    def _keep(self, key: str, value: bytes) -> None:
        self.is_of_trace |= key in _OF_TRACES
        try:
            self.values[key] = value_of(value)
        except ValueError:
            self.damaged.append(key)
            if key in _SALVAGED:
                self.values[key] = short_members(value)

    def _walk(self, text: bytes, lists: Sequence[str]) -> bytes | None:
        """Reads key by key."""
        at, unclosed = 0, 0
        while True:
            place = _GAP.match(text, at).end()  # type: ignore[union-attr]  # it matches nothing too
            try:
                if text[place] == ord("}") and _REST.match(text, place + 1):
                    return None
                at, is_list = self._member(text, place, lists)
                if is_list:
                    return text[at:]
            except IndexError:
                more = self._more(len(text) - at) if len(text) - at <= MOST_METADATA_BYTES else b""
                if more:
                    text, at = text[at:] + more, 0
                elif unclosed < MOST_UNCLOSED and _AHEAD.search(text, place + 1):
                    text, at = self._behind_damage(text, place)
                    unclosed += 1
                else:
                    self.is_cut = True
                    self._lose(text[place:])
                    return None
            except ValueError:
                text, at = self._behind_damage(text, place)

    def _member(self, text: bytes, at: int, lists: Sequence[str]) -> tuple[int, bool]:
        """Reads one key and its value; returns the place after it, or inside it if it is a list that ends the reading.

        Raises:
            IndexError: The text ends inside.
            ValueError: It is damaged.
        """
        if self.lost_bytes and EVENTS in lists and _is_event(text, at):
            self.stopped_at = EVENTS  # what preceded the first event was lost
            return at, True
        key, begin = key_at(text, at)
        name = str(value_of(key))
        if text[begin] == ord("["):
            if EVENTS in lists and name not in lists and _is_event(text, skip(text, begin + 1)):
                self._lose(text[at:begin])
                name = EVENTS  # misspelled by damage
            if name in lists:
                self.stopped_at = name
                return begin + 1, True
        end = value_end(text, begin)
        if text[skip(text, end)] not in b",}":
            raise ValueError
        self._keep(name, text[begin:end])
        return end, False

    def _behind_damage(self, text: bytes, at: int) -> tuple[bytes, int]:
        """Returns the text, to which more may have been added, and the place in it where reading resumes."""
        while (found := _AHEAD.search(text, at + 1)) is None:
            more = self._more(len(text)) if len(text) - at <= MOST_METADATA_BYTES else b""
            if not more:
                break
            text += more
        until = len(text) if found is None else found.start()
        self._lose(text[at:until])
        return text, until

    def _lose(self, text: bytes) -> None:
        self.lost_bytes += len(text)
        self.is_of_trace |= _SIGN.search(text) is not None
        for key in _SALVAGED:
            if text.startswith(b'"%s"' % key.encode()):
                self.damaged.append(key)
                self.values[key] = short_members(text[len(key) + 2:])

    def _more(self, num_bytes: int) -> bytes:
        """Reads at least this much text, if there is any: reading a long value again from its start must pay off."""
        chunks, left = [], num_bytes
        while left > 0 and (chunk := self._feed.next()):
            chunks.append(chunk)
            left -= len(chunk)
        return b"".join(chunks)


def _is_event(text: bytes, at: int) -> bool:
    part = text[at:at + EVENT_BYTES]
    if not part.startswith(b"{"):
        return False
    try:
        part = part[:value_end(part, 0)]
    except (IndexError, ValueError):
        pass
    return _PHASE.search(part) is not None


def ends_keys(text: bytes, at: int = 0, *, unclear: bool = True) -> bool:
    """Returns whether only keys, a brace and blanks follow the events.

    A second list of events counts as a key.

    Args:
        text: Contains, from `at` on, what follows the bracket that ends the events.
        at: A place in it.
        unclear: The result if the text ends before that is clear.
    """
    place = at
    try:
        while text[place := skip(text, place)] != ord("}"):
            if text[place] != ord(","):
                return False
            key, begin = key_at(text, skip(text, place + 1))
            if key == b'"traceEvents"' and text[begin] == ord("["):
                return True
            place = value_end(text, begin)
    except IndexError:
        return unclear
    except ValueError:  # not keys
        return False
    return _REST.match(text, place + 1) is not None


def end_of_events(text: bytes, *, is_array: bool) -> int | None:
    """Returns the place of the bracket that ends the events, in a text without further events; None without one."""
    for number, bracket in enumerate(_END.finditer(text)):
        behind = bracket.start() + 1
        if _REST.match(text, behind) if is_array else ends_keys(text, behind, unclear=False):
            return bracket.start()
        if number == MOST_BRACKETS:
            break
    return None
