"""Where a running job is, as the files of its ranks tell: which step ended last, when, and how long steps take."""

from __future__ import annotations

import re
import socket
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from distprof.contract import rank_json
from distprof.contract.paths import PARTIAL_SUFFIX, RANK_JSON
from distprof.contract.rank_json import RankJson
from distprof.errors import DataError
from distprof.merge.watch.pieces import RankReader

RANK = re.compile(rf"rank\d{{5,}}({re.escape(PARTIAL_SUFFIX)})?")
MOST_RANKS = 16
"""Ranks whose files are read: all ranks of a job are in about the same step."""
RECENT_NS = 60_000_000_000
"""Steps that ended in so long tell how long a step takes."""
FAST = 0.1
"""Of them that part is faster: what is to come must not be over before its time."""
CLOCKS_S = 5.0
"""Clocks of two hosts are taken to differ by no more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LatestStep:
    """The last step that is known to have ended."""

    step: int
    age_s: float
    """How long ago that was, at most."""
    step_s: float
    """How long a fast step takes."""

    @property
    def now(self) -> int:
        """The last step that may have ended by now."""
        return self.step + int(self.age_s / self.step_s)


def rank_folders(run: Path) -> list[Path]:
    """Those of the latest attempt, in the order of ranks; `.partial` where a rank still records."""
    return sorted(child for child in run.iterdir() if RANK.fullmatch(child.name))


def latest_step(run: Path) -> LatestStep | None:
    """Where the job of a run directory is; None where no rank has noted a step after its passes."""
    found = [one for folder in _some(rank_folders(run)) if (one := _of_rank(folder)) is not None]
    if not found:
        return None
    return LatestStep(step=max(one.step for one in found), age_s=min(one.age_s for one in found),
                      step_s=float(np.median([one.step_s for one in found])))


def _some(folders: list[Path]) -> list[Path]:
    """The first and the last ones of many."""
    half = MOST_RANKS // 2
    return folders if len(folders) <= MOST_RANKS else [*folders[:half], *folders[-half:]]


def _of_rank(folder: Path) -> LatestStep | None:
    rows = RankReader(folder).new().columns
    ends_ns, steps_ns = rows["end_ns"], rows["span_ns"] / rows["num_steps"]
    if not len(ends_ns):
        return None
    step, recent = int(rows["first_step"][-1] + rows["num_steps"][-1] - 1), steps_ns[ends_ns >= ends_ns[-1] - RECENT_NS]
    age_s = max(time.time_ns() - int(ends_ns[-1]), 0) / 1e9
    return LatestStep(step=step, age_s=age_s if _is_here(folder) else max(age_s, CLOCKS_S),
                      step_s=max(float(np.quantile(recent, FAST)) / 1e9, 1e-6))


def _is_here(folder: Path) -> bool:
    try:
        return rank_json.read(folder / RANK_JSON, RankJson).host == socket.gethostname()
    except DataError:
        return False
