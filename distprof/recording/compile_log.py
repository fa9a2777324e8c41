"""Logs all compilations of a process, as torch's compiler reports each of them when it ends.

Each becomes a row of compilations.parquet, from torch's metrics of the compilation and its list of graph breaks.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from functools import update_wrapper
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as nn_module

from distprof.after_import import AfterImport
from distprof.contract.tables import TableRow
from distprof.model.compiled import never_compile
from distprof.model.modules import Site
from distprof.model.scopes import in_backward
from distprof.own import time
from distprof.recording.blocking.origins import NOWHERE, Place, caller_of_callback, place_of, place_of_thread

LONGEST = 2000
"""Maximum number of characters of a reason that are kept."""
FAKE = ("get_fake_value", "wrap_to_fake_tensor_and_record")
GUARDS = ("build_guards",)
"""Names under which dynamo records time: `FAKE` for propagating tensors without data, `GUARDS` for creating guards."""
PARTS = {"fake_ns": FAKE, "guards_ns": GUARDS}


class Phases:
    """Splits times that dynamo accumulates for the whole process into those of single compilations."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[Sequence[float], int]] = {}

    def since(self, utils: object) -> dict[str, int | None]:
        """Returns the times recorded since the last call, in ns; None for a part that this torch does not time."""
        noted = getattr(utils, "compilation_time_metrics", {})
        return {column: sum(self._new(name, noted[name]) for name in names if name in noted)
                if any(name in noted for name in names) else None for column, names in PARTS.items()}

    def _new(self, name: str, seconds: Sequence[float]) -> int:
        known, number = self._seen.get(name, (seconds, 0))
        self._seen[name] = seconds, len(seconds)
        # the script may reset torch's lists
        return round(sum(seconds[number if known is seconds else 0:]) * 1e9)


def metrics_row(metrics: object, phases: dict[str, int | None], forward: TableRow | None) -> TableRow:
    """Returns the row of a compilation.

    Args:
        metrics: torch's CompilationMetrics.
        phases: The result of `Phases.since`.
        forward: For a backward graph, the row of its forward graph if it is known.
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
    """Returns the row of a graph break.

    Args:
        one: torch's GraphCompileReason.
        compiled: Row of the compilation in which it occurred.
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


UTILS = "torch._dynamo.utils"
REPORT = "log_compilation_event"
"""Function of `UTILS` that gets the metrics of each compilation."""
MOST_ROWS = 1 << 14
CALLS_OF_MODULES = ("_call_impl", "_wrapped_call_impl")
Held = Site | weakref.ref[nn.Module] | None
"""What is kept of a module: its site, a reference to it while it has none, or None without a module."""


def can_log_compilations() -> bool:
    """False if this torch's compiler does not report its compilations."""
    return hasattr(torch._utils_internal, REPORT)


class CompileLog:
    """Log of what the compiler did. It changes nothing until the process imports the compiler."""

    def __init__(self, *, step: Callable[[], int | None], find: Callable[[nn.Module], Site | None],
                 note: Callable[[str], None]) -> None:
        """Creates an empty log; `start` begins to listen.

        Args:
            step: Returns the running step; None if none is recorded.
            find: Returns the site of a module in its model, if it is known by then.
            note: Prints a line and keeps it in rank.json.
        """
        self._step = step
        self._find = find
        self._note = note
        self._rows: list[TableRow] = []
        self._modules: list[Held] = []
        """The innermost running module for each row."""
        self._num_written = 0
        self._num_left_out = 0
        self._breaks: list[Any] = []
        """Torch's whole list of graph breaks at the last look."""
        self._phases = Phases()
        self._thread = 0
        self._finder = AfterImport(UTILS, self._listen)
        self._ours: Callable[..., Any] | None = None
        self._own: Callable[..., Any] | None = None

    @property
    def has_news(self) -> bool:
        """True if compilations were added since the last call of `rows`."""
        return len(self._rows) > self._num_written

    def start(self) -> None:
        """Begins to listen, as soon as the compiler is imported; the calling thread is the one that runs the steps."""
        self._thread = threading.get_ident()
        if UTILS in sys.modules:
            self._listen()
        else:
            sys.meta_path.insert(0, self._finder)

    def stop(self) -> None:
        """Stops listening."""
        self._finder.remove()
        utils = sys.modules.get(UTILS)
        if self._ours is not None and getattr(utils, REPORT, None) is self._ours:
            setattr(utils, REPORT, self._own)
        self._ours = None

    def forget(self) -> None:
        """Drops the parent's compilations; called in a forked child."""
        self.stop()
        self._rows, self._modules, self._num_written, self._num_left_out = [], [], 0, 0

    def start_over(self) -> None:
        """Says of no compilation so far that it was in a step, as steps are numbered anew."""
        for row in self._rows:
            row["step"] = None
        self._num_written = 0

    def rows(self) -> list[TableRow]:
        """Returns the rows of compilations.parquet, with module paths as far as they are known by now."""
        rows = list(self._rows)
        self._num_written = len(rows)
        return [row | {"module_path": self._path(held)} for row, held in zip(rows, self._modules, strict=False)]

    def _path(self, held: Held) -> str | None:
        """Returns the path of a module; None if it was not seen as part of a model until now."""
        module = held() if isinstance(held, weakref.ref) else None
        site = self._find(module) if module is not None else held if isinstance(held, Site) else None
        return site.path if site is not None else None

    def _listen(self) -> None:
        utils: Any = sys.modules[UTILS]
        own = getattr(utils, REPORT, None)
        if own is None or self._ours is not None:
            return

        def report(*args: Any, **kwargs: Any) -> Any:
            if self._ours is not None and args:
                try:
                    self._on_compiled(utils, args[0])
                except Exception as error:  # noqa: BLE001 (the training job always survives us)
                    self._fail(error)
            return own(*args, **kwargs)

        never_compile(report)
        self._own, self._ours = own, update_wrapper(report, own)
        self._breaks = list(_breaks(utils))
        self._phases.since(utils)
        setattr(utils, REPORT, self._ours)

    def _fail(self, error: Exception) -> None:
        self.stop()
        self._note(f"torch.compile is no longer recorded from here on: {type(error).__name__}: {error}")

    def _on_compiled(self, utils: object, metrics: object) -> None:
        if getattr(metrics, "is_runtime", False):
            return  # autotuning of kernels that are already compiled
        caller = caller_of_callback()
        place, held = self._place(caller), self._held(_called_module(caller))
        common = {"step": self._step(), "caller_file": place.file, "caller_line": place.line,
                  "caller_function": place.function}
        forward = self._forward_of(metrics) if getattr(metrics, "is_forward", None) is False else None
        if forward is not None:
            row, held = metrics_row(metrics, self._phases.since(utils), self._rows[forward]), self._modules[forward]
        else:
            row = metrics_row(metrics, self._phases.since(utils), None)
        self._add(common | row, held)
        for one in self._new_breaks(utils):
            self._add(common | graph_break_row(one, row), held)

    def _held(self, module: nn.Module | None) -> Held:
        """Returns the module's site if it is known, since the script may delete the module; else a weak reference."""
        return None if module is None else self._find(module) or weakref.ref(module)

    def _add(self, row: TableRow, held: Held) -> None:
        if len(self._rows) < MOST_ROWS:
            self._modules.append(held)
            self._rows.append(row)
            return
        self._num_left_out += 1
        if self._num_left_out == 1:
            self._note(f"more than {MOST_ROWS} compilations and graph breaks: later ones are not recorded")

    def _forward_of(self, metrics: Any) -> int | None:
        """Returns the index of the forward compilation of a backward one: torch gives both the same id."""
        wanted, rows = str(metrics.compile_id), self._rows
        return next((index for index in range(len(rows) - 1, -1, -1)
                     if rows[index]["compile_id"] == wanted and rows[index]["event"] != "graph_break"), None)

    def _place(self, caller: FrameType | None) -> Place:
        place = place_of(caller) or NOWHERE
        if place.file is None and threading.get_ident() != self._thread and in_backward():
            place = place_of_thread(self._thread)  # the steps' thread waits for this autograd thread
        return place

    def _new_breaks(self, utils: object) -> list[Any]:
        known, self._breaks = self._breaks, list(_breaks(utils))
        # a reset of the compiler empties torch's list
        goes_on = len(known) <= len(self._breaks) and (not known or known[-1] is self._breaks[len(known) - 1])
        return self._breaks[len(known) if goes_on else 0:]


def _breaks(utils: object) -> Sequence[Any]:
    found: Sequence[Any] = getattr(utils, "graph_break_reasons", ())
    return found


def _called_module(frame: FrameType | None) -> nn.Module | None:
    """Returns the innermost module whose call is on the stack."""
    while frame is not None:
        if frame.f_code.co_filename == nn_module.__file__ and frame.f_code.co_name in CALLS_OF_MODULES:
            module = frame.f_locals.get("self")
            return module if isinstance(module, nn.Module) else None
        frame = frame.f_back
    return None
