"""Where Perfetto opens a trace: a rank, a step, or a late rank that `distprof comms` names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from distprof.launch.view.merged_trace import MergedTrace, trace_metadata

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


def place_of(trace: MergedTrace, wanted: Wanted) -> Place:
    """Finds what the user asked for in a trace.

    Raises:
        DataError: The merge does not say where that is.
        UsageError: There is no such rank, step or finding.
    """
    if not wanted:
        return Place()
    from distprof.launch.view.finding import place_of_finding
    from distprof.launch.view.steps import TracedSteps  # polars takes a while to import

    steps = TracedSteps.of(trace, int(_metadata(trace)["origin_ns"]))
    if wanted.finding is not None:
        return place_of_finding(trace, steps, wanted.finding)
    if wanted.rank is not None:
        steps.check_rank(wanted.rank)
    ranks = () if wanted.rank is None else (wanted.rank,)
    if wanted.step is None:
        return Place(title=f"rank {wanted.rank}", ranks=ranks, selected_ns=steps.first(wanted.rank))
    span_ns = steps.span(wanted.step, wanted.rank)
    title = f"step {wanted.step}" if wanted.rank is None else f"rank {wanted.rank}, step {wanted.step}"
    shown_ns = steps.with_margin(span_ns) if wanted.rank is None else steps.around_selected(span_ns)
    return Place(title=title, span_ns=shown_ns, ranks=ranks,
                 selected_ns=None if wanted.rank is None else span_ns, marked=((title, slice_sql(title, span_ns)),))


def _metadata(trace: MergedTrace) -> dict[str, Any]:
    from distprof.errors import DataError
    from distprof.terminal import quoted

    if trace.is_archive:
        raise DataError(f"--rank, --step and --finding need a Chrome trace, not {trace.file}",
                        hint=f"distprof merge --force {quoted(trace.run)}")
    return trace_metadata(trace.file)


def slice_sql(name: str, span_ns: Span) -> str:
    """SQL of one slice."""
    return f"SELECT {span_ns[0]} AS ts, {span_ns[1] - span_ns[0]} AS dur, {sql_text(name)} AS name"


def sql_text(text: str) -> str:
    """A text as SQL writes it."""
    return "'" + text.replace("'", "''") + "'"
