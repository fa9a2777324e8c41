"""What a rank says about itself in some KB: the summary that commands read first where a run has many ranks.

Tables are packed: a column is the bytes of its values, little-endian, so that those of thousands of ranks are joined
and read as one array. Sizes are bounded whatever the job; what was cut is counted in `cut`.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from distprof.contract.rank_json import RankJson
from distprof.contract.tables import MODULES, OPS, STEPS, Table

SUMMARY_FORMAT = 1
"""The newest summary that this version reads and the one it writes."""
SUMMARIES = "summaries"
"""Folder of a run directory with a file for each host."""
SUMMARY_SUFFIX = ".bin"
NO_INTEGER = -(2**63)
"""Where an int64 is not known."""
NO_OFFSET = -(2**31)
"""Where a time in `Arrivals.times` is not known."""
NO_TEXT = -1
"""Where a text is not known."""

MOST_STEPS = 512
"""Steps that a summary has; of more, the last ones."""
MOST_MODULES = 96
"""Modules: the top ones by time and by FLOPs, and those nearest to the root, as far as there is room."""
TOP_MODULES = 32
"""Modules by time, and by FLOPs, that come first."""
MOST_OPS = 64
"""Rows of reduced operators."""
TOP_UNCOUNTED = 16
"""Operators without a formula that keep their names."""
MOST_SHARDS = 4096
"""Parameters up to which it is noted how much of each lies on the rank."""
MOST_GROUPS = 32
"""Process groups; of more, those with most time in them."""
MOST_RANGES = 128
"""Ranges of ranks that describe a group."""
MOST_CHANNELS = 48
"""Channels; of more, those with most calls."""
MOST_KINDS = 96
TURNS = 4
"""Steps take turns in which calls they keep the times of, by their number."""
MOST_SEQUENCES = 256
"""Different sequences of calls, in each turn."""
MOST_CELLS = 2048
"""Steps times channels."""
MOST_CALLS = 2048
"""Calls whose times are kept, of all steps and channels together."""
CALLS_EACH = 8
"""Calls of a channel in a step whose times are kept, from all parts of its sequence; fewer where there are too many."""
MESSAGES_EACH = 4
"""The same of sends and receives."""
MOST_ACTIVITIES = 16
"""Activities that a step is split into."""
MOST_EXCHANGES = 128
"""Different calls of the first step that say how ranks divide the model."""
MOST_CHARACTERS = 200
"""Of a name; of a longer one the middle is left out."""
MOST_BYTES = 256 * 1024
"""Of a packed summary. One that is larger after all loses its arrivals, which is counted."""

DTYPES: Mapping[str, str] = {"int64": "<i8", "float64": "<f8", "bool": "u1", "string": "<i4", "category": "<i4"}
"""Type of a column of a table -> that of its packed values: texts are numbers of `PackedTable.texts`."""
TIMES = ("enqueue_ns", "start_ns", "end_ns", "wait_start_ns", "wait_end_ns", "blocked_before_ns")
"""Columns of `Arrivals.times`; the last is how long the rank had waited for collectives in the step before the call."""

STEP_COLUMNS = tuple(column for column in STEPS.columns if column.name not in ("rank", "mp_size", "dp_size"))
MODULE_COLUMNS = tuple(column for column in MODULES.columns if column.name not in ("rank", "mp_size", "dp_size"))
OP_COLUMNS = tuple(column for column in OPS.columns if column.name not in (
    "rank", "mp_size", "dp_size", "module_path", "shapes", "note"))
KIND_COLUMNS = {"channel": "<i4", "op": "<i4", "dtype": "<i4", "calls": "<i8", "steps": "<i8", "min_bytes": "<i8",
                "max_bytes": "<i8", "sum_bytes": "<i8", "in_ns": "<i8", "waited_ns": "<i8", "without_end": "<i8",
                "asynchronous": "<i8"}
"""Of `Arrivals.kinds`: all calls of a channel that are alike."""
SEQUENCE_COLUMNS = {"channel": "<i4", "fingerprint": "<i8", "calls": "<i8", "kept": "<i4"}
"""Of `Arrivals.sequences`: the calls of a channel in a step, one row for steps of a turn in which they are the same.
`fingerprint` is of all of them, and the same in every turn."""
CALL_COLUMNS = {"place": "<i4", "op": "<i4", "dtype": "<i4", "size_bytes": "<i8", "peer": "<i4", "module_path": "<i4",
                "phase": "<i4", "asynchronous": "u1"}
"""Of `Arrivals.calls`: the kept calls of each sequence, as many rows as `kept` says, in the order of sequences. `peer`
is the root of a rooted op."""
CELL_COLUMNS = {"step": "<i4", "sequence": "<i4", "base_ns": "<i8", "in_ns": "<i8", "waited_ns": "<i8"}
"""Of `Arrivals.cells`: a channel in a step."""
SPENT_COLUMNS = {"step": "<i4", "activity": "<i4", "ns": "<i8"}
"""Of `Arrivals.spent`: what a step is split into."""
EXCHANGE_COLUMNS = {"op": "<i4", "group": "<i4", "peer": "<i4", "inside": "u1"}
"""Of `RankSummary.exchanges`."""
COMMUNICATION = "communication"
"""Kind of the activity that is waiting for collectives."""


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
    """Its global ranks as (first, stride, count); none where there would be more than `MOST_RANGES`."""
    num_ranks: int
    digest: int
    """Equal for groups of the same ranks, in the same order."""

    @property
    def ranks(self) -> list[int]:
        """Global ranks, as far as `ranges` has them."""
        return [first + stride * index for first, stride, count in self.ranges for index in range(count)]


class Channel(msgspec.Struct, frozen=True, kw_only=True):
    """Where a rank meets others: the collectives of a group, or the messages to or from one rank of it."""

    group: int
    """Number of the group."""
    op: str | None = None
    """send or recv; None: collectives."""
    peer: int | None = None
    """Global rank of the other side; None: collectives."""


class Activity(msgspec.Struct, frozen=True, kw_only=True):
    """What a rank does between its calls."""

    kind: str
    """Phase of the call that ends it (forward, backward, recompute, optimizer, evaluation), data (before the first
    forward call, where that is known), outside, end (behind the last call of a step), communication (waiting for
    collectives), other (of too many phases)."""
    module_path: str | None = None
    """Module that issued the call that ends it; where there are many, the outer one that all ranks have room for."""


class Arrivals(msgspec.Struct, frozen=True, kw_only=True):
    """Communication of a rank: every call is counted, and of some, the same ones on all ranks, times are kept.

    Times of a call are `base_ns` of its cell + `unit_ns` x a number of `times`. Kept calls are in the order of cells,
    and of places in each, as many as `kept` of the cell's sequence.
    """

    groups: list[RankGroup] = []
    channels: list[Channel] = []
    kinds: PackedTable = PackedTable()
    sequences: PackedTable = PackedTable()
    calls: PackedTable = PackedTable()
    cells: PackedTable = PackedTable()
    unit_ns: int = 1
    """Larger than 1 where steps are so long that times would not fit."""
    times: dict[str, bytes] = {}
    """One of `TIMES` -> int32, a value a kept call; times in the order of cells. `blocked_before_ns` counts from 0."""
    activities: list[Activity] = []
    spent: PackedTable = PackedTable()


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
    """`stored_params` of each row, int64, where that differs from `params` and there are at most `MOST_SHARDS`."""


class RankSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A rank in some KB."""

    format: int = SUMMARY_FORMAT
    about: RankJson
    """rank.json as it was when the summary was made."""
    folder: str = ""
    """Name of the folder of the rank; '' where it has none."""
    steps: PackedTable = PackedTable()
    """`STEP_COLUMNS`."""
    modules: PackedTable = PackedTable()
    """`MODULE_COLUMNS` of the modules that matter, in the order of the model."""
    ops: PackedTable = PackedTable()
    """`OP_COLUMNS`, reduced: all counted operators of a phase, kind and type are one row, which is called
    `convolutions` or `operators`; those without a formula keep their names, the largest of them."""
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
    cut: dict[str, int] = {}
    """What -> how many of it were left out, so that the summary stays small."""


def type_names(table: Table) -> dict[str, str]:
    """Column of a table of ranks -> type of its packed values."""
    return {column.name: DTYPES[column.type] for column in table.columns if column.type in DTYPES}
