"""Problems and remarks about a run as codes with fields; `distprof.merge.text.problems` has a sentence for each.

In `summary.json` each is an object with its `code` (the name of the class in snake case) and its fields.
"""

from __future__ import annotations

import re
from functools import reduce
from operator import or_
from typing import Literal, TypeVar

import msgspec

from distprof.contract.rank_json import Status

ClockReason = Literal["asked", "hosts_unknown", "no_samples", "samples_do_not_join", "too_few_collectives"]
"""Why ranks are not on the common clock. asked: by `--align none`."""
Inferred = Literal["label", "order", "group", "none"]
"""How collectives were matched. label: by the order of calls with their op, type and size; order: by the order of ops
alone; group: they state no process group and were taken for collectives of all ranks; none: not at all, because their
group is unknown."""

LeftOut = Literal["unknown", "without_rank", "taken", "alike"]
"""Which timelines contain the calls of an execution trace that is left out. unknown: none; without_rank: one whose rank
is unknown; taken: that of a rank that has another execution trace; alike: several."""

TopologyDoubt = Literal["not_recorded", "parameters_differ", "replicas_join", "no_mesh"]
"""Why the topology is not certain. not_recorded: nothing states how ranks divide the model, and no step was recorded
with their communication; parameters_differ: ranks hold different parameters, and their communication does not show why;
replicas_join: ranks with the same parameters combine results inside modules, as both context parallel ranks and
replicas with common statistics do; no_mesh: their parameters and communication fit no device mesh."""


def _code(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


class Problem(msgspec.Struct, frozen=True, kw_only=True, tag_field="code", tag=_code):
    """Something is missing, damaged or unreliable; `--strict` fails because of it."""


class Remark(msgspec.Struct, frozen=True, kw_only=True, tag_field="code", tag=_code):
    """Nothing is missing, but it matters for reading the numbers."""


class Unreadable(Problem, frozen=True):
    """A file or folder cannot be read, or not completely."""

    detail: str
    file: str | None = None
    """None if `detail` names it."""
    rank: int | None = None


class RanksMissing(Problem, frozen=True):
    """Ranks left no data in the directories that were read."""

    ranks: tuple[int, ...]
    world_size: int
    where: tuple[str, ...] = ()
    """Directories on other hosts with these ranks, as host:path, as far as the job knew."""


class Unfinished(Problem, frozen=True):
    """A rank recorded only some steps: it stated why, was killed, ran out of disk space, or is still running."""

    rank: int
    status: Status
    steps: int
    why: str | None


class RankFailed(Problem, frozen=True):
    """The rank that failed first; the others failed because of it."""

    rank: int
    exit_code: int | None
    """Negative: minus the signal that ended it. None if no distprof launcher saw its end."""
    why: str | None = None
    """The exception, if one ended the script."""


class FilesMissing(Problem, frozen=True):
    """Files that a rank wrote are missing."""

    rank: int
    files: tuple[str, ...]


class FolderLeftOut(Problem, frozen=True):
    """The folder of a rank contradicts the others of the run."""

    folder: str
    why: str


class MemoryEndedEarly(Problem, frozen=True):
    """The memory pass of a rank ended before its last step, because it would have taken too much memory."""

    rank: int
    step: int
    taken_bytes: int
    most_bytes: int


class TimelinesCapped(Problem, frozen=True):
    """The shortest events of timelines were dropped to keep rank folders within the allowed size."""

    ranks: tuple[int, ...]
    num_events: int
    total_ns: int
    longest_ns: int
    most_bytes: int


class NoteOfRank(Problem, frozen=True):
    """A note that a rank made while recording."""

    rank: int
    detail: str


class StepsUnsure(Problem, frozen=True):
    """It is not certain what ends a step, so a step may not be an iteration of the training loop."""

    what: Literal["irregular", "silent", "differ", "left", "late", "explicit"]
    """irregular: optimizers step without a pattern. silent: some optimizers were alive but had not stepped. differ: not
    all ranks found the same. left: optimizers later stepped in another order. late: optimizers stepped in a job that
    had been taken for inference. explicit: rec.step() was first called after steps that it did not end had been
    measured."""
    num_turns: int = 0
    """Number of optimizer steps on which the rule is based."""
    names: tuple[str, ...] = ()
    """Optimizers concerned."""
    step: int | None = None
    ranks: tuple[int, ...] = ()


class AttemptsDiffer(Problem, frozen=True):
    """Ranks are from different torchrun attempts."""

    attempts: tuple[int, ...]


class CallsDiffer(Problem, frozen=True):
    """Ranks make different calls: they differ in op, type, size or root, or some ranks never made a call of others."""

    num_collectives: int


class ModulesUncounted(Problem, frozen=True):
    """Modules of timed steps were first called after FLOPs had been counted."""

    modules: tuple[str, ...]
    """The first few, without submodules of others."""
    num_modules: int


class TraceWithoutRank(Problem, frozen=True):
    """Nothing gives the rank of a trace, so it was skipped."""

    file: str


class SeveralTraces(Problem, frozen=True):
    """A rank has several traces, of which the newest is merged."""

    rank: int
    used: str
    left_out: tuple[str, ...]


class WorldSizesDiffer(Problem, frozen=True):
    """Traces disagree on the world size, or a rank is not below it."""

    ranks_by_size: dict[int, tuple[int, ...]]
    highest_rank: int


class TraceDamaged(Problem, frozen=True):
    """All or part of a rank's trace cannot be read."""

    rank: int
    file: str
    what: Literal["all", "container", "end", "places", "events", "keys", "durations", "times"]
    """What is lost. container: bytes of a compressed file; places: text between events that is not JSON; events: events
    without a phase or with a time that is not a number; keys: values other than the events, which `detail` names;
    durations: see `cut_overlong`; times: see `untimed`."""
    num_events: int = 0
    """Number of lost events; for `end`, number of complete events; for `durations`, number of shortened events."""
    places: int = 0
    lost_bytes: int = 0
    detail: str = ""


class TopologyUncertain(Problem, frozen=True):
    """Model totals may be wrong: ranks were assumed to be data parallel, but not everything they did fits that."""

    doubt: TopologyDoubt


class ClocksNotAligned(Problem, frozen=True):
    """Times of these ranks are not on the common clock."""

    ranks: tuple[int, ...]
    reason: ClockReason | None
    note: str | None
    """Why clock samples of one of them are missing."""


class ClocksWrong(Problem, frozen=True):
    """Collectives finish on one rank before every rank has entered, by more than the clock uncertainty."""

    violations: int
    num_collectives: int
    largest_ns: int
    allowed_ns: int


class WallClockSet(Problem, frozen=True):
    """A wall clock was adjusted while recording."""

    set_by_ns: int


class FilesLeftOut(Remark, frozen=True):
    """Files that are not traces."""

    num_files: int
    files: tuple[str, ...]
    """Names of the first few."""
    instead: str
    """What these files are."""


class TracesBeside(Remark, frozen=True):
    """Traces of other programs, like VizTracer, of ranks of which torch.profiler has traces."""

    num_files: int
    files: tuple[str, ...]
    """Names of the first few."""
    drawn: bool = False
    """True if they were merged: only `distprof merge` reads them."""


class TimesFromStart(Remark, frozen=True):
    """Traces of other programs that have another clock than the trace of their rank, and begin with it."""

    num_files: int
    files: tuple[str, ...]
    """Names of the first few."""


class SeveralRanksInFile(Remark, frozen=True):
    """A trace that another tool merged was given alone, and is read as one rank."""

    file: str


class TimesInNanoseconds(Remark, frozen=True):
    """Traces whose times were read as nanoseconds, because in microseconds they would be after the year 2262."""

    num_files: int
    files: tuple[str, ...]
    """Names of the first few."""


class ExecutionTraces(Remark, frozen=True):
    """There are execution traces, as Megatron writes them for Chakra, next to the timelines of their ranks."""

    files: tuple[str, ...]
    """Names of the first few."""
    ranks: tuple[int, ...]
    """Ranks with an execution trace."""
    missing: tuple[int, ...]
    """Ranks with a timeline but no execution trace."""


class ExecutionTraceLeftOut(Remark, frozen=True):
    """An execution trace next to timelines is not exported, because its rank is unknown."""

    file: str
    what: LeftOut
    timelines: tuple[str, ...] = ()
    """Timelines that contain its calls."""


class RanksFromNames(Remark, frozen=True):
    """Ranks are taken from file names, not from the traces."""

    names: Literal["rank", "mesh", "host"]
    """What the names contain. rank: the rank; mesh: tp, pp and dp; host: the host, as JAX writes one file per host."""
    contradicted: bool
    """True if several traces state the same rank."""


class WorldSizeFromRanks(Remark, frozen=True):
    """The world size is assumed to be the highest rank plus one."""

    world_size: int
    contradicted: bool
    """True if traces state another size."""


class MatchingInferred(Remark, frozen=True):
    """Traces do not show which calls of several ranks are the same collective."""

    what: Inferred
    num_rows: int
    total: int


class EarlierAttempts(Remark, frozen=True):
    """torchrun restarted the job: an earlier attempt than the one shown."""

    attempt: int
    shown: int
    rank: int | None = None
    """The rank that ended it; None if unknown."""
    why: str | None = None


class ScriptProfiled(Remark, frozen=True):
    """The script ran its own torch.profiler, so nothing was recorded in these steps."""

    ranks: tuple[int, ...]
    steps: tuple[int, ...]


class RecordedLightly(Remark, frozen=True):
    """Only the ranks selected by --ranks have a timeline and counts."""

    full: tuple[int, ...]
    """Ranks that were recorded fully."""
    of: int
    """Number of ranks that were recorded."""
    parts_counted: bool
    """True if these ranks hold all parts of the model, so that other ranks get the counts of a rank with the same
    part."""


class RecordedLater(Remark, frozen=True):
    """This was recorded later in a job: its step 0 is a later step of the job."""

    first: int
    """Its first step, in steps of the job."""
    last: int


class RecordedAgain(Remark, frozen=True):
    """More steps were recorded later in the job, each time into a separate run directory."""

    num_runs: int
    folder: str
    """Folder that contains these directories."""


class ScriptInterrupted(Remark, frozen=True):
    """The user ended the script after the recording was complete."""


class StepsUneven(Remark, frozen=True):
    """The longest timed step took several times as long as the median."""

    ratio: float


class CountedUnlike(Remark, frozen=True):
    """The counted step processed more or less data than the others: means over ranks."""

    unit: Literal["elements", "samples", "forward_calls"]
    counted: float
    usual: float


class FirstStepLeftOut(Remark, frozen=True):
    """The first traced step does not count, because the profiler warms up in it."""

    step: int


class CulpritsOfAllSteps(Remark, frozen=True):
    """One step was selected, but culprits are judged over all steps."""

    first: int
    last: int


class MergeAlone(Remark, frozen=True):
    """A merge was read without the folders of its ranks."""


Coded = TypeVar("Coded", Problem, Remark)


def from_json(kind: type[Coded], found: object) -> list[Coded]:
    """Parses problems or remarks from `summary.json`.

    Raises:
        msgspec.ValidationError: A code or field is unknown.
    """
    every = reduce(or_, kind.__subclasses__())
    read: list[Coded] = msgspec.convert(found, list[every], str_keys=True)  # type: ignore[valid-type]
    return read
