"""`--log-to wandb|mlflow`: logs what the watcher knows of a job to the tracker run that this rank's script has open.

The script's own rows and their steps are not changed. No tracker is imported here: the one that the script imported is
used. The watcher next to the launcher writes `watch/state.json`; a thread here reads it, so it delays nobody.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from distprof.contract.watch_series import EVERY_S, SHARE, SUFFIXES, by_step
from distprof.contract.watch_state import STATE_JSON, WATCH, WatchState, certain_findings, logged_file, read_state
from distprof.own import Event, time
from distprof.threads import UnseenThread, is_scarce, stay_unseen

VARIABLE = "DISTPROF_LOG_TO"
PREFIX = "distprof"
STEP = f"{PREFIX}/step"
NOT_IN_NAMES = re.compile(r"[^\w\-./ ]")
"""Characters that at least one version of MLflow does not allow in names."""
MOST_CHARACTERS = 5000
"""Maximum length of a tag."""


class OpenRun(Protocol):
    """The tracker run that is open in this process, if any."""

    def look(self) -> None:
        """Looks for an open run, on the thread of the script's steps; takes microseconds."""

    def name(self) -> str | None:
        """Returns its id; None if no run is open."""

    def write(self, step: int, values: Mapping[str, float], texts: Mapping[str, str]) -> None:
        """Adds a point to each series and replaces texts, on a thread of ours."""


class WandbRun:
    """`wandb.run`, which is the same on all threads.

    A row of wandb is open until somebody commits it; only that, or a larger `step=`, advances its step. What is logged
    without either is part of the script's next row, and neither delays nor drops it. Our axis is `distprof/step`. Texts
    go to the summary, which belongs to no step: they are shown even while a job hangs.
    """

    def __init__(self) -> None:
        self._run: Any = None
        self._defined: str | None = None

    def look(self) -> None:
        """Does nothing; see `name`."""

    def name(self) -> str | None:
        """Returns its id; None if no run is open."""
        run = getattr(sys.modules.get("wandb"), "run", None)
        self._run = None if getattr(run, "_is_finished", False) else run
        return str(self._run.id) if self._run is not None else None

    def write(self, step: int, values: Mapping[str, float], texts: Mapping[str, str]) -> None:
        """Adds a point to each series and replaces texts."""
        run, self._run = self._run, None  # not kept, since the script may finish it
        if self._defined != run.id:
            run.define_metric(STEP, hidden=True)
            run.define_metric(f"{PREFIX}/*", step_metric=STEP)
            self._defined = run.id
        if values:
            run.log({STEP: step, **values}, commit=False)
        if texts:
            run.summary.update(dict(texts))


class MlflowRun:
    """`mlflow.active_run()`, which each thread has its own of; written to by id, like MLflow's own system metrics."""

    def __init__(self) -> None:
        self._place: tuple[str, str] | None = None

    def look(self) -> None:
        """Looks for an open run on this thread."""
        mlflow = sys.modules.get("mlflow")
        active = getattr(mlflow, "active_run", lambda: None)()
        self._place = (mlflow.get_tracking_uri(), active.info.run_id) if mlflow and active else None

    def name(self) -> str | None:
        """Returns its id; None if no run is open."""
        return self._place[1] if self._place is not None else None

    def write(self, step: int, values: Mapping[str, float], texts: Mapping[str, str]) -> None:
        """Adds a point to each series and replaces texts."""
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
    """Returns the run of the tracker with this name; None for an unknown name."""
    return WandbRun() if log_to == "wandb" else MlflowRun() if log_to == "mlflow" else None


LOOKS_S = 2.0
"""Time in seconds between two looks for news."""
PATIENCE_S = 2.0
"""Time in seconds that the end of the script waits for the last write: a server may not answer."""
MOST_FAILURES = 3
"""Number of consecutive failures after which logging stops."""
MOST_FINDINGS = 20


class RunLog:
    """Logs series and findings of a job to the open run of this process."""

    def __init__(self, run: Path, rank: int, log_to: str, to: OpenRun, say: Callable[[str], object]) -> None:
        """Begins with nothing written.

        Args:
            run: The run directory.
            rank: The rank of this process.
            log_to: The tracker's name.
            to: The run to write to.
            say: Called once with a line when logging stops.
        """
        self._run, self._rank, self._log_to, self._to, self._say = run, rank, log_to, to, say
        self._is_asked = True
        self._over = Event()
        self._began_s, self._due_s, self._last = time.monotonic(), 0.0, -1
        self._seen = (0, 0)
        self._seen_s: dict[str, float] = {}
        """Finding -> when it was first seen (`time.monotonic`)."""
        self._name: str | None = None
        self._told: dict[str, str] = {}
        """Texts that the run has."""
        self._num_failed = 0
        self._thread = UnseenThread(self._write_on)

    def start(self) -> None:
        """Starts the writing thread.

        Raises:
            RuntimeError: No more threads can be started.
        """
        self._thread.start()

    def look(self) -> None:
        """Looks for an open run if that is due; called now and then on the thread of the steps."""
        if self._is_asked:
            self._is_asked = False
            with suppress(Exception):  # another version of the tracker
                self._to.look()

    def stop(self) -> None:
        """Ends the thread when the script ends."""
        self._over.set()
        self._thread.join(PATIENCE_S)

    def _write_on(self) -> None:
        while not self._over.wait(LOOKS_S) and self._num_failed < MOST_FAILURES:
            self._look()
            self._is_asked = True
        if self._num_failed < MOST_FAILURES:
            self._look(at_end=True)

    def _look(self, *, at_end: bool = False) -> None:
        try:
            self._seen = (0, 0) if at_end else self._seen
            state = self._news()
            name = self._to.name()
            if state is not None and name is not None:
                self._write(state, name, at_end=at_end)
            self._num_failed = 0
        except Exception as error:  # noqa: BLE001 (a server that is gone, a run that has just ended, another version)
            self._num_failed += 1
            if self._num_failed == MOST_FAILURES:
                self._say(f"--log-to {self._log_to}: logging has stopped: {type(error).__name__}: {error}")
        finally:
            stay_unseen()

    def _news(self) -> WatchState | None:
        """Returns the state if it was written since the last look."""
        with suppress(OSError):
            about = (self._run / WATCH / STATE_JSON).stat()
            seen, self._seen = self._seen, (about.st_mtime_ns, about.st_ino)
            if seen != self._seen:
                return read_state(self._run)
        return None

    def _write(self, state: WatchState, name: str, *, at_end: bool) -> None:
        if name != self._name:
            self._begin(name)
        now, step = time.monotonic(), state.num_steps - 1
        is_due = step > self._last and (at_end or now >= self._due_s)
        new = {key: text for key, text in self._texts(state).items()
               if key not in self._told or (is_due and text != self._told[key])}
        if is_due or new:
            self._to.write(step, points(state) if is_due else {}, new)
            self._told |= new
        if is_due:
            self._due_s, self._last = now + max(EVERY_S, (now - self._began_s) * SHARE), step

    def _begin(self, name: str) -> None:
        """Begins to log to another run."""
        self._name, self._told = name, {}
        with suppress(OSError), logged_file(self._run, self._log_to).open("a") as file:
            file.write(f"rank {self._rank}: {name}\n")

    def _texts(self, state: WatchState) -> dict[str, str]:
        """Returns the findings that are certain enough to be reported, as sentences."""
        certain = certain_findings(state.findings, self._seen_s, running=state.running)
        told = [one for one in state.findings if one.id in certain and one.kind != "pauses"]
        return {f"{PREFIX}/findings/{one.id}": one.text if one.until_step is None else
                f"{one.text} (until step {one.until_step:,})" for one in told[:MOST_FINDINGS]}


def points(state: WatchState) -> dict[str, float]:
    """Returns values by name, such as `distprof/step_seconds/rank 1` -> 0.02."""
    return {f"{family.name.replace('.', '/', 1).replace('.', '_')}{SUFFIXES[family.unit]}/{of}": value
            for family, of, value in by_step(state)}


def run_log(folder: Path, rank: int, say: Callable[[str], object],
            environ: Mapping[str, str] = os.environ) -> RunLog | None:
    """Returns the log of a rank, if `--log-to` asks for one and a thread can be started.

    Args:
        folder: The rank's folder.
        rank: The rank.
        say: Prints a line.
        environ: Environment with `VARIABLE`.
    """
    log_to = environ.get(VARIABLE, "")
    to = open_run(log_to)
    return None if to is None or is_scarce() else RunLog(folder.parent, rank, log_to, to, say)
