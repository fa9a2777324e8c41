"""What a recording that was made later in a job tells, as `distprof findings` says it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distprof.contract.watch_state import window_folder
from distprof.launch.final_merge import MERGE

PATIENCE_S = 300.0
"""How long it may take: many ranks take longer, and processors may be busy with the job."""
NICE = 10
"""The job comes first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """The rank that delays the others in a recording, and with what."""

    rank: int
    text: str
    """The finding as a sentence."""
    module: str | None
    line: str | None
    """`file.py:33`."""
    gain_ns: float | None
    """By which a step would be shorter without it."""


def explained(run: Path, number: int) -> list[Explanation]:
    """Reads the N-th recording of a run in a process of its own, which has a low priority.

    Returns:
        Ranks that delay the others, the most expensive first; none where no rank does, or that cannot be told.
    """
    found = _findings(window_folder(run, number))
    return [_explanation(one) for one in found if one.get("severity") == "bad" and one.get("rank") is not None]


def _findings(folder: Path) -> list[dict[str, Any]]:
    command = [sys.executable, "-c", MERGE, "\n".join(sys.path), "findings", "--json", os.fspath(folder)]
    environ = {name: value for name, value in os.environ.items() if name != "DISTPROF_OUT"}
    environ["POLARS_MAX_THREADS"] = "1"
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                              env=environ, timeout=PATIENCE_S, check=True, preexec_fn=_low_priority)
        return list(json.loads(done.stdout)["findings"])
    except (OSError, subprocess.SubprocessError, ValueError, KeyError, TypeError):
        return []


def _low_priority() -> None:
    os.nice(NICE)


def _explanation(one: dict[str, Any]) -> Explanation:
    line = (one.get("cause") or {}).get("line") or {}
    place = f"{Path(line['file']).name}:{line['line']}" if line.get("file") else None
    return Explanation(rank=int(one["rank"]), text=str(one["text"]), module=one.get("module"), line=place,
                       gain_ns=one.get("gain_ns"))
