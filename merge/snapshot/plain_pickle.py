"""Reads a pickle of plain containers piece by piece. It looks up no class and never calls anything from the pickle.

`pickle.load` of a snapshot takes several times its size in memory. Here each dict is passed to a callback as soon as it
is complete, and replaced by what the callback returns: also in the memo, which otherwise keeps all objects of a pickle.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from distprof.errors import DataError

CHUNK_BYTES = 4 << 20
MARGIN_BYTES = 1 << 16
"""More than any opcode with its argument takes, except strings."""
LONGEST_NUMBER = 9
"""Maximum size of an opcode with an argument of fixed length, in bytes."""
OF_THE_MEMO = re.compile(rb"(\x94|q.|r.{4})?\(((?:h.|j.{4})+)e(?!\()", re.DOTALL)
"""Matches, after its EMPTY_LIST, a whole list of objects that are in the memo; call stacks are such lists."""
REFERENCE = re.compile(rb"h(.)|j(.{4})", re.DOTALL)
MOST_CACHED = 1 << 16
SHORT = 256
"""Strings shorter than this many bytes are stored once, however often they occur."""
REFUSED = {
    0x63: "GLOBAL", 0x93: "STACK_GLOBAL", 0x52: "REDUCE", 0x62: "BUILD", 0x69: "INST", 0x6F: "OBJ", 0x81: "NEWOBJ",
    0x92: "NEWOBJ_EX", 0x82: "EXT1", 0x83: "EXT2", 0x84: "EXT4", 0x50: "PERSID", 0x51: "BINPERSID",
    0x97: "NEXT_BUFFER", 0x98: "READONLY_BUFFER"}
"""Opcodes that run code or ask the reader for an object."""
SCALARS = (int, str, float, bool, type(None))
BROKEN = (IndexError, KeyError, struct.error, TypeError, ValueError, AttributeError, OverflowError)
"""What Python raises if a pickle is invalid."""
HINT = "torch.cuda.memory._dump_snapshot writes such files; distprof reads no other pickles, because they can run code"
_unsigned, _signed, _double = struct.Struct("<I"), struct.Struct("<i"), struct.Struct(">d")


class Fresh(dict[Any, Any]):
    """A dict that may be replaced in the memo."""

    __slots__ = ("place",)
    place: int
    """Index in the memo; unset until it is there."""


class FreshList(list[Any]):
    """A list that may be replaced in the memo."""

    __slots__ = ("place",)
    place: int


class PlainPickle:
    """Reads one file.

    Args:
        path: The file.
        finish: Gets each dict that is filled at once; if it does not return None, its result replaces the dict.
        finish_list: Gets each list of objects that are in the memo, equal lists once; its result replaces the list.
    """

    def __init__(self, path: Path, finish: Callable[[dict[Any, Any]], Any],
                 finish_list: Callable[[list[Any]], Any]) -> None:
        self._path, self._finish, self._finish_list = path, finish, finish_list
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: list[Any] = []
        self._strings: dict[bytes, str] = {}
        self._lists: dict[bytes, Any] = {}
        self._data, self._at, self._left, self._before = b"", 0, 0, 0

    def load(self) -> Any:
        """Returns the object in the file.

        Raises:
            DataError: It contains more than plain containers, is damaged, or is not a pickle.
        """
        with self._path.open("rb") as file:
            self._left = os.fstat(file.fileno()).st_size
            if not self._left:
                raise DataError(f"{self._path} is empty, not a memory snapshot",
                                hint="was the disk full, or was the job killed while writing?")
            self._more(file)
            if self._data[:1] != b"\x80":
                raise DataError(f"{self._path} is not a memory snapshot from torch", hint=HINT)
            try:
                return self._run(file)
            except BROKEN as error:
                self._broken(is_cut=isinstance(error, IndexError | struct.error))

    def replace(self, container: object, small: object) -> None:
        """Puts `small` in the place of a dict or list in the memo that is not needed any more."""
        place = getattr(container, "place", None)
        if place is not None:
            self._memo[place] = small

    def _broken(self, *, is_cut: bool) -> NoReturn:
        if is_cut and self._at + LONGEST_NUMBER >= len(self._data) and not self._left:
            raise DataError(f"the memory snapshot {self._path} is cut off after {self._before + len(self._data)} bytes",
                            hint="was the disk full, or was the job killed while writing?") from None
        raise DataError(f"the memory snapshot {self._path} is damaged near byte "
                        f"{self._before + self._at}", hint="dump it or copy it again") from None

    def _more(self, file: BinaryIO, wanted: int = 0) -> None:
        """Drops what was read and reads on, so that at least `wanted` bytes lie ahead."""
        num_bytes = min(max(CHUNK_BYTES, wanted), self._left)
        if wanted > len(self._data) - self._at + num_bytes:
            self._at, self._left = len(self._data), 0
            raise IndexError
        self._before += self._at
        self._data, self._at = self._data[self._at:] + file.read(num_bytes), 0
        self._left -= num_bytes

    def _run(self, file: BinaryIO) -> Any:
        """Runs the opcodes. One long function: with 100 million opcodes, a call for each would take longer."""
        stack, marks, memo, push = self._stack, self._marks, self._memo, self._stack.append
        data, at = self._data, self._at
        unsigned, from_bytes, run_of = _unsigned.unpack_from, int.from_bytes, OF_THE_MEMO.match
        limit, strings = self._limit(), self._strings
        try:
            while True:
                if at >= limit:
                    self._at = at
                    if self._left:
                        self._more(file)
                        data, at, limit = self._data, 0, self._limit()
                code = data[at]
                at += 1
                if code == 0x68:  # BINGET
                    push(memo[data[at]])
                    at += 1
                elif code == 0x6A:  # LONG_BINGET
                    push(memo[unsigned(data, at)[0]])
                    at += 4
                elif code == 0x8A:  # LONG1
                    end = at + 1 + data[at]
                    push(from_bytes(data[at + 1:end], "little", signed=True))
                    at = end
                elif code == 0x4B:  # BININT1
                    push(data[at])
                    at += 1
                elif code == 0x94:  # MEMOIZE
                    top = stack[-1]
                    if top.__class__ is Fresh or top.__class__ is FreshList:
                        top.place = len(memo)
                    memo.append(top)
                elif code == 0x8C:  # SHORT_BINUNICODE
                    end = at + 1 + data[at]
                    if end > len(data):
                        raise IndexError
                    raw = data[at + 1:end]
                    push(strings.get(raw) or self._string(raw))
                    at = end
                elif code == 0x28:  # MARK
                    marks.append(len(stack))
                elif code == 0x4D:  # BININT2
                    push(data[at] | data[at + 1] << 8)
                    at += 2
                elif code == 0x4A:  # BININT
                    push(_signed.unpack_from(data, at)[0])
                    at += 4
                elif code == 0x7D:  # EMPTY_DICT
                    push(Fresh())
                elif code == 0x75:  # SETITEMS
                    self._set_items()
                elif code == 0x5D:  # EMPTY_LIST
                    found = run_of(data, at)
                    small = self._list(found) if found is not None else None
                    push(FreshList() if small is None else small)
                    if small is not None and found is not None:
                        at = found.end()
                        if found[1] is not None:
                            memo.append(small)
                elif code == 0x65:  # APPENDS
                    items = self._behind_mark()
                    if stack[-1].__class__ is not FreshList:
                        raise TypeError
                    stack[-1].extend(items)
                elif code == 0x2E:  # STOP
                    return self._result()
                else:
                    self._at = at
                    self._rare(code, file)
                    data, at, limit = self._data, self._at, self._limit()
        except BROKEN:
            self._at = max(self._at, at)
            raise

    def _limit(self) -> int:
        """Returns where in the chunk to read on; at the end of the file, only invalid pickles go beyond it."""
        return len(self._data) - MARGIN_BYTES if self._left else len(self._data)

    def _result(self) -> Any:
        if len(self._stack) != 1:
            raise IndexError
        return self._stack[0]

    def _remember(self, number: int) -> None:
        top = self._stack[-1]
        if top.__class__ is Fresh or top.__class__ is FreshList:
            top.place = number
        if number == len(self._memo):
            self._memo.append(top)
        else:
            self._memo[number] = top  # a larger number is an IndexError: writers count up

    def _behind_mark(self) -> list[Any]:
        start = self._marks.pop()
        items = self._stack[start:]
        del self._stack[start:]
        return items

    def _string(self, raw: bytes) -> str:
        known = self._strings.get(raw)
        if known is None:
            known = _text(raw)
            if len(raw) < SHORT and len(self._strings) < MOST_CACHED:
                self._strings[raw] = known
        return known

    def _list(self, found: re.Match[bytes]) -> Any:
        """Returns the replacement of a list; None if there is none."""
        key = found[2]
        small = self._lists.get(key)
        if small is None:
            small = self._finish_list([self._memo[short[0] if short else _unsigned.unpack(long)[0]]
                                       for short, long in REFERENCE.findall(key)])
            if small is not None and len(self._lists) < MOST_CACHED:
                self._lists[key] = small
        return small

    def _set_items(self) -> None:
        items, stack = self._behind_mark(), self._stack
        found, top = dict(zip(items[::2], items[1::2], strict=True)), stack[-1]
        if top.__class__ is not Fresh:
            raise TypeError
        small = self._finish(found) if not top else None
        if small is None:
            top.update(found)
        else:
            stack[-1] = small
            self.replace(top, small)

    def _rare(self, code: int, file: BinaryIO) -> None:
        """Runs opcodes that are not part of every entry."""
        stack, data, at = self._stack, self._data, self._at
        if code in REFUSED:
            raise DataError(f"{self._path} must hold only plain containers, but it creates objects or runs code "
                            f"({REFUSED[code]} at byte {self._before + at - 1})", hint=HINT)
        if code == 0x95:  # FRAME
            self._at += 8
        elif code in (0x58, 0x8D):  # BINUNICODE, BINUNICODE8
            self._long_string(4 if code == 0x58 else 8, file)
        elif code in (0x71, 0x72):  # BINPUT, LONG_BINPUT
            self._remember(data[at] if code == 0x71 else _unsigned.unpack_from(data, at)[0])
            self._at += 1 if code == 0x71 else 4
        elif code == 0x8B:  # LONG4
            size = _unsigned.unpack_from(data, at)[0]
            raise OverflowError(size)  # no number in a snapshot has more than 255 bytes
        elif code in (0x4E, 0x88, 0x89):  # NONE, NEWTRUE, NEWFALSE
            stack.append({0x4E: None, 0x88: True, 0x89: False}[code])
        elif code == 0x47:  # BINFLOAT
            stack.append(_double.unpack_from(data, at)[0])
            self._at += 8
        elif code == 0x80:  # PROTO
            self._at += 1
        else:
            self._container(code)

    def _long_string(self, width: int, file: BinaryIO) -> None:
        begin = self._at + width
        size = int.from_bytes(self._data[self._at:begin], "little")
        self._at = begin
        if begin + size > len(self._data):
            self._more(file, size)
        self._stack.append(self._string(self._data[self._at:self._at + size]))
        self._at += size

    def _container(self, code: int) -> None:
        stack = self._stack
        if code == 0x73:  # SETITEM
            value, key = stack.pop(), stack.pop()
            if stack[-1].__class__ is not Fresh:
                raise TypeError
            stack[-1][key] = value
        elif code == 0x61:  # APPEND
            value = stack.pop()
            if stack[-1].__class__ is not FreshList:
                raise TypeError
            stack[-1].append(value)
        elif code == 0x29:  # EMPTY_TUPLE
            stack.append(())
        elif code == 0x74:  # TUPLE
            stack.append(_tuple(self._behind_mark()))
        elif code in (0x85, 0x86, 0x87):  # TUPLE1 to TUPLE3
            count = code - 0x84
            items = stack[-count:]
            del stack[-count:]
            stack.append(_tuple(items))
        else:
            raise ValueError(code)


def _tuple(items: list[Any]) -> tuple[Any, ...]:
    """Returns a tuple of scalars, as ids of pools are; hashing deeply nested tuples would overflow Python's stack."""
    if not all(isinstance(item, SCALARS) for item in items):
        raise TypeError
    return tuple(items)


def _text(raw: bytes) -> str:
    """Decodes a string. Unpaired surrogates, from paths that are not UTF-8, are escaped: no table accepts them."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw.decode("utf-8", "surrogatepass").encode("utf-8", "backslashreplace").decode()
