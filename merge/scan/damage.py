"""Finds where reading resumes after damage in the array of events, and recovers the events that it was meant to be.

Kineto writes names unescaped, with quotes in them (pytorch/kineto issue 1459), and profilers that print events by hand
leave out quotes and values: `"Datatype": ncclFloat32, "id": 0x26, "rank": ,`. damage.c resumes in the same way.
"""

from __future__ import annotations

import re

from distprof.merge.scan.json_values import skip, value_end
from distprof.merge.scan.scanned_columns import Text

AHEAD_BYTES = 1 << 12
"""Number of bytes of text that suffices to see what follows damage."""
_BEGIN = re.compile(rb'\{[ \t\r\n]*+"(ph"[ \t\r\n]*+:)?')
"""Matches the start of an object, and whether it begins as most writers begin events."""
_BRACE = re.compile(rb'("ph"[ \t\r\n]*+:)|"[^"\\]*+(?:\\.[^"\\]*+)*+("|\Z)|[{}]', re.DOTALL)
DEEPEST = 64
MOST_BYTES = 1 << 16
"""Limit on the length of a string: a longer one has lost its end."""
_BLANK = rb"[ \t\r\n]*+"
_STRING = rb'"(?:[^"\\]|\\.)*+"'
_NEXT = re.compile(rb"\}" + _BLANK + rb",?" + _BLANK + rb'(?=\{' + _BLANK + rb'")')
"""Matches the end of an object that is followed by another one."""
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
"""How the keys of an object are written -> where a string in it ends."""
_ENDS_IN_ARRAY = re.compile(rb'"(?=' + _BLANK + rb"[,\]])")
_STRUCTURE = re.compile(rb'"' + _BLANK + rb':|[{,]' + _BLANK + rb'"ph"')
"""Matches what no string contains unless damage swallowed the end of one event and the beginning of another."""
_QUOTE = re.compile(rb'\\.|"', re.DOTALL)
_VALUES = frozenset((b"true", b"false", b"null"))


def behind_damage(text: bytes, at: int) -> int | None:
    """Returns where reading resumes after the damage at `at`; None if the text does not show it."""
    if len(text) - at < AHEAD_BYTES:
        return None
    num_bytes = element_bytes(text[at:at + AHEAD_BYTES])
    if num_bytes:
        return at + num_bytes
    found = next_event(text, at, len(text))
    return found if found is not None and len(text) - found >= AHEAD_BYTES else None


def next_event(text: Text, at: int, end: int) -> int | None:
    """Returns where an event seems to begin after the damage at `at`.

    Such an event begins with its phase and is not the value of a key; or it follows another object and a comma, and has
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
    """Returns the last place from `at` on and before `end` that is not blank; None if there is none."""
    while end > at:
        end -= 1
        if text[end] not in b" \t\r\n":
            return end
    return None


def _has_phase(text: bytes) -> bool:
    """Returns whether the object at the beginning of the text is an event, not a part of one."""
    depth = 0
    for found in _BRACE.finditer(text):
        if found[1] and depth == 1:
            return True
        depth += {b"{": 1, b"}": -1}.get(found[0], 0)
        if depth <= 0:
            return False
    return False


def element_bytes(text: bytes) -> int:
    """Returns the length of a whole value other than an object that begins the text, with following blanks; or 0."""
    try:
        if text[0] == ord("{"):
            return 0
        place = skip(text, value_end(text, 0))
    except (ValueError, IndexError):
        return 0
    return place if text[place] in b",]" else 0


def recovered(text: bytes) -> tuple[list[bytes], int, int]:
    """Recovers the events that damaged text was meant to be.

    Args:
        text: The text between two readable events.

    Returns:
        Objects that have a phase, with their numbers unchanged; the number of places with something else, and its
        bytes.
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
    """Reads one value after another from `at` on; raises ValueError or IndexError if the structure does not help."""

    def __init__(self, text: bytes) -> None:
        self._text, self.at = text, 0

    def is_at_end(self) -> bool:
        """Returns whether only blanks and commas are left."""
        self._skip(BLANKS + b",")
        return self.at == len(self._text)

    def is_between(self) -> bool:
        """Returns whether the text ends, or a comma or another object follows; else what was read is incomplete."""
        self._skip(BLANKS)
        return self._text[self.at:self.at + 1] in (b"", b",", b"{")

    def fields(self, depth: int) -> dict[bytes, bytes]:
        """Reads the object that begins here: text of a key -> text of its value. All keys have quotes, or none has."""
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
        """Reads a string up to the first quote after which the structure continues; earlier ones belong to the text."""
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
        """Requires a comma, or the end of the enclosing object or list, after a value."""
        self._skip(BLANKS)
        if self._text[self.at:self.at + 1] not in (b",", bracket):
            raise ValueError("no comma")

    def _ends(self, bracket: bytes) -> bool:
        """Returns whether the bracket comes next, after blanks and commas; if so, consumes it."""
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
