"""`distprof.record`: one recorder per process, from inside a script or by `distprof run`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from distprof.process.topology import requested
from distprof.recording.plan import StepPlan
from distprof.recording.recorder import Recorder

_active: list[Recorder] = []


@contextmanager
def record(out: str | os.PathLike[str], *, steps: str | StepPlan = StepPlan(), force: bool = False,  # noqa: B008
           sizes: Mapping[str, int] | None = None) -> Iterator[Recorder]:
    """Records this process into a run directory; every rank of a job calls it with the same path.

    Inside `distprof run` the recorder that runs already is used, so a script may have both.

    Args:
        out: The run directory; made if it does not exist.
        steps: Steps of each pass, like "wait=2,count=1,time=3,trace=6".
        force: Replaces a run that is there.
        sizes: Model-parallel sizes like {"tp": 2}; without them they come from the device mesh.

    Yields:
        The recorder; `rec.step()` ends a step where no optimizer does.

    Raises:
        UsageError: `steps` is no plan, or a DISTPROF_ variable gives no size.
    """
    if _active:
        yield _active[-1]
        return
    plan = StepPlan.parse(steps) if isinstance(steps, str) else steps
    recorder = Recorder(Path(out), plan=plan, force=force,
                        sizes={**requested(os.environ), **(sizes or {})})
    _active.append(recorder)
    try:
        if not os.environ.get("DISTPROF_DISABLE"):
            recorder.start()
        yield recorder
    except BaseException as error:
        recorder.close(f"{type(error).__name__} in the script", error)
        raise
    finally:
        recorder.close()
        _active.remove(recorder)


def active() -> list[Recorder]:
    """The recorder that runs in this process, if any."""
    return list(_active)
