"""Writes rank folders with watch files as ranks would; and a simple engine that finds obviously slow ranks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from distprof.contract import rank_json
from distprof.contract.paths import RANK_JSON, RUN_JSON
from distprof.contract.rank_json import RankJson
from distprof.contract.run_json import RunJson
from distprof.contract.watch import UNKNOWN, Frame, StepRows, encoded
from distprof.contract.watch_state import FORMAT, RankState, WatchFinding, WatchState
from distprof.launch.watching.watcher_protocol import WatchOrder
from distprof.merge.watch.pieces import Piece

BEGAN_NS = 1_700_000_000_000_000_000
MS = 1_000_000


def make_run(run: Path, **fields: object) -> Path:
    """Creates a run directory without ranks."""
    run.mkdir(parents=True, exist_ok=True)
    rank_json.write(run / RUN_JSON, RunJson(run_id="made-up", start_ns=BEGAN_NS, **fields))
    return run


class MadeUpRank:
    """A simulated rank that appends rows.

    Args:
        run: The run directory.
        rank: The rank.
        host: The host of the rank.
        world_size: Number of ranks of the job.
        attempt: How often the job was restarted before.
    """

    def __init__(self, run: Path, rank: int, *, host: str = "host0", world_size: int = 4, attempt: int = 0) -> None:
        self.folder = run / f"rank{rank:05d}.partial"
        self.folder.mkdir()
        rank_json.write(self.folder / RANK_JSON, RankJson(
            run_id="made-up", status="recording", rank=rank, world_size=world_size, host=host, attempt=attempt))
        self.step, self.end_ns = 0, BEGAN_NS

    def steps(self, number: int, *, ms: float = 20.0, forward_ms: float = 5.0, file: int = 0) -> bytes:
        """Appends a frame with a row per step; returns its bytes."""
        rows = {name: [UNKNOWN] * number for name in StepRows.__struct_fields__}
        ends = [self.end_ns + int((place + 1) * ms * MS) for place in range(number)]
        names = list(range(self.step, self.step + number))
        rows |= {"first_step": names, "num_steps": [1] * number, "end_ns": ends, "span_ns": [int(ms * MS)] * number,
                 "longest_ns": [int(ms * MS)] * number, "longest_step": names,
                 "forward_ns": [int(forward_ms * MS)] * number, "host_bytes": [300 << 20] * number}
        self.step, self.end_ns = self.step + number, ends[-1]
        content = encoded(Frame(rows=StepRows(**rows)))
        with (self.folder / f"watch-{file:03d}.bin").open("ab") as out:
            out.write(content)
        return content

    def close(self) -> None:
        """Renames the folder, as a rank does when it has ended."""
        whole = self.folder.with_suffix("")
        self.folder.rename(whole)
        self.folder = whole


class PlainEngine:
    """An engine for which a rank is slow while its last forward takes more than twice the shortest of all ranks."""

    def __init__(self, hosts: Mapping[int, str]) -> None:
        self.hosts = dict(hosts)
        self.last: dict[int, tuple[int, int, int, int]] = {}
        self.found: dict[int, WatchFinding] = {}

    def add_rank(self, rank: int, host: str) -> None:
        self.hosts[rank] = host

    def add(self, rank: int, piece: Piece) -> None:
        if len(piece.columns["first_step"]):
            self.last[rank] = tuple(int(piece.columns[name][-1])
                                    for name in ("first_step", "end_ns", "span_ns", "forward_ns"))
            self._notice(rank)

    def _notice(self, rank: int) -> None:
        least = min(last[3] for last in self.last.values())
        step, end_ns, _, forward = self.last[rank]
        if forward > 2 * least and rank not in self.found:
            self.found[rank] = WatchFinding(
                id=f"slow-{rank}", kind="slow_rank", ranks=[rank], onset_step=step, onset_ns=end_ns, phase="forward",
                per_step_ns=float(forward - least), cost_ns=68e9)
        elif forward <= 2 * least and rank in self.found:
            self.found[rank].until_step = self.found[rank].until_step or step

    def findings(self) -> list[WatchFinding]:
        return list(self.found.values())

    def state(self, now_ns: int, *, run_id: str, running: bool) -> WatchState:
        ranks = [RankState(rank=rank, host=self.hosts[rank], step=step, time_ns=end_ns, step_ns=float(span),
                           waiting_ratio=None, data_ns=None, forward_ns=float(forward), backward_ns=None,
                           optimizer_ns=None, device_ns=None, host_bytes=300 << 20, device_bytes=None,
                           recent_ns=[float(span)] * 5)
                 for rank, (step, end_ns, span, forward) in sorted(self.last.items())]
        return WatchState(format=FORMAT, run_id=run_id, time_ns=now_ns, running=running, world_size=len(self.hosts),
                          num_steps=min(one.step for one in ranks) + 1, first_watched=0,
                          elapsed_ns=max(one.time_ns for one in ranks) - BEGAN_NS, step_ns=ranks[0].step_ns,
                          ranks=ranks, findings=self.findings(), is_short=True)


def with_plain_engine() -> None:
    """Main function of the watcher's process in tests."""
    from distprof.launch.watching.watcher import main

    main(PlainEngine)


PROGRAM = ("import sys; sys.path[:] = sys.argv.pop(1).split('\\n'); "
           "from support.watched_ranks import with_plain_engine; with_plain_engine()")


def order(run: Path, **fields: object) -> WatchOrder:
    """Returns an order to watch a run."""
    return msgspec.structs.replace(WatchOrder(directory=str(run), run_id="made-up", is_alone=True), **fields)


