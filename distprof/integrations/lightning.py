"""Lightning: a callback that its trainers find by themselves, and `Trainer(profiler=DistprofProfiler(out="runs/a"))`.

Both `lightning` and `pytorch_lightning` are served; their classes are of different families, so ours are made for the
one that is asked for. Nothing of Lightning or torch is imported before.
"""

from __future__ import annotations

import os
import sys
from functools import cache
from importlib import import_module
from types import new_class
from typing import Any

from distprof.integrations.joined_recording import JoinedRecording

PACKAGES = ("lightning.pytorch", "pytorch_lightning")
FIT = "fit"
EVALUATION_BEGINS = ("on_validation_start", "on_test_start")
EVALUATION_ENDS = ("on_validation_end", "on_test_end")


class _Hooks:
    """What the callback does, whichever package calls it."""

    def __init__(self, out: str | os.PathLike[str] | None = None, *, steps: str | None = None,
                 topics: str | None = None, step_every: str | int | None = None, force: bool = False) -> None:
        """Records nothing yet.

        Args:
            out: The run directory, the same on all ranks; None: DISTPROF_OUT.
            steps: Steps of each pass, like "wait=2,count=1"; None: DISTPROF_STEPS, else the default plan.
            topics: What is recorded, like "operator,sync"; without both DISTPROF_TOPICS.
            step_every: What ends a step, as in `distprof.record`; None: the pattern of the optimizers.
            force: Replaces an existing run.

        Raises:
            UsageError: `steps` and `topics` do not form a plan, or `step_every` is neither a class nor a number.
        """
        self._recording = JoinedRecording(out, steps=steps, topics=topics, step_every=step_every, force=force)

    def setup(self, trainer: object, pl_module: object, stage: str) -> None:
        """Begins to record a training; the process group is there by now."""
        if stage == FIT:
            self._recording.open()

    def on_validation_start(self, trainer: object, pl_module: object) -> None:
        """Validation within a training, before it (the sanity check) too, is evaluation."""
        self._recording.enter_evaluation()

    def on_validation_end(self, trainer: object, pl_module: object) -> None:
        """It is over."""
        self._recording.leave_evaluation()

    def on_exception(self, trainer: object, pl_module: object, exception: BaseException) -> None:
        """Ends the recording with what ended the training."""
        self._recording.close(exception)

    def teardown(self, trainer: object, pl_module: object, stage: str) -> None:
        """Ends the recording."""
        if stage == FIT:
            self._recording.close()


class _Actions:
    """What the profiler does: Lightning names each action before and after it."""

    def __init__(self, out: str | os.PathLike[str] | None = None, *, steps: str | None = None,
                 topics: str | None = None, step_every: str | int | None = None, force: bool = False) -> None:
        """Records nothing yet; arguments as those of the callback."""
        super().__init__()
        self._recording = JoinedRecording(out, steps=steps, topics=topics, step_every=step_every, force=force)
        self._labels: dict[str, Any] = {}

    def setup(self, stage: str, local_rank: int | None = None, log_dir: str | None = None) -> None:
        """Begins to record a training."""
        super().setup(stage, local_rank, log_dir)  # type: ignore[misc]  # of Lightning's Profiler
        if stage == FIT:
            self._recording.open()

    def start(self, action_name: str) -> None:
        """Labels the action in the timeline while one is recorded."""
        import torch

        if action_name.endswith(EVALUATION_BEGINS):
            self._recording.enter_evaluation()
        if self._recording.recorder is not None and torch._C._autograd._profiler_enabled():
            label = torch.profiler.record_function(action_name)
            label.__enter__()
            self._labels[action_name] = label

    def stop(self, action_name: str) -> None:
        """Ends the label."""
        label = self._labels.pop(action_name, None)
        if label is not None:
            label.__exit__(None, None, None)
        if action_name.endswith(EVALUATION_ENDS):
            self._recording.leave_evaluation()

    def summary(self) -> str:
        """Ends the recording, and says what to type next."""
        out = self._recording.out
        self._recording.close()
        return f"distprof recorded this training. Next:\n    distprof merge {out}" if out is not None else ""

    def teardown(self, stage: str | None) -> None:
        """Ends the recording."""
        recording = getattr(self, "_recording", None)  # Lightning calls this while an object is taken away, too
        if recording is not None and stage == FIT:
            recording.close()
        super().teardown(stage)  # type: ignore[misc]


@cache
def callback_class(package: str) -> type[Any]:
    """The callback for one of `PACKAGES`."""
    return _made("DistprofCallback", _Hooks, import_module(package).Callback)


@cache
def profiler_class(package: str) -> type[Any]:
    """The profiler for one of `PACKAGES`."""
    return _made("DistprofProfiler", _Actions, import_module(f"{package}.profilers").Profiler)


def _made(name: str, ours: type[Any], base: type[Any]) -> type[Any]:
    # under names by which `ddp_spawn`, which sends objects to other processes, finds the class again
    return new_class(name, (ours, base), exec_body=lambda body: body.update(
        __doc__=ours.__doc__, __module__=__name__, __qualname__=name))


def __getattr__(name: str) -> Any:
    makers = {"DistprofCallback": callback_class, "DistprofProfiler": profiler_class}
    if name not in makers:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return makers[name](_package_in_use())


def _package_in_use() -> str:
    """The one that the script has imported, `lightning` where it has both or none."""
    return PACKAGES[1] if PACKAGES[1] in sys.modules and PACKAGES[0] not in sys.modules else PACKAGES[0]
