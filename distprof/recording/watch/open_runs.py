"""`--log-to wandb|mlflow`: the run that a script has open there, and how something is written into it harmlessly.

A script's own rows and their steps stay as they are. Nothing is imported here: what the script imported is used.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Mapping
from typing import Any, Protocol

VARIABLE = "DISTPROF_LOG_TO"
PREFIX = "distprof"
STEP = f"{PREFIX}/step"
NOT_IN_NAMES = re.compile(r"[^\w\-./ ]")
"""What MLflow allows in none of its versions."""
MOST_CHARACTERS = 5000
"""Of a tag."""


class OpenRun(Protocol):
    """The run that is open in this process, if there is one."""

    def look(self) -> None:
        """Looks for it, on the thread of the script's steps; takes microseconds."""

    def name(self) -> str | None:
        """Its id; None while none is open."""

    def write(self, step: int, values: Mapping[str, float], texts: Mapping[str, str]) -> None:
        """Adds a point to each series, and replaces texts; on a thread of ours."""


class WandbRun:
    """`wandb.run`, the same on all threads.

    A row of it is open until somebody commits it, and only that, or a larger `step=`, moves its step. What is added
    without either comes with the next row of the script, which it delays and drops in no case. The axis of ours is
    `distprof/step`. Texts go to the summary, which is of no step: they are there while a job hangs.
    """

    def __init__(self) -> None:
        self._run: Any = None
        self._defined: str | None = None

    def look(self) -> None:
        """Nothing: see `name`."""

    def name(self) -> str | None:
        """As of `OpenRun`."""
        run = getattr(sys.modules.get("wandb"), "run", None)
        self._run = None if getattr(run, "_is_finished", False) else run
        return str(self._run.id) if self._run is not None else None

    def write(self, step: int, values: Mapping[str, float], texts: Mapping[str, str]) -> None:
        """As of `OpenRun`."""
        run, self._run = self._run, None  # not held: the script may be done with it
        if self._defined != run.id:
            run.define_metric(STEP, hidden=True)
            run.define_metric(f"{PREFIX}/*", step_metric=STEP)
            self._defined = run.id
        if values:
            run.log({STEP: step, **values}, commit=False)
        if texts:
            run.summary.update(dict(texts))


class MlflowRun:
    """`mlflow.active_run()`, which each thread has for itself; written by its id, as MLflow's own system metrics."""

    def __init__(self) -> None:
        self._place: tuple[str, str] | None = None

    def look(self) -> None:
        """As of `OpenRun`."""
        mlflow = sys.modules.get("mlflow")
        active = getattr(mlflow, "active_run", lambda: None)()
        self._place = (mlflow.get_tracking_uri(), active.info.run_id) if mlflow and active else None

    def name(self) -> str | None:
        """As of `OpenRun`."""
        return self._place[1] if self._place is not None else None

    def write(self, step: int, values: Mapping[str, float], texts: Mapping[str, str]) -> None:
        """As of `OpenRun`."""
        mlflow, place = sys.modules["mlflow"], self._place
        if place is None:
            return
        now_ms = time.time_ns() // 10**6
        points = [mlflow.entities.Metric(NOT_IN_NAMES.sub("_", name), value, now_ms, step)
                  for name, value in values.items()]
        tags = [mlflow.entities.RunTag(NOT_IN_NAMES.sub("_", name), text[:MOST_CHARACTERS])
                for name, text in texts.items()]
        mlflow.MlflowClient(place[0]).log_batch(place[1], metrics=points, tags=tags)


def open_run(log_to: str) -> OpenRun | None:
    """Of the tracker that `VARIABLE` names; None for another one."""
    return WandbRun() if log_to == "wandb" else MlflowRun() if log_to == "mlflow" else None
