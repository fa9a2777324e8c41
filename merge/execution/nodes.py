"""Reads the nodes of an execution trace as torch's observer writes them, one by one; memory holds only a few chunks.

In older files (schema 1.0) parents and tensors are keys of a node, in newer ones (1.1) they are in lists of attributes;
the reader returns the same `Node` for both.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from distprof.errors import DataError
from distprof.merge.scan.chrome_file import ChromeFile, Losses
from distprof.merge.scan.chunk_reader import ChunkReader
from distprof.merge.scan.engine import ENGINE
from distprof.merge.scan.gunzip import READ_BYTES
from distprof.merge.scan.trace_file import TraceFile

LIST_KEY = "nodes"
NOTHING = msgspec.Raw(b"[]")
MOST_ID = 2**64 - 1
DIGITS = 20
LONGEST_LINE = 4 << 20
"""Bytes; in a longer line, names that span two chunks are not repaired."""
_BEHIND_NAME = rb'", "ctrl_deps": [0-9]'
_NAME = re.compile(
    rb'("id": [0-9]++, "name": ")([^"\\\n]*+(?!%s)["\\](?:(?!%s)[^\n])*+)(?=%s)' % ((_BEHIND_NAME,) * 3))
"""A name that contains a quotation mark or a backslash, in the line that torch writes for a node."""
_OWN = re.compile(rb'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})|(["\\])')


class Values(msgspec.Struct, gc=False, frozen=True):
    """Inputs or outputs of a node; each field is the text of a JSON list."""

    values: msgspec.Raw = NOTHING
    """A tensor is a list: tensor id, storage id, offset, number of elements, bytes of an element, device."""
    shapes: msgspec.Raw = NOTHING
    types: msgspec.Raw = NOTHING


class Node(msgspec.Struct, gc=False):
    """One recorded call."""

    id: int
    name: str
    parent: int = 0
    """Id of the enclosing node; 0 for none."""
    rf_id: int = 0
    """Id of the call, which its slice in the timeline has too; 0 for none."""
    fw_parent: int = 0
    """For a node of the backward pass, the id of its forward node."""
    seq_id: int = -1
    """Sequence number of the autograd node; -1 for none."""
    scope: int = 0
    """0: operator, 1: autograd function, 7: range that the user marked."""
    tid: int = 0
    fw_tid: int = 0
    op_schema: str = ""
    inputs: Values = Values()
    outputs: Values = Values()


class _Attribute(msgspec.Struct, gc=False):
    name: str = ""
    value: Any = None


class _Written(msgspec.Struct, gc=False):
    """A node as decoded from any schema."""

    id: Any = None
    name: Any = ""
    ctrl_deps: Any = 0
    parent: Any = 0
    rf_id: Any = 0
    fw_parent: Any = 0
    seq_id: Any = -1
    scope: Any = 0
    tid: Any = 0
    fw_tid: Any = 0
    op_schema: Any = ""
    inputs: msgspec.Raw = NOTHING
    outputs: msgspec.Raw = NOTHING
    input_shapes: msgspec.Raw = NOTHING
    input_types: msgspec.Raw = NOTHING
    output_shapes: msgspec.Raw = NOTHING
    output_types: msgspec.Raw = NOTHING
    attrs: list[_Attribute] = []


NUMBERS = {"rf_id": 0, "fw_parent": 0, "seq_id": -1, "scope": 0, "tid": 0, "fw_tid": 0}
"""Attribute -> its default value."""
_DECODER = msgspec.json.Decoder(_Written)
_VALUES = msgspec.json.Decoder(Values)


@dataclass(slots=True)
class NodeFile:
    """One pass over an execution trace."""

    trace: TraceFile
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """Keys of the file other than the nodes; complete only after the last node."""
    losses: Losses = field(default_factory=Losses)
    num_bad: int = 0
    """Elements of the list that are not nodes, because they have no id or no name."""

    def nodes(self) -> Iterator[tuple[Node, bytes]]:
        """Yields the nodes in the order of the file, each with its text.

        Raises:
            DataError: The file is not an execution trace.
        """
        scanner = ENGINE.new_scanner()
        chunks = with_strict_names(ChunkReader(self.trace, chunk_bytes=READ_BYTES))
        file = ChromeFile(self.trace.name, chunks, scanner, LIST_KEY)
        self.losses, self.num_bad, found = file.losses, 0, 0
        for text in file.scanned():
            self.metadata = file.metadata
            for start, end in zip(scanner.column("start").tolist(), scanner.column("end").tolist(), strict=True):
                own = bytes(text[start:end])
                node = node_of(own)
                if node is None:
                    self.num_bad += 1
                else:
                    found += 1
                    yield node, own
        self.metadata = file.metadata
        if self.num_bad and not found:
            raise DataError(f"no nodes with an id and a name in {self.trace.name}",
                            hint="it is not an execution trace")


def with_strict_names(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Escapes quotation marks and backslashes in names of nodes; torch writes names from scripts unescaped."""
    held = b""
    for chunk in chunks:
        text = held + chunk
        end = text.rfind(b"\n") + 1 or (len(text) if len(text) > LONGEST_LINE else 0)
        held = text[end:]
        if end:
            yield _NAME.sub(_strict_name, text[:end])
    if held:
        yield _NAME.sub(_strict_name, held)


def _strict_name(found: re.Match[bytes]) -> bytes:
    return found[1] + _OWN.sub(lambda own: b"\\" + own[1] if own[1] else own[0], found[2])


def node_of(text: bytes) -> Node | None:
    """Parses a node; returns None if it has no id or no name."""
    try:
        written = _DECODER.decode(text)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    number = _id(written.id)
    if number is None or not isinstance(written.name, str):
        return None
    given: Mapping[str, Any] = {one.name: one.value for one in written.attrs} if written.attrs else {
        name: getattr(written, name) for name in (*NUMBERS, "op_schema")}
    numbers = {name: value if type(value := given.get(name)) is int else default for name, default in NUMBERS.items()}
    parent = written.ctrl_deps or written.parent
    around = _id(parent[0] if isinstance(parent, list) and parent else parent)
    schema = given.get("op_schema")
    return Node(
        id=number, name=written.name, parent=0 if around in (None, number) else around or 0,
        op_schema=schema if isinstance(schema, str) else "", **numbers,
        inputs=_values(written.inputs, written.input_shapes, written.input_types),
        outputs=_values(written.outputs, written.output_shapes, written.output_types))


def _id(value: object) -> int | None:
    """Parses an id; from 2^63 on it is a string, because the scanner quotes integers that exceed signed 64 bits."""
    if type(value) is str and value.isdecimal() and len(value) <= DIGITS:
        value = int(value)
    return value if type(value) is int and 0 <= value <= MOST_ID else None


def _values(given: msgspec.Raw, shapes: msgspec.Raw, types: msgspec.Raw) -> Values:
    if not bytes(given).startswith(b"{"):
        return Values(given, shapes, types)
    try:
        return _VALUES.decode(given)
    except msgspec.MsgspecError:
        return Values()
