"""Where Perfetto opens a trace: what a user asks for, and what Perfetto is told."""

from __future__ import annotations

from dataclasses import dataclass

Span = tuple[int, int]
"""Start and end on the clock of the trace, in ns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What the user asked for."""

    rank: int | None = None
    step: int | None = None
    finding: int | None = None
    """From 1 on."""

    def __bool__(self) -> bool:
        return (self.rank, self.step, self.finding) != (None, None, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """What Perfetto is told."""

    title: str = ""
    """`rank 2, step 8`."""
    sentences: tuple[str, ...] = ()
    """What is to be seen there."""
    span_ns: Span | None = None
    """What is zoomed to."""
    selected_ns: Span | None = None
    """The slice that is selected, so that its track is scrolled to."""
    ranks: tuple[int, ...] = ()
    """Those whose tracks are unfolded."""
    marked: tuple[tuple[str, str], ...] = ()
    """Tracks that are added on top: title, and the SQL of their slices."""

    def arguments(self) -> dict[str, str]:
        """Arguments of the address of Perfetto's page."""
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
    """SQL of one slice."""
    return f"SELECT {span_ns[0]} AS ts, {span_ns[1] - span_ns[0]} AS dur, {sql_text(name)} AS name"


def sql_text(text: str) -> str:
    """A text as SQL writes it."""
    return "'" + text.replace("'", "''") + "'"
