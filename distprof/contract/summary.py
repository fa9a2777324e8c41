"""The keys of `summary.json`; docs/run-directory.md describes them."""

from __future__ import annotations

from typing import Literal

import msgspec


class PeakUsed(msgspec.Struct, frozen=True, kw_only=True):
    """A dense peak that MFU rests on; only its rate is known where it was given by --peak."""

    flops_per_second: float
    device: str | None = None
    dtype: str | None = None
    source: str | None = None
    year: int | None = None


class MfuBasis(msgspec.Struct, frozen=True, kw_only=True):
    """What MFU rests on, or why there is none."""

    code: Literal["published", "given", "no_step", "no_device", "no_dtype", "no_peak", "uncounted"]
    """no_step: a step of the count pass or of the time pass is missing; no_device, no_dtype: `rank` did not record it;
    no_peak: none is published for `device` in `dtype`; uncounted: modules were timed that were not counted."""
    peaks: tuple[PeakUsed, ...] = ()
    rank: int | None = None
    device: str | None = None
    dtype: str | None = None


QUANTITIES = ("params", "stored_params", "fwd_macs", "fwd_flops", "bwd_flops", "recompute_flops")
"""What `summary.json` gives per GPU and of the model."""
MODEL_PARAMS = ("unique_params", "active_params")
"""What it gives of the model beside these."""
TIMES = {"step_ns": "duration_ns", "before_forward_ns": "before_forward_ns", "fwd_ns": "fwd_ns", "bwd_ns": "bwd_ns",
         "optimizer_ns": "optimizer_ns"}
"""Times in `per_gpu` of `summary.json` -> columns of the steps table."""

SUMMARY_KEYS = (
    "format", "kind", "run_id", "world_size", "mp_size", "dp_size", "topology", "topology_source", "topology_certain",
    "ranks", "missing_ranks", "joined_with", "problems", "remarks", "per_gpu", "model", "step", "evaluation",
    "slowest_rank", "passes", "steps", "communication", "modules", "coverage_ratio", "uncounted_ops", "clock",
)
"""Keys of `summary.json`; docs/run-directory.md says what they are."""
STEP_KEYS = (
    "time_ns", "low_ns", "high_ns", "num_steps", "passes", "measured_ns", "before_forward_ns", "fwd_ns", "bwd_ns",
    "optimizer_ns", "samples", "samples_per_second",
    "flops_per_second", "mfu", "mfu_basis", "found",
)
"""Keys of `step` in it."""
EVALUATION_KEYS = ("calls", "flops", "time_ns")
"""Keys of `evaluation` in it."""
CLOCK_KEYS = (
    "method", "reason", "num_samples", "num_collectives", "aligned", "num_hosts", "num_clocks", "uncertainty_ns",
    "excess_ns", "residual_ns", "causality", "ranks", "set_by_ns",
)
"""Keys of `clock` in it."""
