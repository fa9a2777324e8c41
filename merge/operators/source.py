"""Which file operators were read from: a merge that is older than its traces does not speak for them."""

from __future__ import annotations

from dataclasses import dataclass

from distprof.merge.scan.trace_file import TraceFile

ABOUT = "operators"
"""Key of the file's metadata with a JSON object: source, num_bad, asked_shapes, by_shapes, and
the paths of the run."""

STEPS_BY_LAUNCH = "steps_by_launch"
"""Key of it that is true where commands without a launch are in no step; earlier merges counted them by their start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A trace as it was when it was read."""

    member: str | None
    num_bytes: int
    modified_ns: int

    @classmethod
    def of(cls, trace: TraceFile) -> Source:
        """Of a trace that is there."""
        return cls(member=trace.member, num_bytes=trace.num_bytes, modified_ns=trace.path.stat().st_mtime_ns)
