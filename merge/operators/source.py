"""Identifies the file that operators were read from: a merge that is older than its traces is not used."""

from __future__ import annotations

from dataclasses import dataclass

from distprof.merge.scan.trace_file import TraceFile

ABOUT = "operators"
"""Key of the file's metadata with a JSON object: source, num_bad, asked_shapes, by_shapes, and the paths of the run."""

STEPS_BY_LAUNCH = "steps_by_launch"
"""Key in it that is true if commands without a launch are in no step; earlier merges assigned them by their start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Identifies a trace as it was when it was read."""

    member: str | None
    num_bytes: int
    modified_ns: int

    @classmethod
    def of(cls, trace: TraceFile) -> Source:
        """Returns the source for an existing trace."""
        return cls(member=trace.member, num_bytes=trace.num_bytes, modified_ns=trace.path.stat().st_mtime_ns)
