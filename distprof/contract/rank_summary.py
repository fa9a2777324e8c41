"""What a rank adds to the file of its host: its tables, packed, so that those of thousands of ranks are read at once.

A column is the bytes of its values, little-endian: columns of all ranks are joined and read as one array. Nothing is
left out: times of calls are differences, and what calls of a step are is there once for all steps with the same calls.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from distprof.contract.rank_json import RankJson
from distprof.contract.tables import MODULES, OPS, STEPS

SUMMARY_FORMAT = 3
"""The newest summary that this version reads and the one it writes."""
SUMMARIES = "columns"
"""Folder of a run directory with a file for each host."""
SUMMARY_SUFFIX = ".bin"
NO_INTEGER = -(2**63)
"""Where an int64 is not known."""
NO_OFFSET = -(2**31)
"""Where a time in `Arrivals.times` is not known."""
NO_TEXT = -1
"""Where a text is not known."""
UNKNOWN = 2
"""Where it is not known whether gradients pass a call."""

DTYPES: Mapping[str, str] = {"int64": "<i8", "float64": "<f8", "bool": "u1", "string": "<i4", "category": "<i4"}
"""Type of a column of a table -> that of its packed values: texts are numbers of `PackedTable.texts`."""
TIMES = ("enqueue_ns", "start_ns", "end_ns", "wait_start_ns", "wait_end_ns")
"""Columns of `Arrivals.times`."""
NUMBERS = ("sequence", "group_sequence")
"""Columns of `Arrivals.numbers`."""

STEP_COLUMNS = tuple(column for column in STEPS.columns if column.name not in ("rank", "mp_size", "dp_size"))
MODULE_COLUMNS = tuple(column for column in MODULES.columns if column.name not in ("rank", "mp_size", "dp_size"))
OP_COLUMNS = tuple(column for column in OPS.columns if column.name not in (
    "rank", "mp_size", "dp_size", "module_path", "shapes", "note"))
SEQUENCE_COLUMNS = {"channel": "<i4", "fingerprint": "<i8", "calls": "<i4"}
"""Of `Arrivals.sequences`: the calls of a channel in a step, one row for steps in which they are the same.
`fingerprint` is equal on ranks that can have called them together."""
CALL_COLUMNS = {"op": "<i4", "dtype": "<i4", "size_bytes": "<i8", "num_elements": "<i8", "peer": "<i8", "tag": "<i8",
                "module_path": "<i4", "phase": "<i4", "timed_by": "<i4", "asynchronous": "u1", "in_autograd": "u1"}
"""Of `Arrivals.calls`: the calls of each sequence, as many rows as `calls` says. `in_autograd` is 2 where it is not
known; `peer` is the root, that of messages is in their channel."""
CELL_COLUMNS = {"step": "<i4", "sequence": "<i4", "base_ns": "<i8", "in_ns": "<i8", "waited_ns": "<i8",
                "first_sequence": "<i8", "first_group_sequence": "<i8"}
"""Of `Arrivals.cells`: a channel in a step; `in_ns` and `waited_ns` are sums over its calls."""
WAIT_COLUMNS = {"step": "<i4", "blocked_ns": "<i8", "in_ns": "<i8"}
"""Of `Arrivals.waits`: in how much of a step the rank waited for collectives, and in how much one was under way."""
EXCHANGE_COLUMNS = {"op": "<i4", "group": "<i4", "peer": "<i4", "inside": "u1"}
"""Of `RankSummary.exchanges`."""


class PackedTable(msgspec.Struct, frozen=True, kw_only=True):
    """Columns of equal length."""

    rows: int = 0
    columns: dict[str, bytes] = {}
    texts: dict[str, list[str]] = {}
    """Column of texts -> the texts that its numbers stand for; -1 is null."""


class RankGroup(msgspec.Struct, frozen=True, kw_only=True):
    """A process group."""

    name: str
    description: str
    ranges: list[tuple[int, int, int]]
    """Its global ranks as (first, stride, count)."""
    num_ranks: int
    digest: int
    """Equal for groups of the same ranks, in the same order."""

    @property
    def ranks(self) -> list[int]:
        """Global ranks, in the order of the group."""
        return [first + stride * index for first, stride, count in self.ranges for index in range(count)]


class Channel(msgspec.Struct, frozen=True, kw_only=True):
    """Where a rank meets others: the collectives of a group, or the messages to or from one rank of it."""

    group: int
    """Number of the group."""
    op: str | None = None
    """send or recv; None: collectives."""
    peer: int | None = None
    """Global rank of the other side; None: collectives."""


class Arrivals(msgspec.Struct, frozen=True, kw_only=True):
    """Communication of a rank, every call of it. Calls are in the order of cells, and in each in that of their issue.

    `enqueue_ns` of a call is `base_ns` of its cell + `unit_ns` x a number of `times`; its other times count from there,
    but for `wait_end_ns`, which counts from its end where that is known. `sequence` and `group_sequence` are the first
    of the cell + the place in the cell + a number of `numbers`.
    """

    groups: list[RankGroup] = []
    channels: list[Channel] = []
    sequences: PackedTable = PackedTable()
    calls: PackedTable = PackedTable()
    cells: PackedTable = PackedTable()
    unit_ns: int = 1
    """Larger than 1 where steps are so long that times would not fit."""
    times: dict[str, bytes] = {}
    """One of `TIMES` -> int32, a value a call; times in the order of cells."""
    numbers: dict[str, bytes] = {}
    """One of `NUMBERS` -> int32, likewise; empty where all are 0."""
    waits: PackedTable = PackedTable()


class ParametersDigest(msgspec.Struct, frozen=True, kw_only=True):
    """What of `parameters.parquet` ranks are compared by; hashes are equal on ranks that agree."""

    rows: int
    names_hash: int
    """Of all names, sizes and element types, whatever lies on the rank."""
    comparable: int
    """Parameters with a checksum; the next two are of these."""
    comparable_names_hash: int
    values_hash: int
    params: int
    stored_params: int
    stored: bytes = b""
    """`stored_params` of each row, int64, where that differs from `params`."""


class RankSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A rank in the file of its host."""

    format: int = SUMMARY_FORMAT
    about: RankJson
    """rank.json as it was when the summary was made."""
    folder: str = ""
    """Name of the folder of the rank; '' where it has none."""
    steps: PackedTable = PackedTable()
    """`STEP_COLUMNS`."""
    modules: PackedTable = PackedTable()
    """`MODULE_COLUMNS`, in the order of the model."""
    ops: PackedTable = PackedTable()
    """`OP_COLUMNS`, added up over modules and shapes."""
    parameters: ParametersDigest | None = None
    """None where the rank has no such table."""
    exchanges: PackedTable = PackedTable()
    """`EXCHANGE_COLUMNS`: different calls of the first step that say how ranks divide the model, in the order of the
    first of each: messages, and what modules join in forward. `inside`: the latter."""
    arrivals: Arrivals | None = None
    """None where the rank has no table of collectives."""
    tables: dict[str, int] = {}
    """Table that was read -> its rows."""
    damaged: list[str] = []
    """Tables that could not be read; nothing of them is here."""
