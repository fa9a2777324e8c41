"""`rank.json`, which recording writes and merging reads; how it and `run.json` are read and written.

Fields with a default may be missing in a file: older versions did not write them all, and other tools need not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal, TypeVar

import msgspec

from distprof.contract.paths import FORMAT
from distprof.contract.run_json import MOST_RANKS, RunJson
from distprof.errors import DataError, FormatError
from distprof.files import json_text, read_small, write_private, write_whole


@dataclass(frozen=True, slots=True, kw_only=True)
class ParamCount:
    """Numbers of parameters; each tensor counts once."""

    params: int = 0
    """What the rank must hold for its model-parallel part; a data-parallel shard counts with its unsharded size."""
    stored_params: int = 0
    """Elements that lie on the rank."""
    trainable_params: int = 0
    """Those of `params` with requires_grad."""
    unique_params: int | None = 0
    """What the pipeline stage has over all its ranks, replicated tensors once; None where it cannot be known."""
    param_bytes: int = 0
    """Bytes of `stored_params`."""
    buffers: int = 0
    """Elements of buffers (running means and the like) that lie on the rank."""
    buffer_bytes: int = 0
    dtypes: Mapping[str, int] = field(default_factory=dict)
    """`params` by element type, like float32."""


class ClockPair(msgspec.Struct, frozen=True, kw_only=True):
    """Two clocks of a rank, read at the same time."""

    realtime_ns: int
    """CLOCK_REALTIME, since the Unix epoch: the clock of all timestamps. It may be set."""
    monotonic_ns: int
    """CLOCK_MONOTONIC, which is never set."""


class ClockSample(msgspec.Struct, frozen=True, kw_only=True):
    """One comparison of this rank's clock with that of a peer."""

    peer: int
    """Global rank that was asked."""
    at_ns: int
    """Since the epoch, this rank's clock."""
    offset_ns: int | None = None
    """To be added to this rank's time to get the peer's; None where the peer did not answer."""
    bound_ns: int | None = None
    """The true offset differs by this at most: half the shortest round trip."""
    rounds: int = 0
    """Questions that were answered; the shortest round trip gave the offset."""

    @property
    def lower(self) -> tuple[int, int]:
        """`at_ns`, and the least that has to be added to get the peer's time."""
        return self.at_ns, (self.offset_ns or 0) - (self.bound_ns or 0)

    @property
    def upper(self) -> tuple[int, int]:
        """`at_ns`, and the most."""
        return self.at_ns, (self.offset_ns or 0) + (self.bound_ns or 0)


class RankFailure(msgspec.Struct, frozen=True, kw_only=True):
    """The exception that ended the script of a rank."""

    what: str
    """Like `ValueError in the script: bad sample 17 (train.py:9)`."""
    at_ns: int
    """When it came through, since the epoch, this rank's clock."""
    of_communication: bool
    """It was raised in communication with other ranks, of which one may have failed before."""


class EventsLeftOut(msgspec.Struct, frozen=True, kw_only=True):
    """Events of a timeline that were left out so that the folder of the rank keeps its limit: the shortest."""

    num_events: int
    total_ns: int
    """Their durations together; one inside of another counts twice."""
    longest_ns: int
    """The longest of them."""
    most_bytes: int
    """The limit."""


class PeakMemory(msgspec.Struct, frozen=True, kw_only=True):
    """The most memory that a rank has held."""

    host_bytes: int | None = None
    """Largest resident set of its process."""
    device_bytes: int | None = None
    """Most bytes of tensors at a time on its CUDA device, since the script last reset that number; None on a CPU."""


Status = Literal["recording", "complete", "partial", "failed"]


Basis = Literal["given", "mesh", "framework", "wrapper", "assumed"]
"""What a topology rests on. given: flags of the user; mesh: DeviceMesh objects and pipeline stages of torch; framework:
sizes that a framework keeps; wrapper: the process groups of DDP or FSDP; assumed: nothing says how ranks divide the
model, and all were taken for data parallel."""


StepRule = Literal["optimizer", "pattern", "backward", "irregular", "forward", "explicit", "given"]
"""optimizer: the only one there is. pattern: several, whose steps come in a pattern. backward: those that step while
backward runs, once a pass. irregular: several without a pattern, of which one was chosen. forward: a call of the first
root module, because no optimizer was alive. explicit: `rec.step()`. given: `--step-every`."""


class OptimizerSteps(msgspec.Struct, frozen=True, kw_only=True):
    """Steps of one optimizer in one step of the job."""

    name: str
    """Like Critic's Adam: the module whose parameters it has, and its class."""
    steps: int = 1


class StepsFound(msgspec.Struct, frozen=True, kw_only=True):
    """What ends a step, and from what that is known."""

    rule: StepRule
    optimizers: list[OptimizerSteps] = []
    """Those whose steps make a step, in their order; of `given` those that were seen."""
    given: str | None = None
    """The argument of `--step-every`."""
    module: str | None = None
    """Of `forward`: class of the root module."""
    looked_at: int = 0
    """Optimizer steps after which this was known."""
    silent: list[str] = []
    """Optimizers that were alive and had not stepped by then."""
    skipped: int = 0
    """Optimizer steps that a gradient scaler left out while recording; they end steps like others."""
    left_in: int | None = None
    """The first step in which optimizers stepped otherwise than this says."""


class RankJson(msgspec.Struct, frozen=True, kw_only=True):
    """What `rank.json` holds: who the rank is, how it was recorded, which files its folder has."""

    format: int = FORMAT
    run_id: str
    """Equal on all ranks of one launch, and in its `run.json`."""
    status: Status
    """`recording` until the folder is finished, and for good where the process was killed."""
    why: str | None = None
    """Why the rank is `partial` or `failed`; the exception that ended the script when all that is needed was there."""
    failure: RankFailure | None = None
    """What ended the script, where an exception did, even after the last pass."""
    has_last_calls: bool = False
    """An exception ended the script, and collectives.parquet has all communication of this rank until then: what is not
    there, the rank never did."""
    light: bool = False
    """Steps, times of modules and arrivals of collectives were recorded, without timeline and counts: --ranks chose
    others."""
    left_out: EventsLeftOut | None = None
    """Events that are not in the timeline; None where all are."""
    notes: list[str] = []
    """What to keep in mind about this rank, in sentences."""
    rank: Annotated[int, msgspec.Meta(ge=0, lt=MOST_RANKS)]
    local_rank: int = 0
    world_size: Annotated[int, msgspec.Meta(ge=1, le=MOST_RANKS)]
    attempt: int = 0
    """How often torchrun had restarted the job."""
    pid: int = 0
    host: str = ""
    boot_id: str = ""
    """Equal on processes that share a kernel and therefore a clock; '' where unknown."""
    topology: dict[str, int] | None = None
    """Mesh axis -> size. None here and in the next four until the topology is known."""
    coordinates: dict[str, int] | None = None
    """Mesh axis -> position of this rank."""
    topology_source: str | None = None
    """How the topology was found, in words."""
    topology_basis: Basis | None = None
    """What it rests on; None also in files of older versions."""
    mp_size: Annotated[int, msgspec.Meta(ge=1)] | None = None
    dp_size: Annotated[int, msgspec.Meta(ge=1)] | None = None
    plan: str = ""
    """Steps of each pass, like wait=2,count=1,time=3,trace=6,arrivals=20."""
    num_steps: int | None = None
    """Steps that were recorded."""
    passes: dict[str, int] = {}
    """Pass -> steps that were recorded in it."""
    steps_found: StepsFound | None = None
    """What ends a step; None before one was found."""
    profiled_steps: list[int] = []
    """Steps in which the script ran its own torch.profiler, and nothing was recorded."""
    params: ParamCount | None = None
    """Over all root modules; None until modules were seen."""
    device_name: str | None = None
    device_type: str = ""
    """Of the device it works on, like cpu or cuda; '' in files of older versions."""
    peak_memory: PeakMemory = PeakMemory()
    """From the start of the process until the folder was last written."""
    tf32: dict[str, bool] = {}
    """Whether `matmul` and `convolution` in float32 may run in TF32."""
    clock: list[ClockPair] = []
    """Read at the start and at each flush."""
    clock_sync: list[ClockSample] = []
    """In the order of time, those without an answer as well."""
    clock_note: str | None = None
    """Why answers are missing in `clock_sync`."""
    device_clock_ns: int = 0
    """By how much times that a device took in the arrivals pass may be wrong on this rank's clock: half the round trip
    of the worst comparison of the two clocks."""
    versions: dict[str, str] = {}
    """Of distprof, python and torch."""
    files: dict[str, int | None] = {}
    """File of the folder -> rows; None for files without rows."""


def first_failure(ranks: Iterable[RankJson]) -> RankJson | None:
    """The rank with the earliest exception that is none of communication; None where there is no such.

    Clocks of hosts may differ: of several such exceptions the earliest by their own clocks is taken.
    """
    own = [one for one in ranks if one.failure is not None and not one.failure.of_communication]
    return min(own, key=lambda one: (one.failure.at_ns if one.failure is not None else 0, one.rank), default=None)


def is_victim(rank: int, ranks: Iterable[RankJson]) -> bool:
    """True where the exception of a rank is one of communication."""
    return any(one.rank == rank and one.failure is not None and one.failure.of_communication for one in ranks)


class _Versioned(msgspec.Struct):
    format: int


Content = TypeVar("Content", RankJson, RunJson)


def read(path: Path, kind: type[Content]) -> Content:
    """Reads a `rank.json` or `run.json`.

    Raises:
        FormatError: A newer distprof wrote it.
        DataError: It cannot be read, or is not what distprof writes.
    """
    try:
        content = read_small(path)
        version = msgspec.json.decode(content, type=_Versioned).format
        if version > FORMAT:
            raise FormatError(f"this distprof reads format {FORMAT} and older, but {path} has format {version}",
                              hint="install a newer distprof")
        return msgspec.json.decode(content, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, OSError) as error:
        raise DataError(f"{path} is not as distprof wrote it: {error}",
                        hint="the file was modified or truncated") from error


def write(path: Path, content: RankJson | RunJson) -> None:
    """Writes the file whole or not at all; a `run.json` for its owner alone: it holds the command."""
    text = json_text(content)
    write = write_private if isinstance(content, RunJson) else Path.write_bytes
    write_whole(path, lambda temporary: write(temporary, text))
