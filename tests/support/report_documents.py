"""Report documents made by hand: a job of two ranks of which the second is late."""

from __future__ import annotations

import copy
from typing import Any

PARTS = ["compute_ns", "waiting_ns", "moving_ns", "data_ns", "optimizer_ns", "host_ns", "message_waiting_ns"]


def spread(mean: float) -> dict[str, Any]:
    """A quantity that is equal on both ranks."""
    return {"mean": mean, "min": mean, "max": mean, "min_rank": 0, "max_rank": 1}


def document() -> dict[str, Any]:
    """A document with something in every section."""
    return copy.deepcopy(_DOCUMENT)


def bare_document() -> dict[str, Any]:
    """A document of which nothing is known but its ranks: all other sections say why they are not there."""
    made = document()
    sections = ("totals", "step", "communication", "step_parts", "heat_map", "collectives", "collective_kinds", "bandwidths", "blame",
                "hang", "modules", "operators", "memory", "pipeline", "waits", "critical_path", "clock")
    made |= dict.fromkeys(sections)
    made["absent"] = {"step_parts": "no steps were recorded", "modules": "no modules were recorded"}
    made["findings"] = []
    return made


_DOCUMENT: dict[str, Any] = {
    "format": 1, "kind": "report",
    "run": {"title": "late", "run_id": "4ca77d2a97af", "command": "train.py --steps 4", "started_ns": 1_700_000_000_000_000_000,
            "hosts": [{"name": "node-a", "ranks": [0, 1]}], "versions": {"distprof": "0.1.0", "torch": "2.13.0", "python": "3.11.7"},
            "devices": ["AMD EPYC"], "foreign": False, "attempts": 1},
    "world_size": 2, "mp_size": 1, "dp_size": 2, "ranks": [0, 1], "missing_ranks": [], "topology": {"dp": 2},
    "topology_source": "no device mesh", "topology_certain": True,
    "findings": [
        {"severity": "bad", "text": "Rank 1 delays the job by 3.00 ms a step (30.0 %): mlp takes 2.5 x as long as on its peers.",
         "detail": "p < 0.0001", "section": "blame", "rank": 1, "step": None, "module": "mlp", "next": "distprof comms late"},
        {"severity": "good", "text": "Both clocks agree.", "detail": None, "section": "clock", "rank": None, "step": None,
         "module": None, "next": None}],
    "absent": {}, "left_out": ["operators: the 2 slowest of 7"], "missing": ["rank 1 is partial: the script ended early"],
    "totals": {"per_gpu": {"params": spread(1000), "fwd_flops": spread(20_000)},
               "model": {"params": 1000, "unique_params": 900, "fwd_flops": 20_000}, "coverage_ratio": 1.0, "uncounted_ops": []},
    "step": {"time_ns": 10_000_000.0, "samples_per_second": 800.0, "flops_per_second": 6_000_000.0, "mfu": 0.25},
    "communication": {"waiting_ratio": 0.15, "moving_ratio": 0.05},
    "step_parts": {"source": "trace", "parts": PARTS,
                   "by_rank": {"rank": [0, 1], "duration_ns": [10_000_000, 10_100_000], "compute_ns": [5_000_000, 8_000_000],
                               "waiting_ns": [3_000_000, 100_000], "moving_ns": [500_000, 500_000], "data_ns": [0, 0],
                               "optimizer_ns": [1_000_000, 1_000_000], "host_ns": [500_000, 500_000], "message_waiting_ns": [0, 0]}},
    "heat_map": {"by": {"rank": [0, 0, 1, 1], "step": [2, 3, 2, 3], "pass": ["trace"] * 4,
                        "duration_ns": [9_000_000, 11_000_000, 9_100_000, 11_100_000], "waiting_ns": [2_000_000, 4_000_000, 0, 200_000],
                        "compute_ns": [5_000_000, 5_000_000, 8_000_000, 8_000_000]}},
    "collectives": {
        "ops": ["all_reduce"], "groups": [{"description": "default_pg (0-1)", "ranks": [0, 1]}], "modules": ["mlp"],
        "steps": [{"step": step, "start_ns": 1_700_000_000_000_000_000, "duration_ns": 10_000_000,
                   "calls": {"collective": [10 * step, 10 * step + 1], "op": [0, 0], "group": [0, 0], "size_bytes": [4096, 8192],
                             "late_rank": [1, None], "module": [0, None]},
                   "parts": {"call": [0, 0, 1, 1], "rank": [0, 1, 0, 1], "arrival_ns": [4_000_000, 7_000_000, 4_500_000, 7_100_000],
                             "full_ns": [7_000_000, 7_000_000, 7_100_000, 7_100_000],
                             "end_ns": [7_300_000, 7_300_000, 7_600_000, None]}} for step in (2, 3)]},
    "collective_kinds": [{"op": "all_reduce", "group": "default_pg (0-1)", "num_ranks": 2, "calls_per_step": 2.0, "min_bytes": 4096,
                          "max_bytes": 8192, "spread_median_ns": 3_000_000.0, "wait_ns": 1_500_000.0, "transfer_ns": 500_000.0,
                          "algbw": 1e7, "busbw": 1e7}],
    "bandwidths": [{"op": "all_reduce", "group_description": "default_pg", "num_ranks": 2, "size_bucket": 4096, "num_measured": 2,
                    "algbw": 1e7, "busbw_median": 1e7, "busbw_max": 2e7}],
    "blame": {"culprits": [{"rank": 1, "sentence": "mlp takes 2.5 x as long as on its peers", "gain_ns": 3_000_000.0,
                            "gain_error_ns": 200_000.0, "share": 0.3, "p_value": 0.00001, "certain": True, "more": []}], "blind": None,
              "lines": ["rank 1 delays rank 0 by 3.00 ms a step (30.0 %)", "mlp takes 2.5 x as long as on its peers"]},
    "hang": None,
    "modules": {"tree": {"path": ["", "mlp", "mlp.0", "head"], "class_name": ["Net", "MLP", "Linear", "Linear"], "stage": [0] * 4,
                         "depth": [0, 1, 2, 1], "parent": [-1, 0, 1, 0], "params": [1000, 600, 500, 400],
                         "fwd_flops": [20_000, 12_000, 10_000, 8_000], "bwd_flops": [40_000, 24_000, 20_000, 16_000],
                         "recompute_flops": [0] * 4, "fwd_time_ns": [3_000_000, 2_000_000, 1_500_000, 900_000],
                         "bwd_time_ns": [5_000_000, 3_000_000, 2_500_000, 1_500_000], "fwd_self_time_ns": [100_000, 500_000, 1_500_000, 900_000],
                         "bwd_self_time_ns": [500_000, 500_000, 2_500_000, 1_500_000], "peak_bytes": [None] * 4,
                         "activation_bytes": [None] * 4, "slowest_rank": [1, 1, 1, 0]},
                "of_ranks": {"0": {"fwd_time_ns": [2_000_000, 1_100_000, 900_000, 800_000], "bwd_time_ns": [4_000_000, 2_000_000, 1_500_000, 1_500_000]},
                             "1": {"fwd_time_ns": [4_000_000, 2_900_000, 2_100_000, 1_000_000], "bwd_time_ns": [6_000_000, 4_000_000, 3_500_000, 1_500_000]}}},
    "operators": {"columns": ["op", "module", "phase", "calls", "self_host_ns", "host_ns", "self_device_ns", "share", "flops",
                              "flops_per_second", "flops_per_byte"],
                  "rows": [["aten::mm", "head", "forward", 8, 9_000_000, 9_100_000, 0, 0.6, 64_000, 7.1e6, 12.5],
                           ["aten::copy_", None, None, 4, 1_000_000, 1_000_000, 0, 0.1, None, None, None]],
                  "totals": {}, "coverage": {}, "peak_flops_per_second": 1e9, "peak_bytes_per_second": 1e8, "peak_basis": "peaks as measured"},
    "memory": {"ranks": {"rank": [0, 1], "peak_bytes": [9000, 9100], "at_ns": [50, 60]},
               "categories": {"names": ["parameter", "activation"], "by_rank": {"parameter": [4000, 4000], "activation": [5000, 5100]}},
               "timeline": {"0": {"time_ns": [0, 50, 90], "bytes": [4000, 9000, 4000]}, "1": {"time_ns": [0, 60, 95], "bytes": [4000, 9100, 4000]}},
               "at_peak": {"rank": [0], "bytes": [2000], "module": ["mlp"], "shape": [[10, 50]], "category": ["activation"], "made_ns": [40]}},
    "pipeline": {"bubble_ratio": 0.2, "imbalance_ratio": 1.1, "stages": [{"stage": 0, "work_ns": 5_000_000.0, "waiting_ns": 1_000_000.0},
                                                                         {"stage": 1, "work_ns": 4_000_000.0, "waiting_ns": 2_000_000.0}]},
    "waits": {"source": "sync", "steps": [2], "total_ns": 20_000_000,
              "rows": {"op": ["aten::item"], "file": ["train.py"], "line": [12], "module": [None], "phase": ["forward"], "rank": [1],
                       "calls": [4], "blocked_ns": [800_000], "longest_ns": [300_000]}},
    "critical_path": {"duration_ns": 10_000_000, "by_kind": {"work": 9_000_000}, "by_rank": {"rank": [1], "time_ns": [9_000_000], "ratio": [0.9]},
                      "by_module": {"module": ["mlp"], "phase": ["forward"], "time_ns": [4_000_000], "ratio": [0.4]},
                      "by_op": {"op": ["aten::mm"], "time_ns": [4_000_000], "ratio": [0.4]}},
    "clock": {"method": "shared", "sentence": "one host: all ranks read the same clock", "uncertainty_ns": 0, "residual_ns": None,
              "causality": None, "ranks": {"rank": [0, 1], "host": ["node-a", "node-a"], "offset_ns": [0, 0], "drift_ppm": [0.0, 0.0],
                                           "uncertainty_ns": [0, 0]}},
}
