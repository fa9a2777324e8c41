"""Writes trace.json.gz, one Chrome trace of all ranks; likewise trace.json.zst.

Each rank is a gzip member or a zstd frame, compressed where the rank was read; the file is their concatenation.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import msgspec

from distprof.contract.paths import FORMAT, TRACE_JSON
from distprof.merge.chrome.chrome_rank import (
    AT_ONCE,
    BETWEEN,
    FRAMES,
    ChromeRank,
    GzipMember,
    Packer,
    counter_events,
    encoded,
    frames_of,
    packed,
)
from distprof.merge.chrome.rank_events import RankCounts
from distprof.merge.chrome.rank_plan import Plans, RankPlan
from distprof.merge.chrome.work_folder import make_work_folder
from distprof.merge.clock.model import Clock
from distprof.merge.run.run_model import Rank, Run
from distprof.system import send

if TYPE_CHECKING:
    from distprof.storage.writing.joined import Joined, Parts

HEAD = b'{"displayTimeUnit":"ms","traceEvents":[\n'
NO_RANKS = b'"ranks":{}}}'
"""End of the metadata, before that of ranks is inserted."""
PIECE_BYTES = 16 << 20
"""Bytes of metadata that are compressed together."""


class ChromeJson:
    """Writes the trace."""

    def __init__(self, folder: Path, run: Run, clock: Clock, plans: Plans, joined: Joined | None = None, *,
                 file: str = TRACE_JSON, packer: Callable[[], Packer] = GzipMember) -> None:
        self._folder, self._run, self._clock, self._plans = folder, run, clock, plans
        self._out = OneFile(folder / file) if joined is None else joined
        self._packer, self._packed = packer, partial(packed, packer=packer)
        self._ranks = {rank.number: rank for rank in run.ranks}
        self._indices = {plan.rank: index for index, plan in enumerate(plans.ranks)}
        self._is_empty = True

    def begin(self) -> None:
        self._work = make_work_folder(self._folder)
        self._out.begin(len(self._plans.ranks), self._packed(BETWEEN))
        self._out.write(self._packed(HEAD))
        # metadata of many ranks is long: each rank's file lists all ranks of its groups
        self._about: IO[bytes] = tempfile.TemporaryFile(dir=self._work)  # noqa: SIM115 (closed by end)
        self._frames: IO[bytes] = tempfile.TemporaryFile(dir=self._work)  # noqa: SIM115 (likewise)

    def rank_writer(self, plan: RankPlan) -> ChromeRank:
        return ChromeRank(self._part(plan), draws_memory=plan.draws_memory, has_frames=FRAMES in plan.survey.metadata,
                          share=self._out.share(self._indices[plan.rank]), packer=self._packer)

    def _part(self, plan: RankPlan) -> Path:
        return self._work / f"rank{plan.rank}.part"

    def add(self, plan: RankPlan, counts: RankCounts) -> None:
        part = self._part(plan)
        if counts.num_events:
            self._out.write(self._separator())
            self._out.append(self._indices[plan.rank], part, counts.parts)
        part.unlink(missing_ok=True)  # missing for a rank that could not be read again
        _append(self._frames, frames_of(counts.metadata, plan.rank))
        known = _about_rank(self._run, self._ranks[plan.rank], self._clock, plan, counts)
        _append(self._about, {str(plan.rank): known})

    def _separator(self) -> bytes:
        """Returns what precedes the next events."""
        is_first, self._is_empty = self._is_empty, False
        return b"" if is_first else self._packed(BETWEEN)

    def end(self, counts: Sequence[RankCounts]) -> None:
        self._out.finish(self._tail())
        self._about.close()
        self._frames.close()

    def _tail(self) -> Iterator[bytes]:
        """Yields the counters of the job, and what the viewer shows as trace info."""
        plans = self._plans
        counters = counter_events(plans.drawing, plans.counters_pid, plans.origin_ns)
        while some := list(islice(counters, AT_ONCE)):
            yield self._separator()
            yield self._packed(BETWEEN.join(map(encoded, some)))
        yield from map(self._packed, self._metadata())

    def _metadata(self) -> Iterator[bytes]:
        """Yields what follows the events, in one piece if it is not long."""
        whole = encoded({"distprof": _about_run(self._run, self._clock, self._plans)})
        head, tail = whole[:-len(NO_RANKS)] + NO_RANKS[:-3], NO_RANKS[-3:]
        held = b"\n],"
        lists = [(b'"stackFrames":{', self._frames, b"},")] if self._frames.tell() else []
        for before, file, after in (*lists, (b'"metadata":' + head, self._about, tail)):
            file.seek(0)
            held += before
            while text := file.read(PIECE_BYTES):
                if len(held) + len(text) > PIECE_BYTES:
                    yield held
                    held = b""
                held += text
            held += after
        yield held + b"}\n"


class OneFile:
    """A file made of consecutive pieces, with the interface of `Joined`: written by this process, to this machine."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def begin(self, num_pieces: int, between: bytes) -> None:
        self._file = self._path.open("wb")

    def share(self, index: int) -> None:
        """Returns None: workers only write what is appended here."""

    def write(self, content: bytes) -> None:
        self._file.write(content)

    def append(self, index: int, file: Path, parts: Parts | None) -> None:
        """Copies a file of a rank to the end; these are together as large as the merged trace."""
        with file.open("rb") as piece:
            send(piece, self._file)

    def finish(self, contents: Iterable[bytes]) -> None:
        self._file.writelines(contents)
        self._file.close()


def _append(file: IO[bytes], members: dict[str, Any]) -> None:
    """Appends members of a JSON object, without the brackets around it."""
    if members:
        file.write((b"," if file.tell() else b"") + encoded(members)[1:-1])


def _about_run(run: Run, clock: Clock, plans: Plans) -> dict[str, Any]:
    """Returns what the viewer shows as trace info, except for the ranks."""
    return {"format": FORMAT, "run_id": run.run_id, "world_size": run.world_size,
            "topology": run.topology if run.topology_known else None,
            "origin_ns": plans.origin_ns, "clock": clock.to_json(), "missing_ranks": run.missing,
            "left_out": plans.remarks, "ranks": {}}


def _about_rank(run: Run, rank: Rank, clock: Clock, plan: RankPlan, counts: RankCounts) -> dict[str, Any]:
    """Returns the rank's mp and dp sizes, host, clock offset and counts."""
    return {
        "mp_size": run.mp_size if run.topology_known else None,
        "dp_size": run.dp_size if run.topology_known else None, "coordinates": rank.coordinates,
        "host": rank.host, "offset_ns": plan.clock.offset_ns, "drift_ppm": plan.clock.drift_ppm,
        "uncertainty_ns": clock.ranks[plan.rank].uncertainty_ns,
        "num_slices": counts.num_slices, "num_events": counts.num_events,
        "num_overlapping_slices": counts.num_side, "num_cut_slices": counts.num_cut,
        "num_hanging_arrow_ends": counts.num_hanging, "num_left_out": counts.num_left_out,
        "not_recorded": _not_recorded(rank),
        "num_slices_without_duration": counts.num_without_duration,
        "num_slices_of_negative_duration": counts.num_negative, "num_moved_events": counts.num_moved,
        "num_repaired_events": counts.num_repaired, "num_events_without_time": counts.num_bad_times,
        "kineto": counts.metadata,
    }


def _not_recorded(rank: Rank) -> dict[str, int] | None:
    """Returns the shortest events, which the recorder left out of the timeline; None if it has all."""
    left_out = rank.recorded.left_out if rank.recorded is not None else None
    return None if left_out is None else msgspec.structs.asdict(left_out)
