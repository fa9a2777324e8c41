"""Encodes messages of Chakra's execution trace schema (schema/protobuf/et_def.proto of github.com/mlcommons/chakra).

This is the part of the wire format of protocol buffers (proto3, protobuf.dev/programming-guides/encoding) that
execution traces need: integers as varints, everything else prefixed with its length. Protobuf's runtime is not a
dependency, because other programs pin its version.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

_VARINT, _LENGTH = 0, 2
_MASK = 2**64 - 1
_OF_A_BYTE = [bytes((number,)) for number in range(128)]


def varint(number: int) -> bytes:
    """Encodes an integer below 2^64; negative ones as two's complement of 64 bits."""
    if 0 <= number <= 0x7F:
        return _OF_A_BYTE[number]
    number &= _MASK
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)


def number_field(field: int, value: int) -> bytes:
    """Encodes a field of any integer type or bool."""
    return varint(field << 3 | _VARINT) + varint(value)


def bytes_field(field: int, value: bytes) -> bytes:
    """Encodes a field that holds a message, bytes, or a text in UTF-8."""
    return varint(field << 3 | _LENGTH) + varint(len(value)) + value


def text_field(field: int, value: str) -> bytes:
    """Encodes a text field; characters that UTF-8 cannot encode are replaced."""
    return bytes_field(field, value.encode("utf-8", "replace"))


def numbers_field(field: int, values: Iterable[int]) -> bytes:
    """Encodes a packed repeated integer field; empty if there are no values."""
    packed = b"".join(map(varint, values))
    return bytes_field(field, packed) if packed else b""


def delimited(message: bytes) -> bytes:
    """Prefixes a message with its length, for a stream of messages."""
    return varint(len(message)) + message


class NodeType(IntEnum):
    """The schema's types of nodes."""

    METADATA = 1
    MEM_LOAD = 2
    MEM_STORE = 3
    COMP = 4
    COMM_SEND = 5
    COMM_RECV = 6
    COMM_COLL = 7


VERSION = "1.1.1-chakra.0.0.4"
"""Version of the schema that the values of nodes follow."""
COMM_TYPES = {"all_reduce": 0, "reduce": 1, "all_gather": 2, "gather": 3, "scatter": 4, "broadcast": 5, "all_to_all": 6,
              "reduce_scatter": 7, "barrier": 9}
"""Op -> CollectiveCommType, which is written as the attribute `comm_type`. 8 is a reduce_scatter that torch does not
have."""
ATTRIBUTE_FIELDS = {"int32": 7, "int64": 9, "uint64": 13, "bool": 27, "string": 29}
"""Type of an attribute -> number of its field in AttributeProto."""
Attribute = tuple[str, str, int | str | bool]
"""Name, type and value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Values:
    """Inputs or outputs of a node as texts."""

    values: str = "[]"
    shapes: str = "[]"
    types: str = "[]"

    def message(self) -> bytes:
        """Encodes the message IOInfo."""
        return text_field(1, self.values) + text_field(2, self.shapes) + text_field(3, self.types)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChakraNode:
    """A node of the graph; ids are greater than 0."""

    id: int
    name: str
    type: NodeType
    control: Iterable[int] = ()
    """Ids of the enclosing nodes."""
    data: Sequence[int] = ()
    """Ids of nodes that must end before it."""
    start_us: int = 0
    duration_us: int = 0
    inputs: Values = Values()
    outputs: Values = Values()
    attributes: Iterable[Attribute] = ()

    def message(self) -> bytes:
        """Encodes the message Node."""
        return b"".join((
            number_field(1, self.id), text_field(2, self.name), number_field(3, self.type),
            numbers_field(4, self.control), numbers_field(5, self.data),
            number_field(6, self.start_us), number_field(7, self.duration_us),
            bytes_field(8, self.inputs.message()), bytes_field(9, self.outputs.message()),
            *(bytes_field(10, _attribute(*one)) for one in self.attributes)))


@dataclass(frozen=True, slots=True, kw_only=True)
class GlobalMetadata:
    """The message before the nodes."""

    version: str
    attributes: Mapping[str, str] = field(default_factory=dict)

    def message(self) -> bytes:
        """Encodes the message GlobalMetadata."""
        return text_field(1, self.version) + b"".join(
            bytes_field(2, _attribute(name, "string", value)) for name, value in self.attributes.items())


def _attribute(name: str, kind: str, value: int | str | bool) -> bytes:  # noqa: FBT001 (a value like others)
    number = ATTRIBUTE_FIELDS[kind]
    return text_field(1, name) + (text_field(number, value) if isinstance(value, str) else number_field(number, value))


def rounded_us(ns: int) -> int:
    """Rounds to microseconds, but to at least 1 for positive durations, because simulators omit nodes with 0."""
    return max(round(ns / 1000), 1) if ns > 0 else 0
