"""The location in a trace that Perfetto shows: what a user requests, and the arguments for Perfetto."""

from __future__ import annotations

from dataclasses import dataclass

Span = tuple[int, int]
"""Start and end on the clock of the trace, in ns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The location that the user requested; all None: the whole trace."""

    rank: int | None = None
    step: int | None = None
    finding: int | None = None
    """Number of a finding, from 1."""

    def __bool__(self) -> bool:
        return (self.rank, self.step, self.finding) != (None, None, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """What Perfetto shows."""

    title: str = ""
    """Such as `rank 2, step 8`."""
    sentences: tuple[str, ...] = ()
    """Description of what is shown."""
    span_ns: Span | None = None
    """Visible time span; None: all."""
    selected_ns: Span | None = None
    """Slice that is selected, which makes Perfetto scroll to its track."""
    ranks: tuple[int, ...] = ()
    """Ranks whose tracks are expanded."""
    marked: tuple[tuple[str, str], ...] = ()
    """Tracks that are added on top: title, and SQL that selects their slices."""

    def arguments(self) -> dict[str, str]:
        """Returns the arguments in the URL of Perfetto's page."""
        import json

        commands = [{"id": "dev.perfetto.ExpandTracksByRegex", "args": [f"^rank {rank}( |$)"]} for rank in self.ranks]
        commands += [{"id": "dev.perfetto.AddDebugSliceTrack", "args": [sql, title]} for title, sql in self.marked]
        found = {"startupCommands": json.dumps(commands)} if commands else {}
        if self.selected_ns is not None:
            start_ns, end_ns = self.selected_ns
            found |= {"ts": str(start_ns), "dur": str(end_ns - start_ns)}
        if self.span_ns is not None:
            found |= {"visStart": str(self.span_ns[0]), "visEnd": str(self.span_ns[1])}
        return found


def slice_sql(name: str, span_ns: Span) -> str:
    """Returns SQL for one slice."""
    return f"SELECT {span_ns[0]} AS ts, {span_ns[1] - span_ns[0]} AS dur, {sql_text(name)} AS name"


def sql_text(text: str) -> str:
    """Returns a text as an SQL string literal."""
    return "'" + text.replace("'", "''") + "'"
