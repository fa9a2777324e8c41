"""What ends a step of a recorded job: how it was found, for `rank.json`, `summary.json` and the screen."""

from __future__ import annotations

from typing import Literal

import msgspec

StepRule = Literal["optimizer", "pattern", "backward", "irregular", "forward", "explicit", "given"]
"""optimizer: the only one there is. pattern: several, whose steps come in a pattern. backward: those that step while
backward runs, once a pass. irregular: several without a pattern, of which one was chosen. forward: a call of the first
root module, because no optimizer was alive. explicit: `rec.step()`. given: `--step-every`."""


class OptimizerSteps(msgspec.Struct, frozen=True, kw_only=True):
    """Steps of one optimizer in one step of the job."""

    name: str
    """Like Critic's Adam: the module whose parameters it has, and its class."""
    steps: int = 1


class StepsFound(msgspec.Struct, frozen=True, kw_only=True):
    """What ends a step, and from what that is known."""

    rule: StepRule
    optimizers: list[OptimizerSteps] = []
    """Those whose steps make a step, in their order; of `given` those that were seen."""
    given: str | None = None
    """The argument of `--step-every`."""
    module: str | None = None
    """Of `forward`: class of the root module."""
    looked_at: int = 0
    """Optimizer steps after which this was known."""
    silent: list[str] = []
    """Optimizers that were alive and had not stepped by then."""
    skipped: int = 0
    """Optimizer steps that a gradient scaler left out while recording; they end steps like others."""
    left_in: int | None = None
    """The first step in which optimizers stepped otherwise than this says."""
