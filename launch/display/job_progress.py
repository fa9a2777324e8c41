"""How far the ranks of a job are, from the steps that they write down anyway; shown while they record.

Ranks do nothing for it, and wait for nobody.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median_low

from distprof.contract.paths import PARTIAL_SUFFIX, STEP_LINES
from distprof.launch.display.status_row import StatusRow, has_rows, never_stopped
from distprof.recording.plan import StepPlan
from distprof.units import counted, duration

EVERY_S = 1.0
SHARE = 0.02
"""Of a processor that looking may take: with many ranks it happens less often."""
PATIENCE_S = 1.0
"""For the line to be taken away at the end of the job, where the terminal stands still."""
LINE_BYTES = 4096
"""More than a line on a step has."""
BEHIND = 2
"""Steps; one less may only mean that a rank has not written it yet."""
STANDS_OUT = 1.1
"""Times the median from which a step is called slow."""
STDERR = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class LastStep:
    """The last step that a rank wrote down."""

    rank: int
    step: int
    """From 0."""
    name: str
    """Of its pass."""
    duration_ns: int


@contextmanager
def progress_shown(directory: Path, plan: StepPlan) -> Iterator[None]:
    """Shows what ranks write to a run directory meanwhile, where standard error is a terminal."""
    if not has_rows(STDERR, os.environ):
        yield
        return
    over = threading.Event()
    thread = threading.Thread(target=_show, args=(directory, plan, over), name="distprof progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(PATIENCE_S)


def _show(directory: Path, plan: StepPlan, over: threading.Event) -> None:
    never_stopped()
    row, pause_s = StatusRow(STDERR), EVERY_S
    with suppress(OSError):
        while not over.wait(pause_s):
            began = time.thread_time()
            steps = last_steps(directory)
            row.draw(progress_line(steps, plan)) if steps else row.clear()
            pause_s = max(EVERY_S, (time.thread_time() - began) / SHARE)
        row.clear()


def last_steps(directory: Path) -> list[LastStep]:
    """Of the ranks that record now and have ended a step."""
    found = []
    for path in directory.glob(f"rank?????{PARTIAL_SUFFIX}/{STEP_LINES}"):
        with suppress(OSError, ValueError, KeyError):  # the folder is whole by now, or the line is not
            row = json.loads(_last_line(path))
            found.append(LastStep(rank=int(path.parent.name[4:9]), step=row["step"], name=row["pass"],
                                  duration_ns=row["duration_ns"]))
    return found


def _last_line(path: Path) -> bytes:
    with path.open("rb") as lines:
        lines.seek(max(os.fstat(lines.fileno()).st_size - LINE_BYTES, 0))
        return lines.read().rpartition(b"\n")[0].rpartition(b"\n")[2]


def progress_line(steps: list[LastStep], plan: StepPlan) -> str:
    """`distprof: 9 of 32 steps recorded, trace pass; step 180.02 ms; slowest rank 2, 214.10 ms`."""
    first, last = max(steps, key=lambda one: one.step), min(steps, key=lambda one: one.step)
    longest, typical_ns = max(steps, key=lambda one: one.duration_ns), median_low(one.duration_ns for one in steps)
    done, behind = first.step + 1, first.step - last.step
    steps_done = f"{done} of {counted(plan.num_steps, 'step')}" if done <= plan.num_steps else counted(done, "step")
    text = f"distprof: {steps_done} recorded, {first.name} pass; step {duration(typical_ns)}"
    if behind >= BEHIND:
        return f"{text}; slowest rank {last.rank}, {counted(behind, 'step')} behind"
    if longest.duration_ns >= STANDS_OUT * typical_ns:
        return f"{text}; slowest rank {longest.rank}, {duration(longest.duration_ns)}"
    return text
