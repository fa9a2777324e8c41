"""What the watch of a whole job knows, for who looks at a run: as its watcher wrote it, else from its files."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from distprof.contract.watch_state import WatchState, is_fresh, read_state
from distprof.errors import DataError
from distprof.merge.run.run_model import Rank, Run
from distprof.merge.watch.job_watch import watched_pieces
from distprof.merge.watch.pieces import PATTERN, RankReader

MOST_RANKS = 64
MOST_BYTES = 48 << 20
"""Of all ranks together: without a watcher, longer jobs are not looked at again by every command."""


def known_state(run: Run) -> WatchState | None:
    """All that is known of the watched steps; None where no step was watched, or nobody has looked.

    Args:
        run: What was recorded.
    """
    if run.kind != "distprof":
        return None
    written = None if run.more else _written(run.path)  # each host of several wrote its own
    found = written if written is not None else _of_files(run)
    return found if found is not None and found.num_steps else None


def watch_files(rank: Rank) -> list[Path]:
    """The files of a rank; none where it was not watched, or its folder is gone."""
    with suppress(OSError):
        return sorted(rank.folder.glob(PATTERN))
    return []


def num_bytes(rank: Rank) -> int:
    """What the files of a rank hold."""
    found = 0
    for path in watch_files(rank):
        with suppress(OSError):
            found += path.stat().st_size
    return found


def _written(run: Path) -> WatchState | None:
    """What the watcher wrote last; None where that is not its last word."""
    try:
        state = read_state(run)
    except DataError:
        return None
    return state if state is not None and is_fresh(state) else None


def _of_files(run: Run) -> WatchState | None:
    ranks = [rank for rank in run.ranks if watch_files(rank)] if len(run.ranks) <= MOST_RANKS else []
    if not ranks or sum(map(num_bytes, ranks)) > MOST_BYTES:
        return None
    pieces = {rank.number: RankReader(rank.folder).new() for rank in ranks}
    job = watched_pieces(pieces, {rank.number: rank.host for rank in ranks})
    newest = max((int(piece.columns["end_ns"][-1]) for piece in pieces.values() if len(piece.columns["end_ns"])),
                 default=0)
    return job.state(newest, run_id=run.run_id, running=False)
