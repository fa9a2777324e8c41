"""The keys of `summary.json`; docs/run-directory.md describes them."""

from __future__ import annotations

QUANTITIES = ("params", "stored_params", "fwd_macs", "fwd_flops", "bwd_flops", "recompute_flops")
"""What `summary.json` gives per GPU and of the model."""
TIMES = {"step_ns": "duration_ns", "before_forward_ns": "before_forward_ns", "fwd_ns": "fwd_ns", "bwd_ns": "bwd_ns",
         "optimizer_ns": "optimizer_ns"}
"""Times in `per_gpu` of `summary.json` -> columns of the steps table."""

SUMMARY_KEYS = (
    "format", "kind", "run_id", "world_size", "mp_size", "dp_size", "topology", "topology_source", "ranks",
    "missing_ranks", "problems", "remarks", "per_gpu", "model", "step", "slowest_rank", "communication", "modules",
    "coverage_ratio", "uncounted_ops", "clock",
)
"""Keys of `summary.json`; docs/run-directory.md says what they are."""
STEP_KEYS = (
    "time_ns", "before_forward_ns", "fwd_ns", "bwd_ns", "optimizer_ns", "samples_per_second", "flops_per_second", "mfu",
    "mfu_basis",
)
"""Keys of `step` in it."""
CLOCK_KEYS = (
    "method", "reason", "num_samples", "num_collectives", "aligned", "num_hosts", "num_clocks", "uncertainty_ns",
    "excess_ns", "residual_ns", "causality", "ranks", "set_by_ns",
)
"""Keys of `clock` in it."""
