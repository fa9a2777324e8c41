"""Writes trace.tar: the traces unchanged, in an archive that Perfetto opens as one trace."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from distprof.contract.paths import TRACE_TAR
from distprof.errors import DataError
from distprof.merge.chrome.rank_events import RankCounts
from distprof.merge.chrome.rank_plan import Plans, RankPlan
from distprof.merge.clock.model import Clock
from distprof.merge.run.run_model import Run
from distprof.merge.scan.chunk_reader import ChunkReader

MANIFEST = "perfetto_manifest.json"
"""Read by Perfetto 58 and later: a machine for each rank, and the offset of each file's clock from the first one's."""


class PerfettoTar:
    """Packs the decompressed trace of every rank, byte for byte, after a manifest."""

    def __init__(self, folder: Path, run: Run, clock: Clock, plans: Plans) -> None:
        self._path, self._plans = folder / TRACE_TAR, plans.ranks
        self._attributes: dict[str, str | int] = {"distprof.run_id": run.run_id, "distprof.world_size": run.world_size}

    def begin(self) -> None:
        self._archive = tarfile.open(self._path, "w", format=tarfile.PAX_FORMAT)  # noqa: SIM115
        manifest = msgspec.json.format(msgspec.json.encode(_manifest(self._plans, self._attributes)), indent=1)
        _add(self._archive, MANIFEST, len(manifest), io.BytesIO(manifest))

    def rank_writer(self, plan: RankPlan) -> None:
        """Returns None: no event is read again."""

    def add(self, plan: RankPlan, counts: RankCounts) -> None:
        """Packs the rank's trace.

        Raises:
            DataError: The file changed since it was read first.
        """
        _add(self._archive, _member(plan), plan.survey.num_bytes, _Text(plan))

    def end(self, counts: Sequence[RankCounts]) -> None:
        self._archive.close()


def _member(plan: RankPlan) -> str:
    return f"rank{plan.rank:05d}.json"


def _manifest(plans: list[RankPlan], attributes: Mapping[str, str | int]) -> dict[str, Any]:
    """Makes the manifest, with the first file's clock as reference. Without drift, offsets hold at the first event."""
    first = _to_common_ns(plans[0])
    files = [{"path": _member(plan), "machine": {"name": plan.title},
              **({} if plan is plans[0] else {"clocks": {
                  "sync_to": {"file": _member(plans[0])}, "offset_ns": _to_common_ns(plan) - first}})}
             for plan in plans]
    return {"perfetto_manifest": {"version": 1, "files": files, "attributes": dict(attributes)}}


def _to_common_ns(plan: RankPlan) -> int:
    """Returns what is added to times as they are in the file."""
    at_ns = plan.survey.first_ns or 0
    return int(plan.clock.to_common(at_ns)) - at_ns + plan.survey.base_ns


def _add(archive: tarfile.TarFile, name: str, size: int, content: Any) -> None:
    entry = tarfile.TarInfo(name)  # no owner, no time: the same input gives the same bytes
    entry.size = size
    archive.addfile(entry, content)


class _Text(io.RawIOBase):
    """The decompressed text of a trace as a file."""

    def __init__(self, plan: RankPlan) -> None:
        self._chunks = iter(ChunkReader(plan.trace))
        self._name = plan.trace.name
        self._held = b""

    def read(self, size: int = -1) -> bytes:
        """Returns exactly `size` bytes."""
        while len(self._held) < size:
            chunk = next(self._chunks, None)
            if chunk is None:
                raise DataError(f"{self._name} is shorter than before: it changed while it was being merged",
                                hint="merge again when the job has ended")
            self._held += chunk
        out, self._held = self._held[:size], self._held[size:]
        return out
