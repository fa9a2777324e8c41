"""The types of `rank.json`, which recording writes and merging reads; reads and writes it and `run.json`.

Fields with a default may be missing in a file: older versions did not write all of them, and other tools need not.
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
    """Parameters that the rank needs for its model-parallel part; a data-parallel shard counts with its unsharded
    size."""
    stored_params: int = 0
    """Elements stored on the rank."""
    trainable_params: int = 0
    """Those of `params` with requires_grad."""
    unique_params: int | None = 0
    """Parameters of the pipeline stage over all its ranks, replicated tensors once; None if unknown."""
    param_bytes: int = 0
    """Bytes of `stored_params`."""
    buffers: int = 0
    """Elements of buffers (running means and the like) stored on the rank."""
    buffer_bytes: int = 0
    dtypes: Mapping[str, int] = field(default_factory=dict)
    """`params` by element type, like float32."""


class ClockPair(msgspec.Struct, frozen=True, kw_only=True):
    """Two clocks of a rank, read at the same time."""

    realtime_ns: int
    """CLOCK_REALTIME, since the Unix epoch: the clock of all timestamps. It may be adjusted."""
    monotonic_ns: int
    """CLOCK_MONOTONIC, which is never set to another time."""


class ClockSample(msgspec.Struct, frozen=True, kw_only=True):
    """One comparison of this rank's clock with that of a peer."""

    peer: int
    """Global rank that was asked."""
    at_ns: int
    """Time of the comparison: since the epoch, by this rank's clock."""
    offset_ns: int | None = None
    """To be added to this rank's time to get the peer's; None if the peer did not answer."""
    bound_ns: int | None = None
    """Largest possible error of `offset_ns`: half the shortest round trip."""
    rounds: int = 0
    """Number of questions that were answered; the one with the shortest round trip gave the offset."""

    @property
    def lower(self) -> tuple[int, int]:
        """`at_ns`, and the smallest possible offset."""
        return self.at_ns, (self.offset_ns or 0) - (self.bound_ns or 0)

    @property
    def upper(self) -> tuple[int, int]:
        """`at_ns`, and the largest possible offset."""
        return self.at_ns, (self.offset_ns or 0) + (self.bound_ns or 0)


class RankFailure(msgspec.Struct, frozen=True, kw_only=True):
    """The exception that ended the script of a rank."""

    what: str
    """For example `ValueError in the script: bad sample 17 (train.py:9)`."""
    at_ns: int
    """When it reached the top of the script: since the epoch, by this rank's clock."""
    of_communication: bool
    """Whether it was raised in communication with other ranks, one of which may have failed before."""


class EventsLeftOut(msgspec.Struct, frozen=True, kw_only=True):
    """The shortest events of a timeline, which were left out to keep the folder of the rank within its size limit."""

    num_events: int
    total_ns: int
    """Sum of their durations; the time of nested events counts several times."""
    longest_ns: int
    """Duration of the longest of them."""
    most_bytes: int
    """The size limit of the folder."""


class PeakMemory(msgspec.Struct, frozen=True, kw_only=True):
    """Peak memory of a rank."""

    host_bytes: int | None = None
    """Peak resident set size of its process."""
    device_bytes: int | None = None
    """Peak bytes of tensors on its CUDA device since the script last reset that statistic; None on a CPU."""


Status = Literal["recording", "complete", "partial", "failed"]


Basis = Literal["given", "mesh", "framework", "wrapper", "assumed"]
"""What a topology is based on. given: flags of the user; mesh: DeviceMesh objects and pipeline stages of torch;
framework: sizes that a framework stores; wrapper: the process groups of DDP or FSDP; assumed: nothing states how ranks
divide the model, and all were taken for data parallel."""


StepRule = Literal["optimizer", "pattern", "backward", "irregular", "forward", "explicit", "given"]
"""What ends a step. optimizer: a step of the only optimizer. pattern: the steps of several optimizers that follow a
pattern. backward: steps of optimizers during backward, once per backward pass. irregular: the steps of one of several
optimizers that follow no pattern. forward: a call of the first root module, because no optimizer was alive. explicit:
`rec.step()`. given: `--step-every`."""


class OptimizerSteps(msgspec.Struct, frozen=True, kw_only=True):
    """How often one optimizer steps in a step of the job."""

    name: str
    """Module whose parameters it has, and its class, like Critic's Adam."""
    steps: int = 1


class StepsFound(msgspec.Struct, frozen=True, kw_only=True):
    """What ends a step, and how that was found."""

    rule: StepRule
    optimizers: list[OptimizerSteps] = []
    """Optimizers whose steps make up a step, in order; for `given`, the optimizers that were seen."""
    given: str | None = None
    """The argument of `--step-every`."""
    module: str | None = None
    """For `forward`: class of the root module."""
    looked_at: int = 0
    """Number of optimizer steps after which this was known."""
    silent: list[str] = []
    """Optimizers that were alive but had not stepped by then."""
    skipped: int = 0
    """Number of optimizer steps that a gradient scaler skipped during the recording; they end steps like others."""
    left_in: int | None = None
    """The first step in which optimizers did not step like this."""


class RankJson(msgspec.Struct, frozen=True, kw_only=True):
    """Content of `rank.json`: identity of the rank, how it was recorded, and the files in its folder."""

    format: int = FORMAT
    run_id: str
    """The same on all ranks of one launch, and in its `run.json`."""
    status: Status
    """`recording` until the folder is finished; remains so if the process is killed."""
    why: str | None = None
    """Why the rank is `partial` or `failed`; if it is `complete`, the exception that ended the script afterwards."""
    failure: RankFailure | None = None
    """The exception that ended the script, if any, even after the last pass."""
    has_last_calls: bool = False
    """Whether an exception ended the script, and collectives.parquet has all communication of this rank until then: ops
    that are not there were never called."""
    light: bool = False
    """Whether only steps, module times and arrivals of collectives were recorded, without timeline and counts, because
    --ranks selects other ranks."""
    left_out: EventsLeftOut | None = None
    """Events that are missing from the timeline; None if it is complete."""
    notes: list[str] = []
    """What to keep in mind about this rank, as sentences."""
    rank: Annotated[int, msgspec.Meta(ge=0, lt=MOST_RANKS)]
    local_rank: int = 0
    world_size: Annotated[int, msgspec.Meta(ge=1, le=MOST_RANKS)]
    attempt: int = 0
    """How often torchrun had restarted the job."""
    pid: int = 0
    host: str = ""
    boot_id: str = ""
    """The same for processes that share a kernel and therefore a clock; '' if unknown."""
    topology: dict[str, int] | None = None
    """Mesh axis -> size. This field and the next five are None until the topology is known."""
    coordinates: dict[str, int] | None = None
    """Mesh axis -> position of this rank."""
    topology_source: str | None = None
    """How the topology was found, in words."""
    topology_basis: Basis | None = None
    """What the topology is based on; None also in files of older versions."""
    mp_size: Annotated[int, msgspec.Meta(ge=1)] | None = None
    dp_size: Annotated[int, msgspec.Meta(ge=1)] | None = None
    plan: str = ""
    """Planned steps of each pass, like wait=2,count=1,time=3,trace=6,arrivals=20."""
    num_steps: int | None = None
    """Number of recorded steps."""
    passes: dict[str, int] = {}
    """Pass -> number of recorded steps."""
    steps_found: StepsFound | None = None
    """What ends a step; None until that is known."""
    profiled_steps: list[int] = []
    """Steps in which the script ran its own torch.profiler, and nothing was recorded."""
    params: ParamCount | None = None
    """Parameters of all root modules; None until modules were seen."""
    device_name: str | None = None
    device_type: str = ""
    """Type of the device on which the rank works, like cpu or cuda; '' in files of older versions."""
    peak_memory: PeakMemory = PeakMemory()
    """From the start of the process until the folder was last written."""
    tf32: dict[str, bool] = {}
    """Whether `matmul` and `convolution` in float32 may run in TF32."""
    clock: list[ClockPair] = []
    """Clocks at the start and at each flush."""
    clock_sync: list[ClockSample] = []
    """Clock comparisons in order of time, including those without an answer."""
    clock_note: str | None = None
    """Why answers are missing in `clock_sync`."""
    device_clock_ns: int = 0
    """Largest possible error, on this rank's clock, of times measured by a device in the arrivals pass: half the round
    trip of the worst comparison of the two clocks."""
    versions: dict[str, str] = {}
    """Versions of distprof, python and torch."""
    files: dict[str, int | None] = {}
    """File of the folder -> number of rows; None for files without rows."""


def first_failure(ranks: Iterable[RankJson]) -> RankJson | None:
    """Returns the rank with the earliest exception that was not raised in communication; None if there is none.

    Times are compared as the ranks' own clocks show them, although clocks of hosts may differ.
    """
    own = [one for one in ranks if one.failure is not None and not one.failure.of_communication]
    return min(own, key=lambda one: (one.failure.at_ns if one.failure is not None else 0, one.rank), default=None)


def is_victim(rank: int, ranks: Iterable[RankJson]) -> bool:
    """Returns whether the exception that ended a rank was raised in communication."""
    return any(one.rank == rank and one.failure is not None and one.failure.of_communication for one in ranks)


class _Versioned(msgspec.Struct):
    format: int


Content = TypeVar("Content", RankJson, RunJson)


def read(path: Path, kind: type[Content]) -> Content:
    """Reads a `rank.json` or `run.json`.

    Raises:
        FormatError: A newer distprof wrote it.
        DataError: It cannot be read, or distprof did not write it like this.
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
    """Writes the file completely or not at all; only its owner can read a `run.json`, which contains the command."""
    text = json_text(content)
    write = write_private if isinstance(content, RunJson) else Path.write_bytes
    write_whole(path, lambda temporary: write(temporary, text))
