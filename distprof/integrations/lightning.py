"""Lightning: a callback that trainers find automatically, and `Trainer(profiler=DistprofProfiler(out="runs/a"))`.

Both `lightning` and `pytorch_lightning` are supported; as their base classes differ, our classes are created for the
requested package. Neither Lightning nor torch is imported before.
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
    """Records a training as a callback of Lightning."""

    def __init__(self, out: str | os.PathLike[str] | None = None, *, steps: str | None = None,
                 topics: str | None = None, step_every: str | int | None = None, force: bool = False) -> None:
        """Checks the settings, without beginning to record.

        Args:
            out: The run directory, the same on all ranks; by default DISTPROF_OUT.
            steps: Steps of each pass, like "wait=2,count=1"; by default DISTPROF_STEPS, else the default plan.
            topics: What to record, like "operator,sync"; if neither this nor `steps` is given, DISTPROF_TOPICS.
            step_every: What ends a step, as in `distprof.record`; by default the pattern of the optimizers.
            force: Whether to replace an existing run.

        Raises:
            UsageError: `steps` and `topics` do not form a plan, or `step_every` is neither a class nor a number.
        """
        self._recording = JoinedRecording(out, steps=steps, topics=topics, step_every=step_every, force=force)

    def setup(self, trainer: object, pl_module: object, stage: str) -> None:
        """Begins to record a training; the process group already exists."""
        if stage == FIT:
            self._recording.open()

    def on_validation_start(self, trainer: object, pl_module: object) -> None:
        """Marks validation as evaluation, including the sanity check before a training."""
        self._recording.enter_evaluation()

    def on_validation_end(self, trainer: object, pl_module: object) -> None:
        """Ends the mark of evaluation."""
        self._recording.leave_evaluation()

    def on_exception(self, trainer: object, pl_module: object, exception: BaseException) -> None:
        """Ends the recording with the exception that ended the training."""
        self._recording.close(exception)

    def teardown(self, trainer: object, pl_module: object, stage: str) -> None:
        """Ends the recording."""
        if stage == FIT:
            self._recording.close()


class _Actions:
    """Records a training as a profiler of Lightning, and labels Lightning's actions in the timeline."""

    def __init__(self, out: str | os.PathLike[str] | None = None, *, steps: str | None = None,
                 topics: str | None = None, step_every: str | int | None = None, force: bool = False) -> None:
        """Checks the settings, without beginning to record; arguments as for the callback."""
        super().__init__()
        self._recording = JoinedRecording(out, steps=steps, topics=topics, step_every=step_every, force=force)
        self._labels: dict[str, Any] = {}

    def setup(self, stage: str, local_rank: int | None = None, log_dir: str | None = None) -> None:
        """Begins to record a training."""
        super().setup(stage, local_rank, log_dir)  # type: ignore[misc]  # Lightning's Profiler
        if stage == FIT:
            self._recording.open()

    def start(self, action_name: str) -> None:
        """Labels an action in the timeline, if one is being recorded; marks validation and test as evaluation."""
        import torch

        if action_name.endswith(EVALUATION_BEGINS):
            self._recording.enter_evaluation()
        if self._recording.recorder is not None and torch._C._autograd._profiler_enabled():
            label = torch.profiler.record_function(action_name)
            label.__enter__()
            self._labels[action_name] = label

    def stop(self, action_name: str) -> None:
        """Ends the label of an action, and the mark of evaluation."""
        label = self._labels.pop(action_name, None)
        if label is not None:
            label.__exit__(None, None, None)
        if action_name.endswith(EVALUATION_ENDS):
            self._recording.leave_evaluation()

    def summary(self) -> str:
        """Ends the recording, and returns the next command to type."""
        out = self._recording.out
        self._recording.close()
        return f"distprof recorded this training. Next:\n    distprof merge {out}" if out is not None else ""

    def teardown(self, stage: str | None) -> None:
        """Ends the recording."""
        recording = getattr(self, "_recording", None)  # Lightning also calls this when an object is deleted
        if recording is not None and stage == FIT:
            recording.close()
        super().teardown(stage)  # type: ignore[misc]


@cache
def callback_class(package: str) -> type[Any]:
    """Returns the callback class for one of `PACKAGES`."""
    return _made("DistprofCallback", _Hooks, import_module(package).Callback)


@cache
def profiler_class(package: str) -> type[Any]:
    """Returns the profiler class for one of `PACKAGES`."""
    return _made("DistprofProfiler", _Actions, import_module(f"{package}.profilers").Profiler)


def _made(name: str, ours: type[Any], base: type[Any]) -> type[Any]:
    # with module and name set so that `ddp_spawn`, which pickles objects, can find the class
    return new_class(name, (ours, base), exec_body=lambda body: body.update(
        __doc__=ours.__doc__, __module__=__name__, __qualname__=name))


def __getattr__(name: str) -> Any:
    makers = {"DistprofCallback": callback_class, "DistprofProfiler": profiler_class}
    if name not in makers:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return makers[name](_package_in_use())


def _package_in_use() -> str:
    """Returns the package that the script has imported; `lightning` if it has imported both or neither."""
    return PACKAGES[1] if PACKAGES[1] in sys.modules and PACKAGES[0] not in sys.modules else PACKAGES[0]
