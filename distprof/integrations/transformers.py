"""A callback for the Trainer of transformers: `Trainer(..., callbacks=[DistprofCallback(out="runs/mine")])`."""

from __future__ import annotations

import os
from typing import Any

from transformers import TrainerCallback

from distprof.integrations.joined_recording import JoinedRecording


class DistprofCallback(TrainerCallback):
    """Records from the start of `trainer.train()` to its end.

    A step is what the Trainer counts in `state.global_step`: all batches of gradient accumulation and the optimizer
    step after them. What the Trainer evaluates in between is marked as evaluation.

    Under `distprof run`, the callback joins the running recording, which continues after the training. Without `out`
    and DISTPROF_OUT, the callback does nothing, so it may stay in the script.
    """

    def __init__(self, out: str | os.PathLike[str] | None = None, *, steps: str | None = None,
                 topics: str | None = None, force: bool = False) -> None:
        """Checks the settings, without beginning to record.

        Args:
            out: The run directory, the same on all ranks; by default DISTPROF_OUT.
            steps: Steps of each pass, like "wait=2,count=1"; by default DISTPROF_STEPS, else the default plan.
            topics: What to record, like "operator,sync"; if neither this nor `steps` is given, DISTPROF_TOPICS.
            force: Whether to replace an existing run.

        Raises:
            UsageError: `steps` and `topics` do not form a plan.
        """
        self._recording = JoinedRecording(out, steps=steps, topics=topics, force=force)

    def on_train_begin(self, args: object, state: object, control: object, **kwargs: Any) -> None:
        """Begins to record."""
        self._recording.open()

    def on_step_begin(self, args: object, state: object, control: object, **kwargs: Any) -> None:
        """Ends the mark of evaluation, if there is one."""
        self._recording.leave_evaluation()

    def on_step_end(self, args: object, state: object, control: object, **kwargs: Any) -> None:
        """Ends a step."""
        self._recording.step()
        self._on_control(control)

    def on_epoch_end(self, args: object, state: object, control: object, **kwargs: Any) -> None:
        """Marks an evaluation after the epoch, if the Trainer will evaluate."""
        self._on_control(control)

    def _on_control(self, control: Any) -> None:
        if control.should_evaluate:  # evaluation follows immediately
            self._recording.enter_evaluation()

    def on_evaluate(self, args: object, state: object, control: object, **kwargs: Any) -> None:
        """Ends the mark of evaluation."""
        self._recording.leave_evaluation()

    def on_train_end(self, args: object, state: object, control: object, **kwargs: Any) -> None:
        """Ends the recording."""
        self._recording.close()
