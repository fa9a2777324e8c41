"""What torch's metrics of a compilation, and its list of graph breaks, say: a row of compilations.parquet each."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from distprof.contract.tables import TableRow

LONGEST = 2000
"""Characters of a reason that are kept."""
FAKE = ("get_fake_value", "wrap_to_fake_tensor_and_record")
GUARDS = ("build_guards",)
"""Names under which dynamo notes its times, for propagation on tensors without data and for making guards."""
PARTS = {"fake_ns": FAKE, "guards_ns": GUARDS}


class Phases:
    """Times that dynamo notes for the whole process, taken apart by compilation."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[Sequence[float], int]] = {}

    def since(self, utils: Any) -> dict[str, int | None]:
        """What was noted since the last call; None where this torch does not time it."""
        noted = getattr(utils, "compilation_time_metrics", {})
        return {column: sum(self._new(name, noted[name]) for name in names if name in noted)
                if any(name in noted for name in names) else None for column, names in PARTS.items()}

    def _new(self, name: str, seconds: Sequence[float]) -> int:
        known, number = self._seen.get(name, (seconds, 0))
        self._seen[name] = seconds, len(seconds)
        # the script may have torch forget them and begin anew
        return round(sum(seconds[number if known is seconds else 0:]) * 1e9)


def metrics_row(metrics: Any, phases: dict[str, int | None], forward: TableRow | None) -> TableRow:
    """The row of a compilation.

    Args:
        metrics: torch's CompilationMetrics.
        phases: Times of `Phases`.
        forward: Of a graph of backward the row of its forward graph, where that is known.
    """
    def of(name: str) -> Any:
        return getattr(metrics, name, None)

    backward = of("is_forward") is False
    again, failed = of("recompile_reason"), of("fail_type")
    code = forward or {"file": of("co_filename"), "line": of("co_firstlineno"), "function": of("co_name")}
    duration_ns = _ns(of("duration_us"))
    if duration_ns is None:
        duration_ns = (_ns(of("end_time_us")) or 0) - (_ns(of("start_time_us")) or 0)
    return {
        "event": "backward" if backward else "recompile" if again is not None else "compile",
        "compile_id": str(of("compile_id")), "start_ns": _ns(of("start_time_us")) or time.time_ns() - duration_ns,
        "duration_ns": duration_ns, **{name: code[name] for name in ("file", "line", "function")},
        "reason": _short(again or (of("fail_reason") if failed else None)), "error": failed,
        "backend_ns": duration_ns if backward else _ns(of("aot_autograd_cumulative_compile_time_us")),
        "inductor_ns": _ns(of("inductor_cumulative_compile_time_us")),
        **(dict.fromkeys(phases) if backward else phases)}


def graph_break_row(one: Any, compiled: TableRow) -> TableRow:
    """The row of a graph break.

    Args:
        one: torch's GraphCompileReason.
        compiled: Row of the compilation in which it was met.
    """
    where = one.user_stack[-1] if getattr(one, "user_stack", None) else None
    return {
        "event": "graph_break", "compile_id": compiled["compile_id"], "start_ns": compiled["start_ns"],
        "duration_ns": None, "file": where.filename if where else compiled["file"],
        "line": where.lineno if where else compiled["line"],
        "function": where.name if where else compiled["function"], "reason": _short(one.reason), "error": None,
        "backend_ns": None, "inductor_ns": None, **dict.fromkeys(PARTS)}


def _ns(microseconds: int | None) -> int | None:
    return None if microseconds is None else int(microseconds) * 1000


def _short(reason: str | None) -> str | None:
    return None if reason is None else str(reason)[:LONGEST]
