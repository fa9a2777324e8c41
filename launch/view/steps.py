"""The steps in a merged trace: their times on each rank, on the clock of the trace."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import polars as pl

from distprof.contract.merged import MERGED_EVENTS, MERGED_STEPS
from distprof.errors import DataError, UsageError
from distprof.launch.view.merged_trace import MergedTrace
from distprof.launch.view.place import Span
from distprof.merge.activity.markers import STEP
from distprof.merge.run.tables import DAMAGE, readable
from distprof.terminal import quoted
from distprof.units import spans

MARGIN = 0.05
"""Margin shown before and after a span, as a fraction of its length."""
WINDOW = 2.2
"""Length of the visible window as a multiple of the selected span; Perfetto 52 zooms out if that fills half of it."""
ASIDE = 0.01
"""Offset of the window from the center, as a fraction of the span: Perfetto then centers the span, but it zooms out if
the span is centered already."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedSteps:
    """Steps of ranks in a trace."""

    events: pl.LazyFrame
    """rank, step, name, category, start_ns and end_ns from `MERGED_EVENTS`, on the clock of the trace."""
    rows: pl.DataFrame
    """rank, step, start_ns and end_ns of each step that has events, on the clock of the trace."""
    ranks: list[int]
    """All ranks in the trace, sorted."""
    span_ns: Span
    """Start of the first and end of the last event."""

    @classmethod
    def of(cls, trace: MergedTrace, origin_ns: int) -> TracedSteps:
        """Reads the tables of a merge.

        Args:
            trace: The trace of the merge.
            origin_ns: Time on the common clock that is 0 in the trace.

        Raises:
            DataError: The tables cannot be read.
        """
        try:
            events = _events(trace, origin_ns)
            there = events.select("rank", "step").unique().collect()
            first, last = events.select(pl.col("start_ns").min(), pl.col("end_ns").max()).collect().row(0)
            rows = _recorded(trace.folder, origin_ns)
            if rows is None:
                rows = _marked(events)
        except DAMAGE as error:
            raise DataError(f"cannot read the tables beside {trace.file}: {str(error).splitlines()[0]}",
                            hint=f"distprof merge --force {quoted(trace.run)}") from error
        return cls(events=events, rows=rows.join(there, on=["rank", "step"], how="semi"),
                   ranks=there["rank"].unique().sort().to_list(), span_ns=(first or 0, last or 0))

    def check_rank(self, rank: int) -> None:
        """Raises UsageError if a rank is not in the trace."""
        if rank not in self.ranks:
            raise UsageError(f"the merge has no rank {rank}",
                             hint=f"its ranks are {spans(self.ranks) or '(none)'}")

    def span(self, step: int, rank: int | None = None) -> Span:
        """Returns the span of a step: of one rank, or from the first start to the last end over all ranks.

        Raises:
            UsageError: The step is not in the trace.
        """
        rows = self.rows if rank is None else self.rows.filter(pl.col("rank") == rank)
        found = rows.filter(pl.col("step") == step)
        if found.is_empty():
            shown = spans(rows["step"].unique().sort().to_list()) or "(none)"
            raise UsageError(f"the timeline has no step {step}",
                             hint=f"its steps are {shown}; distprof run --steps trace=N records more")
        first, last = found.select(pl.col("start_ns").min(), pl.col("end_ns").max()).row(0)
        return first, last

    def first(self, rank: int | None) -> Span | None:
        """Returns the span of the first step of a rank; None if steps are unknown."""
        found = self.rows.filter(pl.col("rank") == rank).sort("start_ns").select("start_ns", "end_ns")
        return None if found.is_empty() else (found.row(0)[0], found.row(0)[1])

    def with_margin(self, span_ns: Span) -> Span:
        """Returns a span with a margin."""
        margin_ns = round(MARGIN * (span_ns[1] - span_ns[0]))
        return self._within(span_ns[0] - margin_ns, span_ns[1] + margin_ns)

    def around_selected(self, span_ns: Span) -> Span:
        """Returns a window around a selected span that Perfetto centers without zooming out; see `ASIDE`."""
        first_ns, last_ns = self.span_ns
        length_ns = span_ns[1] - span_ns[0]
        window_ns, aside_ns = round(WINDOW * length_ns), max(1, round(ASIDE * length_ns))
        if window_ns + aside_ns >= last_ns - first_ns:
            return self.span_ns
        centered_ns = min(max(sum(span_ns) // 2 - window_ns // 2, first_ns), last_ns - window_ns)
        start_ns = centered_ns + aside_ns if centered_ns == first_ns else centered_ns - aside_ns
        return max(start_ns, first_ns), min(start_ns + window_ns, last_ns)

    def _within(self, start_ns: int, end_ns: int) -> Span:
        """Cuts a span to the trace, because Perfetto rejects others."""
        return max(start_ns, self.span_ns[0]), min(end_ns, self.span_ns[1])


def _events(trace: MergedTrace, origin_ns: int) -> pl.LazyFrame:
    folder = trace.folder / MERGED_EVENTS.file
    files = sorted(folder.glob("*.parquet"))
    if not files:
        raise DataError(f"no {MERGED_EVENTS.file} in {trace.folder}, which --rank, --step and --finding "
                        "need", hint=f"distprof merge --force {quoted(trace.run)}")
    start_ns = (pl.col("start_ns") - origin_ns).clip(0)
    return pl.scan_parquet([readable(file) for file in files], glob=False).select(
        "rank", "step", pl.col("name", "category").cast(pl.String), start_ns,
        end_ns=pl.col("start_ns") - origin_ns + pl.col("duration_ns").fill_null(0))


def _recorded(folder: Path, origin_ns: int) -> pl.DataFrame | None:
    """Returns the steps that distprof recorded; None if there are none."""
    file = folder / MERGED_STEPS.file
    if not file.is_file():
        return None
    rows = pl.read_parquet(readable(file), columns=["rank", "step", "start_ns", "end_ns"], glob=False)
    cut = rows.with_columns((pl.col("start_ns", "end_ns") - origin_ns).clip(0))
    return None if rows.is_empty() else cut


def _marked(events: pl.LazyFrame) -> pl.DataFrame:
    """Returns the steps that torch.profiler marked, for foreign traces."""
    number = pl.col("name").str.strip_prefix(STEP).cast(pl.Int64, strict=False)
    marked = events.filter(pl.col("name").str.starts_with(STEP))
    return marked.select("rank", number.alias("step"), "start_ns", "end_ns").drop_nulls().collect()
