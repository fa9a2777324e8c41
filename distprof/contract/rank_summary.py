"""What a rank adds to the file of its host: its packed tables, so that those of thousands of ranks can be read at once.

A column consists of the bytes of its values, little-endian: columns of all ranks are concatenated and read as one
array. Every call is included: times are stored as differences, and properties of calls once for all steps with the same
calls.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from distprof.contract.rank_json import RankJson
from distprof.contract.tables import MODULES, OPS, STEPS

SUMMARY_FORMAT = 3
"""The newest summary format that this version reads and the one that it writes."""
SUMMARIES = "columns"
"""Folder of the run directory with one file per host."""
SUMMARY_SUFFIX = ".bin"
NO_INTEGER = -(2**63)
"""Stands for an unknown int64."""
NO_OFFSET = -(2**31)
"""Stands for an unknown value in `Arrivals.times` or `Arrivals.numbers`."""
NO_TEXT = -1
"""Stands for an unknown text."""
UNKNOWN = 2
"""Value of `in_autograd` if it is unknown whether gradients flow through a call."""

DTYPES: Mapping[str, str] = {"int64": "<i8", "float64": "<f8", "bool": "u1", "string": "<i4", "category": "<i4"}
"""Type of a table column -> dtype of its packed values; texts are indices into `PackedTable.texts`."""
TIMES = ("enqueue_ns", "start_ns", "end_ns", "wait_start_ns", "wait_end_ns")
"""Keys of `Arrivals.times`."""
NUMBERS = ("sequence", "group_sequence")
"""Keys of `Arrivals.numbers`."""

STEP_COLUMNS = tuple(column for column in STEPS.columns if column.name not in ("rank", "mp_size", "dp_size"))
MODULE_COLUMNS = tuple(column for column in MODULES.columns if column.name not in ("rank", "mp_size", "dp_size"))
OP_COLUMNS = tuple(column for column in OPS.columns if column.name not in (
    "rank", "mp_size", "dp_size", "module_path", "shapes", "note"))
SEQUENCE_COLUMNS = {"channel": "<i4", "fingerprint": "<i8", "calls": "<i4"}
"""Columns of `Arrivals.sequences`: one row for each different list of calls of a channel in a step. `calls` is their
number; `fingerprint` is the same on ranks that may have made these calls together."""
CALL_COLUMNS = {"op": "<i4", "dtype": "<i4", "size_bytes": "<i8", "num_elements": "<i8", "peer": "<i8", "tag": "<i8",
                "module_path": "<i4", "phase": "<i4", "timed_by": "<i4", "asynchronous": "u1", "in_autograd": "u1"}
"""Columns of `Arrivals.calls`: the calls of each sequence, one after the other. `in_autograd` is 2 if unknown; `peer`
is the root, as the channel of messages has their peer."""
CELL_COLUMNS = {"step": "<i4", "sequence": "<i4", "base_ns": "<i8", "in_ns": "<i8", "waited_ns": "<i8",
                "first_sequence": "<i8", "first_group_sequence": "<i8"}
"""Columns of `Arrivals.cells`: one row per channel and step; `in_ns` and `waited_ns` are sums over its calls."""
WAIT_COLUMNS = {"step": "<i4", "blocked_ns": "<i8", "in_ns": "<i8"}
"""Columns of `Arrivals.waits`: how much of a step the rank waited for communication, and for how much of it any
communication was in progress."""
EXCHANGE_COLUMNS = {"op": "<i4", "group": "<i4", "peer": "<i4", "inside": "u1"}
"""Columns of `RankSummary.exchanges`."""


class PackedTable(msgspec.Struct, frozen=True, kw_only=True):
    """A table whose columns are packed as bytes."""

    rows: int = 0
    columns: dict[str, bytes] = {}
    texts: dict[str, list[str]] = {}
    """Text column -> the texts that its values index; -1 is null."""


class RankGroup(msgspec.Struct, frozen=True, kw_only=True):
    """A process group."""

    name: str
    description: str
    ranges: list[tuple[int, int, int]]
    """Its global ranks as (first, stride, count), in the order of the group."""
    num_ranks: int
    digest: int
    """The same for groups of the same ranks in the same order."""

    @property
    def ranks(self) -> list[int]:
        """Global ranks, in the order of the group."""
        return [first + stride * index for first, stride, count in self.ranges for index in range(count)]


class Channel(msgspec.Struct, frozen=True, kw_only=True):
    """A stream of communication: the collectives of a group, or the messages to or from one of its ranks."""

    group: int
    """Index into `Arrivals.groups`."""
    op: str | None = None
    """send or recv; None for collectives."""
    peer: int | None = None
    """Global rank of the other side; None for collectives."""


class Arrivals(msgspec.Struct, frozen=True, kw_only=True):
    """All communication calls of a rank, in the order of cells (channel and step), and in each in the order of issue.

    `enqueue_ns` of a call is `base_ns` of its cell + `unit_ns` x its value in `times`. Its other times are relative to
    `enqueue_ns`, except `wait_end_ns`, which is relative to `end_ns` if that is known. `sequence` and `group_sequence`
    are the first number of the cell + the index in the cell + the value in `numbers`.
    """

    groups: list[RankGroup] = []
    channels: list[Channel] = []
    sequences: PackedTable = PackedTable()
    calls: PackedTable = PackedTable()
    cells: PackedTable = PackedTable()
    unit_ns: int = 1
    """Larger than 1 if steps are so long that times would not fit into int32."""
    times: dict[str, bytes] = {}
    """One of `TIMES` -> int32, one value per call."""
    numbers: dict[str, bytes] = {}
    """One of `NUMBERS` -> int32, one value per call; empty if all are 0."""
    waits: PackedTable = PackedTable()


class ParametersDigest(msgspec.Struct, frozen=True, kw_only=True):
    """Digest of `parameters.parquet`, by which ranks are compared; hashes are the same on ranks that agree."""

    rows: int
    names_hash: int
    """Hash of all names, sizes and element types, independent of what is stored on the rank."""
    comparable: int
    """Number of parameters with a checksum, to which the next two fields refer."""
    comparable_names_hash: int
    values_hash: int
    params: int
    stored_params: int
    stored: bytes = b""
    """`stored_params` of each row, int64; empty if they equal `params`."""


class RankSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What the file of a host has about one rank."""

    format: int = SUMMARY_FORMAT
    about: RankJson
    """rank.json at the time when the summary was made."""
    folder: str = ""
    """Name of the rank's folder; '' if it has none."""
    steps: PackedTable = PackedTable()
    """`STEP_COLUMNS`."""
    modules: PackedTable = PackedTable()
    """`MODULE_COLUMNS`, in the order of the model."""
    ops: PackedTable = PackedTable()
    """`OP_COLUMNS`, summed over modules and shapes."""
    parameters: ParametersDigest | None = None
    """None if the rank has no table of parameters."""
    exchanges: PackedTable = PackedTable()
    """`EXCHANGE_COLUMNS`: the different calls of the first step that show how ranks divide the model, in order of first
    appearance: messages, and results that modules combine in forward (`inside`)."""
    arrivals: Arrivals | None = None
    """None if the rank has no table of collectives."""
    tables: dict[str, int] = {}
    """Table that was read -> number of its rows."""
    damaged: list[str] = []
    """Tables that could not be read and are not included."""
