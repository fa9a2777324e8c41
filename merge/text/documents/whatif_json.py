"""The data of `distprof whatif --json`; docs/critical-path.md describes the keys."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import polars as pl

from distprof.merge.critical.replayable import Replayable
from distprof.merge.totals.description import described
from distprof.merge.totals.step_time import step_time, step_time_data
from distprof.merge.whatif.changes import Changes
from distprof.merge.whatif.prediction import Prediction

DESCRIBED = ("format", "run_id", "world_size", "ranks", "missing_ranks", "problems", "remarks", "clock")


def whatif_data(found: Replayable, changes: Changes, prediction: Prediction) -> dict[str, Any]:
    """All that is known of the steps that a change would bring.

    Args:
        found: The run.
        changes: What is changed.
        prediction: Steps with and without.
    """
    about, frame = described(found.run, found.clock), prediction.of_ranks
    of_rank: dict[int, list[dict[str, Any]]] = {}
    for row in frame.iter_rows(named=True):
        of_rank.setdefault(row.pop("step"), []).append(row)
    names = ("measured_ns", "replayed_ns", "predicted_ns")
    return {
        **{key: about[key] for key in DESCRIBED}, "kind": "whatif", "changes": asdict(changes),
        "step_time": step_time_data(step_time(found.recorded)), "gain_ratio": prediction.gain_ratio,
        "pair_uncertainty_ns": found.clock.pair_uncertainty_ns(), "ranks_with_guessed_waits": found.guessed,
        "job": {name: frame[name].mean() for name in names},
        "by_rank": frame.group_by("rank", maintain_order=True).agg(pl.col(names).mean()).sort("rank").to_dicts(),
        "steps": [{**row, "by_rank": of_rank[row["step"]]} for row in prediction.of_steps.iter_rows(named=True)],
        "gain_ns": prediction.gain_ns, "gain_error_ns": prediction.gain_error_ns,
        "replay_error_ns": prediction.replay_error_ns,
        "largest_replay_error_ns": prediction.largest_replay_error_ns, "scatter_ns": prediction.scatter_ns,
        "fixed": prediction.work.rename({"module_path": "module"}).to_dicts(),
        "scaled": [{"scale": scale.text, "by_rank": [{"rank": rank, "time_ns": ns} for rank, ns in each.items()]}
                   for scale, each in zip(changes.scales, prediction.scaled_ns, strict=True)],
        "deferred": None if prediction.deferral is None else prediction.deferral.moved.to_dicts(),
        "waits_without_known_use": None if prediction.deferral is None else prediction.deferral.num_unknown,
        "bandwidth": [asdict(one) for one in prediction.bandwidths], "at_best_ns": prediction.at_best_ns}
