"""Writes trace.fxt.gz: one trace of all ranks that Perfetto loads in half the time of JSON.

Each rank is a gzip member, as in `chrome_json.py`. What is known about ranks besides their events is in `summary.json`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path

from distprof.contract.paths import TRACE_PERFETTO
from distprof.merge.chrome.chrome_json import OneFile
from distprof.merge.chrome.chrome_rank import AT_ONCE, BETWEEN, ChromeRank, GzipMember, counter_events, encoded, packed
from distprof.merge.chrome.fuchsia_records import MAGIC, FuchsiaRecords
from distprof.merge.chrome.rank_events import RankCounts
from distprof.merge.chrome.rank_plan import Plans, RankPlan
from distprof.merge.chrome.work_folder import make_work_folder
from distprof.merge.clock.model import Clock
from distprof.merge.run.run_model import Run


class PerfettoTrace:
    """Writes the trace."""

    def __init__(self, folder: Path, _run: Run, _clock: Clock, plans: Plans) -> None:
        self._folder, self._plans = folder, plans
        self._out = OneFile(folder / TRACE_PERFETTO)

    def begin(self) -> None:
        self._work = make_work_folder(self._folder)
        self._out.begin(len(self._plans.ranks), b"")
        self._out.write(packed(MAGIC))

    def rank_writer(self, plan: RankPlan) -> ChromeRank:
        return ChromeRank(self._part(plan), draws_memory=plan.draws_memory, packer=partial(PerfettoMember, plan.rank))

    def _part(self, plan: RankPlan) -> Path:
        return self._work / f"rank{plan.rank}.part"

    def add(self, plan: RankPlan, counts: RankCounts) -> None:
        part = self._part(plan)
        if counts.num_events:
            self._out.append(0, part, None)
        part.unlink(missing_ok=True)  # missing for a rank that could not be read again

    def end(self, counts: Sequence[RankCounts]) -> None:
        self._out.finish(self._tail())

    def _tail(self) -> Iterator[bytes]:
        """Yields the counters of the job."""
        plans = self._plans
        member = PerfettoMember(max((plan.rank for plan in plans.ranks), default=0) + 1)
        counters = map(encoded, counter_events(plans.drawing, plans.counters_pid, plans.origin_ns))
        while some := list(islice(counters, AT_ONCE)):
            member.add(BETWEEN.join(some))
        yield member.end()


class PerfettoMember:
    """Makes a gzip member of records from events as JSON.

    Args:
        rank: The rank of the events.
    """

    def __init__(self, rank: int) -> None:
        self._records = FuchsiaRecords(rank + 1)

    def add(self, text: bytes | memoryview) -> bytes:
        """Adds events; nothing can be written before all are known."""
        if text != BETWEEN:
            self._records.add(text)
        return b""

    def end(self) -> bytes:
        """Returns all of it."""
        member = GzipMember()
        return b"".join([*map(member.add, self._records.records()), member.end()])
