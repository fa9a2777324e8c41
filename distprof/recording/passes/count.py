"""The count pass: FLOPs and bytes per operator and module, counted in a dispatch mode that sees every operator call."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Sequence
from types import FrameType
from typing import Any

from distprof.contract.tables import EVALUATION, OPS, TableRow
from distprof.counting.count_pass import CountPass
from distprof.model.compiled import ForcedEager
from distprof.model.modules import Site
from distprof.recording.passes.protocol import Pass, PassContext
from distprof.recording.run_directory import RankFolder

SUMMED_COLUMNS = ("calls", "macs", "flops", "causal_macs", "recompute_macs", "elements", "estimate_flops", "io_bytes",
                  "read_bytes", "write_bytes")
FLOP_COLUMNS = {"forward": "fwd_flops", "backward": "bwd_flops", "recompute": "recompute_flops",
                EVALUATION: "evaluation_flops"}
COUNTS = ("fwd_macs", *FLOP_COLUMNS.values())
"""Columns of modules.parquet; null for modules that appeared after the count pass."""


class CountSteps(Pass):
    """Steps with the FLOP counter."""

    name = "count"

    def __init__(self, context: PassContext) -> None:
        self._counter = CountPass(context.scopes, context.phase, are_work=context.are_work)
        self._eager = ForcedEager()
        self._note = context.note
        self._said: set[str] = set()
        self._modules = context.scopes.modules
        self._there = set[Site]()
        """Modules that existed in a counted step."""

    def start(self) -> None:
        """Switches the counter on and compiled code off: a compiled graph hides the operators that it was made from."""
        self._counter.start()
        self._eager.start()

    def stop(self) -> None:
        self._eager.stop()
        self._counter.stop()

    def in_operator(self) -> bool:
        """True while torch calls our mode for an operator: it is then off torch's stack, and put back afterwards."""
        if self._counter.is_aside():
            return True
        frame: FrameType | None = sys._getframe()
        while frame is not None and frame.f_code is not CountPass.__torch_dispatch__.__code__:
            frame = frame.f_back
        return frame is not None

    def next_step(self) -> None:
        self._counter.next_step()
        unsaid = self._counter.opaque - self._said
        if unsaid:
            self._said |= unsaid
            self._note(f"work inside {', '.join(sorted(unsaid))} is not visible and was not counted; FLOPs cover the "
                       "rest")
        self._there.update(self._modules.sites())

    def module_columns(self, sites: Sequence[Site]) -> Sequence[TableRow]:
        """Returns calls and FLOPs per step including submodules; FLOPs are null for modules that appeared later."""
        num_steps = self._counter.num_steps
        if not num_steps:
            return ()
        flops, calls = self._inclusive_flops(), self._counter.calls
        return [{"calls": calls.get(site, 0) / num_steps,
                 **{name: round(value / num_steps) if site in self._there else None
                    for name, value in flops[site].items()}} for site in sites]

    def _inclusive_flops(self) -> dict[Site, dict[str, int]]:
        total: dict[Site, dict[str, int]] = defaultdict(lambda: dict.fromkeys(COUNTS, 0))
        for key, entry in self._counter.sums.items():
            column = FLOP_COLUMNS.get(key.phase)
            for site in key.path.sites() if column else ():
                total[site][column or ""] += entry.flops
                total[site]["fwd_macs"] += entry.macs if key.phase == "forward" else 0
        return total

    def write(self, folder: RankFolder, steps: Sequence[TableRow], *, ended: bool, elsewhere: bool) -> None:
        if self._counter.num_steps:
            folder.write_rows(OPS, self._op_rows())

    def _op_rows(self) -> list[TableRow]:
        """Returns one row per (module path, op, phase, shapes, dtype); call paths to the same module are added up."""
        sums: dict[tuple[Any, ...], TableRow] = {}
        for key, entry in self._counter.sums.items():  # all steps decide the phase of calls without gradients
            if key.path.site is not None and key.path.site.model.left_out:
                continue
            path = key.path.site.path if key.path.site is not None else None
            row = sums.setdefault((path, key.op, key.phase, key.shapes, key.dtype), {
                "module_path": path, "op": key.op, "phase": key.phase, "shapes": key.shapes, "dtype": key.dtype,
                **dict.fromkeys(SUMMED_COLUMNS, 0.0),
                "kind": entry.kind, "counted": entry.counted, "view": entry.kind == "view", "note": entry.note or None,
            })
            for name in SUMMED_COLUMNS:
                row[name] += getattr(entry, name) / self._counter.num_steps
        return list(sums.values())
