"""Damage in the array of events: where reading goes on behind it, and the events that it was meant to be.

Kineto writes names as they are, with quotes in them (pytorch/kineto issue 1459), and profilers that print events by
hand leave out quotes and values: `"Datatype": ncclFloat32, "id": 0x26, "rank": ,`. damage.c goes on like this as well.
"""

from __future__ import annotations

import re

from distprof.merge.scan.json_values import skip, value_end
from distprof.merge.scan.scanned_columns import Text

AHEAD_BYTES = 1 << 12
"""So much text shows what stands behind damage."""
_BEGIN = re.compile(rb'\{[ \t\r\n]*+"(ph"[ \t\r\n]*+:)?')
"""An object, and whether it begins as most writers begin events."""
_BRACE = re.compile(rb'("ph"[ \t\r\n]*+:)|"[^"\\]*+(?:\\.[^"\\]*+)*+("|\Z)|[{}]', re.DOTALL)
DEEPEST = 64
MOST_BYTES = 1 << 16
"""Of a string: a longer one lost its end."""
_BLANK = rb"[ \t\r\n]*+"
_STRING = rb'"(?:[^"\\]|\\.)*+"'
_NEXT = re.compile(rb"\}" + _BLANK + rb",?" + _BLANK + rb'(?=\{' + _BLANK + rb'")')
"""Behind it an object follows another one."""
_QUOTED = re.compile(rb"(" + _STRING + rb")" + _BLANK + rb":" + _BLANK, re.DOTALL)
_BARE = re.compile(rb"([A-Za-z_][\w.]*+)" + _BLANK + rb":" + _BLANK)
BLANKS = b" \t\r\n"
_NUMBER = re.compile(rb"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?(?=" + _BLANK + rb"[,}\]])")
_HEX = re.compile(rb"0[xX][0-9a-fA-F]{1,16}(?=" + _BLANK + rb"[,}\]])")
_WORD = re.compile(rb"[A-Za-z_][\w.:<>*-]*+(?=" + _BLANK + rb"[,}\]])")
_NOTHING = re.compile(rb"(?=[,}])")
_ENDS_BEFORE = {
    key: re.compile(rb'"(?=' + _BLANK + rb"(?:\}|," + _BLANK + rb"(?:\}|" + key.pattern + rb")))", re.DOTALL)
    for key in (_QUOTED, _BARE)}
"""How keys of an object are written -> where a string ends in it."""
_ENDS_IN_ARRAY = re.compile(rb'"(?=' + _BLANK + rb"[,\]])")
_STRUCTURE = re.compile(rb'"' + _BLANK + rb':|[{,]' + _BLANK + rb'"ph"')
"""What no string holds, unless damage swallowed the end of one event and the beginning of another."""
_QUOTE = re.compile(rb'\\.|"', re.DOTALL)
_VALUES = frozenset((b"true", b"false", b"null"))


def behind_damage(text: bytes, at: int) -> int | None:
    """Where reading goes on behind the damage at `at`; None where the text does not show it."""
    if len(text) - at < AHEAD_BYTES:
        return None
    num_bytes = element_bytes(text[at:at + AHEAD_BYTES])
    if num_bytes:
        return at + num_bytes
    found = next_event(text, at, len(text))
    return found if found is not None and len(text) - found >= AHEAD_BYTES else None


def next_event(text: Text, at: int, end: int) -> int | None:
    """Where an event seems to begin behind the damage at `at`.

    Such a one begins with its phase and is not the value of a key; or it stands behind another one and a comma, and has
    a phase.
    """
    for found in _BEGIN.finditer(text, at + 1, end):
        begin = found.start()
        before = _last_of(text, at, begin)
        if found[1]:
            if before is None or text[before] != ord(":"):
                return begin
            key = _last_of(text, at, before)
            if key is None or text[key] != ord('"'):
                return begin
        elif before is not None and text[before] == ord(","):
            other = _last_of(text, at, before)
            is_behind_one = other is not None and text[other] == ord("}")
            if is_behind_one and _has_phase(bytes(text[begin:min(begin + AHEAD_BYTES, end)])):
                return begin
    return None


def _last_of(text: Text, at: int, end: int) -> int | None:
    """The last place from `at` on and before `end` that is not blank; None where there is none."""
    while end > at:
        end -= 1
        if text[end] not in b" \t\r\n":
            return end
    return None


def _has_phase(text: bytes) -> bool:
    """Whether the object that the text begins with is an event, and not a part of one."""
    depth = 0
    for found in _BRACE.finditer(text):
        if found[1] and depth == 1:
            return True
        depth += {b"{": 1, b"}": -1}.get(found[0], 0)
        if depth <= 0:
            return False
    return False


def element_bytes(text: bytes) -> int:
    """Bytes of a whole value that is no object, at the beginning of the text, with the blanks behind it; else 0."""
    try:
        if text[0] == ord("{"):
            return 0
        place = skip(text, value_end(text, 0))
    except (ValueError, IndexError):
        return 0
    return place if text[place] in b",]" else 0


def recovered(text: bytes) -> tuple[list[bytes], int, int]:
    """The events that damaged text was meant to be.

    Args:
        text: What stands between two events that can be read.

    Returns:
        Objects that have a phase, their numbers as they were; at how many places something else stands, and its bytes.
    """
    found, reader, places, lost_bytes = list[bytes](), _Reader(text), 0, 0
    while not reader.is_at_end():
        first = reader.at
        try:
            fields = reader.fields(DEEPEST)
        except (ValueError, IndexError):
            fields = {}
        if b'"ph"' in fields and reader.is_between():
            found.append(_joined(fields))
            continue
        behind = _NEXT.search(text, first + 1)
        reader.at = len(text) if behind is None else behind.end()
        places, lost_bytes = places + 1, lost_bytes + reader.at - first
    return found, places, lost_bytes


class _Reader:
    """Reads one value after the other from `at` on; ValueError or IndexError where even structure does not help."""

    def __init__(self, text: bytes) -> None:
        self._text, self.at = text, 0

    def is_at_end(self) -> bool:
        """Whether nothing but blanks and commas is left."""
        self._skip(BLANKS + b",")
        return self.at == len(self._text)

    def is_between(self) -> bool:
        """Whether the text ends here, or a comma or another object follows: else more belongs to what was read."""
        self._skip(BLANKS)
        return self._text[self.at:self.at + 1] in (b"", b",", b"{")

    def fields(self, depth: int) -> dict[bytes, bytes]:
        """Those of the object that begins here: text of a key -> text of its value. All keys have quotes, or none."""
        self._expect(b"{", depth)
        found: dict[bytes, bytes] = {}
        self._skip(BLANKS)
        written = _BARE if _BARE.match(self._text, self.at) else _QUOTED
        while not self._ends(b"}"):
            key = written.match(self._text, self.at)
            if key is None:
                raise ValueError("no key")
            self.at = key.end()
            name = key[1] if written is _QUOTED else b'"%s"' % key[1]
            if name in found:
                raise ValueError("a duplicate key")
            found[name] = self._value(depth, _ENDS_BEFORE[written])
            self._expect_comma(b"}")
        return found

    def _items(self, depth: int) -> list[bytes]:
        self._expect(b"[", depth)
        found = []
        while not self._ends(b"]"):
            if self._text[self.at] == b"}"[0]:
                raise ValueError("no end")
            found.append(self._value(depth, _ENDS_IN_ARRAY))
            self._expect_comma(b"]")
        return found

    def _value(self, depth: int, end: re.Pattern[bytes]) -> bytes:
        match self._text[self.at:self.at + 1]:
            case b"{":
                return _joined(self.fields(depth - 1))
            case b"[":
                return b"[%s]" % b",".join(self._items(depth - 1))
            case b'"':
                return self._string(end)
        for pattern, written in ((_NUMBER, bytes), (_HEX, _decimal), (_WORD, _word), (_NOTHING, lambda _: b"null")):
            if (found := pattern.match(self._text, self.at)) is not None:
                self.at = found.end()
                return written(found[0])
        raise ValueError("no value")

    def _string(self, end: re.Pattern[bytes]) -> bytes:
        """Up to the first quote behind which the structure goes on; quotes before it belong to the text."""
        first, most = self.at + 1, self.at + 1 + MOST_BYTES
        closing = end.search(self._text, first, most)
        while closing is not None and self._is_escaped(closing.start()):
            closing = end.search(self._text, closing.end(), most)
        if closing is None or _STRUCTURE.search(self._text, first, closing.start()):
            raise ValueError("no end, or several values in one")
        inner, self.at = self._text[first:closing.start()], closing.end()
        return b'"%s"' % _QUOTE.sub(lambda found: b'\\"' if found[0] == b'"' else found[0], inner)

    def _is_escaped(self, at: int) -> bool:
        first = at
        while self._text[first - 1] == b"\\"[0]:
            first -= 1
        return (at - first) % 2 == 1

    def _expect(self, bracket: bytes, depth: int) -> None:
        if not depth or self._text[self.at:self.at + 1] != bracket:
            raise ValueError("no object")
        self.at += 1

    def _expect_comma(self, bracket: bytes) -> None:
        """A value is followed by a comma, or by the end of what it is in."""
        self._skip(BLANKS)
        if self._text[self.at:self.at + 1] not in (b",", bracket):
            raise ValueError("no comma")

    def _ends(self, bracket: bytes) -> bool:
        """Whether the bracket is next, behind blanks and commas, and has been read."""
        self._skip(BLANKS + b",")
        if self._text[self.at] != bracket[0]:
            return False
        self.at += 1
        return True

    def _skip(self, signs: bytes) -> None:
        while self.at < len(self._text) and self._text[self.at] in signs:
            self.at += 1


def _joined(fields: dict[bytes, bytes]) -> bytes:
    return b"{%s}" % b",".join(b"%s:%s" % pair for pair in fields.items())


def _decimal(text: bytes) -> bytes:
    return b"%d" % int(text, 16)


def _word(text: bytes) -> bytes:
    return text if text in _VALUES else b'"%s"' % text
