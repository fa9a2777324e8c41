"""What is lost of the trace of a rank, as problems."""

from __future__ import annotations

from collections.abc import Iterator

from distprof.contract.problems import TraceDamaged
from distprof.merge.scan.chrome_file import Losses
from distprof.merge.scan.gunzip import Damage
from distprof.merge.scan.trace_file import TraceFile


def damages_of(rank: int, trace: TraceFile, damage: Damage | None, losses: Losses, num_events: int) -> (
        Iterator[TraceDamaged]):
    """What is lost of the file and of its text, once it was read to its end."""
    if damage is not None:
        yield TraceDamaged(rank=rank, file=trace.name, what="container", detail=str(damage))
    yield from losses_of(rank, trace, losses, num_events)


def losses_of(rank: int, trace: TraceFile, losses: Losses, num_events: int) -> Iterator[TraceDamaged]:
    """What is lost of the text of a trace."""
    if losses.is_cut:
        yield TraceDamaged(rank=rank, file=trace.name, what="end", lost_bytes=losses.lost_bytes + losses.lost_key_bytes,
                           num_events=num_events)
    elif losses.damaged_events:
        yield TraceDamaged(rank=rank, file=trace.name, what="places", places=losses.damaged_events,
                           lost_bytes=losses.lost_bytes)
    if losses.damaged_keys or (losses.lost_key_bytes and not losses.is_cut):
        yield TraceDamaged(rank=rank, file=trace.name, what="keys", lost_bytes=losses.lost_key_bytes,
                           detail=", ".join(losses.damaged_keys))
