"""Markers: slices of a timeline that show what a rank is doing, as nested scopes with an activity."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import polars as pl

from distprof.contract.tables import CLOSURE_SLICE, EVALUATION, EVALUATION_SLICE, WAIT_SLICE
from distprof.merge.activity.activities import Activity

MODULE = re.compile(r"(?s)(.*) \[\w+\]")
"""Names of the slices that distprof draws for calls of modules; that of the root module is `model [Class]`."""
TORCH_MODULE = "nn.Module: "
"""Prefix of the slices that torch.profiler draws for calls of modules if it records stacks; `Class_N` follows."""
PHASES = {**dict.fromkeys(("forward", "fwd", "forward_pass", "training_step"), "forward"),
          **dict.fromkeys(("backward", "bwd", "backward_pass"), "backward")}
"""Last words of annotations of whole phases, such as DDP's `DistributedDataParallel.forward` or `## forward ##`."""
AUTOGRAD = "autograd::engine::evaluate_function: "
DATA = "enumerate(DataLoader)"
CALLS = ("forward", "recompute", EVALUATION)
"""Activities in which modules are called."""
CLOSURE = "closure"
"""Marker of an optimizer's closure: forward and backward run in it, and what is between them belongs to the host."""
ZERO_GRAD = "Optimizer.zero_grad#"
OPTIMIZER = ("Optimizer.step#", ZERO_GRAD)
GLOO = "gloo:"
STEP = "ProfilerStep#"
WAITS = (WAIT_SLICE, "_c10d_functional::wait_tensor")
"""Slices in which a thread waits for communication."""
COMMUNICATION = (*WAITS, "c10d::", "_c10d_functional::", "record_param_comms", "nccl:", GLOO)
"""Prefixes of operators that start communication or wait for it."""


class Marker(NamedTuple):
    """A named interval in which a rank does something."""

    start_ns: int
    end_ns: int
    kind: str
    """module, backward, data, optimizer, closure, evaluation or annotation."""
    name: str | None


def markers(events: pl.DataFrame, step_starts: Sequence[int] = ()) -> list[Marker]:
    """Returns scopes of modules, autograd functions, data loading and optimizer; outer ones before inner ones.

    Args:
        events: Rows of a rank's timeline with a duration, without those of steps and of gloo.
        step_starts: Starts of steps, ascending, if slices mark them.
    """
    paths = _paths_by_sequence(events)
    shown = events.filter(
        pl.col("name").str.starts_with(AUTOGRAD) | pl.col("name").str.starts_with(TORCH_MODULE)
        | (pl.col("category") == "user_annotation"), ~pl.col("name").is_in(WAITS))
    found = [_marker(start, duration, name, sequence, paths) for start, duration, name, sequence in shown.select(
        "start_ns", "duration_ns", "name", "sequence_number").iter_rows()]
    others = [one.start_ns for one in found if one.kind in ("module", "optimizer", "data") or (
        one.kind == "annotation" and _phase(one.name) == "forward")]
    found += _backwards(sorted(one for one in found if one.kind == "backward"), sorted([*others, *step_starts]))
    return sorted(found, key=lambda one: (one.start_ns, -one.end_ns, one.name is not None))


def _marker(start_ns: int, duration_ns: int, name: str, sequence: int | None,
            paths: dict[int, str | None]) -> Marker:
    end_ns = start_ns + duration_ns
    if name.startswith(AUTOGRAD):
        return Marker(start_ns, end_ns, "backward", paths.get(sequence) if sequence is not None else None)
    if name.startswith(DATA):
        return Marker(start_ns, end_ns, "data", None)
    if name in (CLOSURE_SLICE, EVALUATION_SLICE):
        return Marker(start_ns, end_ns, CLOSURE if name == CLOSURE_SLICE else EVALUATION, None)
    if name.startswith(OPTIMIZER):
        return Marker(start_ns, end_ns, "optimizer", "zero_grad" if name.startswith(ZERO_GRAD) else None)
    is_module = name.startswith(TORCH_MODULE) or MODULE.fullmatch(name)
    return Marker(start_ns, end_ns, "module" if is_module else "annotation", name)


def nested_path(name: str, outer: str | None) -> str:
    """Returns the path of the module that a slice of this name shows, inside another module or none."""
    if name.startswith(TORCH_MODULE):
        return ".".join(filter(None, (outer, name.removeprefix(TORCH_MODULE))))
    module = MODULE.fullmatch(name)
    assert module is not None
    return "" if outer is None and module[1] == "model" else module[1]


def _phase(name: str | None) -> str | None:
    """Returns the phase that an annotation is for; None for most annotations."""
    words = re.findall(r"[a-z_]+", (name or "").lower())
    return PHASES.get(words[-1]) if words else None


def _paths_by_sequence(slices: pl.DataFrame) -> dict[int, str | None]:
    """Returns the module in which each autograd node was created, by the sequence number shared with its operator.

    An operator that makes no node has the number of the next one, so the last operator with a number made the node.
    Each thread counts by itself: what autograd's own threads recompute has no say where another thread used the number.
    """
    made = slices.filter(pl.col("sequence_number") >= 0, ~pl.col("name").str.starts_with(AUTOGRAD))
    scopes = slices.filter(pl.col("name").str.starts_with(TORCH_MODULE) | (
        (pl.col("category") == "user_annotation") & pl.col("name").str.contains(f"^{MODULE.pattern}$")))
    if made.is_empty() or scopes.is_empty():
        return {}
    engines = set(slices.filter(pl.col("name").str.starts_with(AUTOGRAD))["thread"])
    stack: list[tuple[int, str]] = []
    found: dict[int, str | None] = {}
    recomputed: dict[int, str | None] = {}
    rows = pl.concat([scopes.with_columns(sequence_number=pl.lit(-1, pl.Int64)), made]).select(
        "start_ns", (pl.col("start_ns") + pl.col("duration_ns")).alias("end_ns"), "name", "sequence_number", "thread",
    ).sort("start_ns", "sequence_number", maintain_order=True)
    for start, end, name, sequence, thread in rows.iter_rows():
        while stack and stack[-1][0] <= start:
            stack.pop()
        if sequence < 0:
            stack.append((end, nested_path(name, stack[-1][1] if stack else None)))
        elif stack:
            (recomputed if thread in engines else found)[sequence] = stack[-1][1]
    return recomputed | found


def _backwards(functions: list[Marker], others: list[int]) -> list[Marker]:
    """Returns backward passes, each from its first autograd function to its last; anything else in between ends a pass.

    Time between two autograd functions also belongs to backward. Modules called inside a function belong to it: they
    are recomputed.

    Args:
        functions: Autograd functions, by start.
        others: Starts of modules, steps and everything else that is not in backward, ascending.
    """
    passes: list[list[Marker]] = [[]]
    place = 0
    for one in functions:
        while place < len(others) and others[place] < one.start_ns:
            if passes[-1] and others[place] >= max(before.end_ns for before in passes[-1][-2:]):
                passes.append([])
            place += 1
        passes[-1].append(one)
    return [Marker(mine[0].start_ns, max(one.end_ns for one in mine), "backward", None) for mine in passes if mine]


def scopes_to_intervals(found: list[Marker]) -> Iterator[tuple[int, int, Activity]]:
    """Yields the innermost activity at each instant within a scope.

    Args:
        found: Scopes by start, outer ones first.
    """
    stack: list[tuple[int, Activity]] = []
    now = 0
    for one in found:
        yield from _until(stack, now, one.start_ns)
        now = one.start_ns
        stack.append((one.end_ns, _activity(one, stack)))
    yield from _until(stack, now, None)


def _until(stack: list[tuple[int, Activity]], now: int, until: int | None) -> Iterator[tuple[int, int, Activity]]:
    while stack and (until is None or now < until):
        end, activity = stack[-1]
        if end <= now:
            stack.pop()
            continue
        stop = end if until is None else min(end, until)
        if activity.kind != CLOSURE:
            yield now, stop, activity
        now = stop


def _activity(one: Marker, stack: list[tuple[int, Activity]]) -> Activity:
    inside = [activity for end, activity in stack if end > one.start_ns]
    outer = inside[-1] if inside else None
    if one.kind == "annotation":
        # inside a known activity, an annotation is less specific
        return outer if outer is not None and outer.kind != CLOSURE else _annotated(one.name)
    if one.kind != "module":
        return Activity(one.kind, one.name)
    kinds: set[Any] = {activity.kind for activity in inside}
    around = [activity.where for activity in inside if activity.kind in CALLS and activity.where is not None]
    path = nested_path(one.name or "", around[-1] if around else None)
    return Activity("recompute" if "backward" in kinds else EVALUATION if EVALUATION in kinds else "forward", path)


def _annotated(name: str | None) -> Activity:
    phase = _phase(name)
    return Activity("annotation", name) if phase is None else Activity(phase)
