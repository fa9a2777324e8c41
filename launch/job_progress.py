"""Shows the progress of the ranks while they record, from the step logs that they write anyway.

It costs the ranks nothing.

The progress is drawn in the last row of the terminal while other processes print to the same terminal. They know
nothing of that row, and may be in the middle of a line. Therefore the row is excluded from the scroll region, and the
cursor is moved back to where it was, which leaves the output of other processes intact; output to a pipe or file is
never touched. Each change is a single write, which the kernel does not interleave with others.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median_low

from distprof.contract.paths import PARTIAL_SUFFIX, STEP_LINES, rank_files
from distprof.recording.plan import StepPlan
from distprof.terminal import visible
from distprof.units import counted, duration

FEWEST_ROWS, FEWEST_COLUMNS = 4, 30
SAVE, RESTORE = "\x1b7", "\x1b8"
"""Save and restore the position and colour of the cursor."""
FAMILIES = ("xterm", "tmux", "screen", "rxvt", "alacritty", "foot", "linux", "vte", "konsole", "gnome", "wezterm", "st")
"""Families of TERM that support scroll regions. xterm-color, which notebooks set, is excluded."""
OTHERS = ("STY", "JPY_PARENT_PID", "CI")
"""Environment variables of GNU screen, which loses scrollback above a reserved row, of notebooks, and of CI logs."""
WHOLE = "\x1b[r"
"""Makes the scroll region the whole screen; moves the cursor."""
OFF_THE_LAST_ROW = "\x1bD\x1b[A"
"""Moves the cursor down and up again in its column; if it is in the last row, this scrolls all rows up."""


class StatusRow:
    """Draws a line in the last row of a terminal until it is cleared.

    Draws nothing if the terminal is too small, and while this process is in its background.
    """

    def __init__(self, terminal: int) -> None:
        """Takes the file descriptor of the terminal."""
        self._terminal = terminal
        self._drawn_at: os.terminal_size | None = None
        """Size of the terminal when the line was drawn; None if no line is shown."""

    def draw(self, text: str) -> None:
        """Draws a text, cut to the width of the terminal.

        Raises:
            OSError: The terminal is gone.
        """
        size = os.get_terminal_size(self._terminal)
        if size.lines < FEWEST_ROWS or size.columns < FEWEST_COLUMNS or not self._is_ours():
            self.clear()
            return
        # reserves the row every time, because the terminal may have been resized or reset
        self._write(drawn(visible(text), size))
        self._drawn_at = size

    def clear(self) -> None:
        """Removes the line, if there is one.

        Raises:
            OSError: The terminal is gone.
        """
        if self._drawn_at is None:
            return
        size = os.get_terminal_size(self._terminal)
        self._write(taken_away(size, before=self._drawn_at))
        self._drawn_at = None

    def _is_ours(self) -> bool:
        return os.tcgetpgrp(self._terminal) == os.getpgrp()

    def _write(self, text: str) -> None:
        os.write(self._terminal, text.encode("ascii", "replace"))


def drawn(text: str, size: os.terminal_size) -> str:
    """Returns the escape sequences that draw a text in the last row of a terminal, whatever the cursor position."""
    return (f"{SAVE}{WHOLE}{RESTORE}{OFF_THE_LAST_ROW}"
            f"{SAVE}\x1b[1;{size.lines - 1}r{_emptied(size)}{text[:size.columns - 1]}{RESTORE}")


def taken_away(size: os.terminal_size, *, before: os.terminal_size) -> str:
    """Returns the escape sequences that release the last row, and clear it if the terminal was not resized."""
    return f"{SAVE}{WHOLE}{_emptied(size) if size == before else ''}{RESTORE}"


def _emptied(size: os.terminal_size) -> str:
    return f"\x1b[{size.lines};1H\x1b[0m\x1b[2K"


def has_rows(terminal: int, environ: Mapping[str, str]) -> bool:
    """Returns whether a file is a terminal that supports a reserved row, judging by environment variables."""
    family = environ.get("TERM", "").partition("-")[0]
    return os.isatty(terminal) and family in FAMILIES and environ["TERM"] != "xterm-color" and not any(
        name in environ for name in OTHERS)


def never_stopped() -> None:
    """Blocks SIGTTOU in the calling thread, so that it can clear its line even if the process is in the background."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTOU})


EVERY_S = 1.0
SHARE = 0.02
"""Maximum fraction of a processor spent on reading step logs; with many ranks they are read less often."""
PATIENCE_S = 1.0
"""How long to wait at the end of the job for the line to be cleared, in seconds; the terminal may be stopped."""
LINE_BYTES = 4096
"""More than the length of a line of the step log."""
BEHIND = 2
"""A rank is shown as behind from this many steps; with one step, it may only not have written it yet."""
STANDS_OUT = 1.1
"""A step is called slow from this multiple of the median over ranks."""
STDERR = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class LastStep:
    """The last step in the log of a rank."""

    rank: int
    step: int
    """Step number, counted from 0."""
    name: str
    """Name of its pass."""
    duration_ns: int


@contextmanager
def progress_shown(directory: Path, plan: StepPlan) -> Iterator[None]:
    """Shows the progress of the ranks that record to a run directory, if standard error is a suitable terminal."""
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
    """Returns the last step of each rank that is recording and has ended a step."""
    found = []
    for path in rank_files(directory, STEP_LINES, PARTIAL_SUFFIX):
        with suppress(OSError, ValueError, KeyError):  # the folder was renamed, or the line is not complete
            row = json.loads(_last_line(path))
            rank = int(path.parent.name.removeprefix("rank").removesuffix(PARTIAL_SUFFIX))
            found.append(LastStep(rank=rank, step=row["step"], name=row["pass"], duration_ns=row["duration_ns"]))
    return found


def _last_line(path: Path) -> bytes:
    with path.open("rb") as lines:
        lines.seek(max(os.fstat(lines.fileno()).st_size - LINE_BYTES, 0))
        return lines.read().rpartition(b"\n")[0].rpartition(b"\n")[2]


def progress_line(steps: list[LastStep], plan: StepPlan) -> str:
    """Returns text like `distprof: 9 of 32 steps recorded, trace pass; step 180.02 ms; slowest rank 2, 214.10 ms`."""
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
