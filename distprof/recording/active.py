"""`distprof.record`, and the active recorder of this process."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from distprof.process.topology import requested
from distprof.recording.chosen_ranks import ChosenRanks
from distprof.recording.plan import StepPlan, asked_plan
from distprof.recording.recorder import Recorder
from distprof.recording.steps.pattern import StepEvery
from distprof.recording.watch.later_recorder import later_recorder

_active: list[Recorder] = []


@contextmanager
def record(out: str | os.PathLike[str], *, steps: str | StepPlan = "", topics: str = "", force: bool = False,
           sizes: Mapping[str, int] | None = None, step_every: str | int | None = None,
           ranks: str | None = None) -> Iterator[Recorder]:
    """Records this process into a run directory; every rank of a job calls it with the same path.

    Inside `distprof run`, the recorder that is already running is used, so a script can have both.

    Args:
        out: The run directory; created if it does not exist.
        steps: Steps of each pass, like "wait=2,count=1,time=3,trace=6,arrivals=20".
        topics: What is recorded, like "operator,sync"; `steps` then sets the length of the passes of these topics.
        force: Replaces an existing run.
        sizes: Model-parallel sizes like {"tp": 2}; without them they come from the device mesh.
        step_every: What ends a step: the class of an optimizer, like "Adam", or a number of optimizer steps. By
            default, it is found from the pattern of optimizer steps.
        ranks: Which ranks are recorded fully, like "0-7,leaders,sample:32"; the others are recorded lightly. Default:
            all.

    Yields:
        The recorder; call `rec.step()` to end a step if no optimizer does.

    Raises:
        UsageError: `steps` and `topics` do not form a plan, `step_every` is neither a class nor a number, `ranks` names
            no ranks, or a DISTPROF_ variable is wrong.
    """
    if _active:
        yield _active[-1]
        return
    plan = asked_plan(steps, topics)
    every = StepEvery.requested(os.environ) if step_every is None else StepEvery.parse(step_every, where="step_every")
    chosen = ChosenRanks.requested(os.environ) if ranks is None else ChosenRanks.parse(ranks, where="ranks")
    recorder = Recorder(Path(out), plan=plan, force=force, every=every, ranks=chosen, make_later=later_recorder,
                        sizes={**requested(os.environ), **(sizes or {})})
    _active.append(recorder)
    try:
        if not os.environ.get("DISTPROF_DISABLE"):
            recorder.start()
        yield recorder
    except BaseException as error:
        recorder.close(error)
        raise
    finally:
        recorder.close()
        _forget(recorder)


def begin(out: str, *, steps: str, topics: str, force: bool, tentative: bool) -> Recorder | None:
    """Starts recording this process until `end`, for a script that does not record itself.

    Args:
        out: The run directory.
        steps: Steps of each pass, as in `record`.
        topics: As in `record`.
        force: Replaces an existing run.
        tentative: Whether nothing is to be written if the process turns out not to train.

    Returns:
        The recorder; None if the script is already recording itself.

    Raises:
        UsageError: `steps` and `topics` do not form a plan, or a DISTPROF_ variable is wrong.
    """
    if _active:
        return None
    recorder = Recorder(Path(out), plan=asked_plan(steps, topics), force=force, sizes=requested(os.environ),
                        every=StepEvery.requested(os.environ), tentative=tentative,
                        ranks=ChosenRanks.requested(os.environ), make_later=later_recorder)
    _active.append(recorder)
    recorder.start()
    return recorder


def end(recorder: Recorder, error: BaseException | None) -> None:
    """Closes a recorder that `begin` returned; see `Recorder.close`."""
    try:
        recorder.close(error)
    finally:
        _forget(recorder)


def forget_active() -> None:
    """Forgets the recorders of the parent; called in a forked child."""
    _active.clear()


def _forget(recorder: Recorder) -> None:
    if recorder in _active:  # not true in a child that was forked meanwhile
        _active.remove(recorder)


def active() -> list[Recorder]:
    """Returns the recorder that runs in this process, or nothing."""
    return list(_active)
