"""How far the ranks of a job are, from the steps that they write down anyway; shown while they record.

Ranks do nothing for it, and wait for nobody.

The last row of a terminal, kept for a line of ours while other processes print to the same terminal. Whoever prints
knows nothing of that line, and may be in the middle of one of its own. So the row is taken out of the region that
scrolls, and the cursor is put back where it was: what others print stays what it is, and so does what they write to a
pipe or a file, which no byte of ours ever reaches. Each change is one write, which the kernel does not mix with others.
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

from distprof.contract.paths import PARTIAL_SUFFIX, STEP_LINES
from distprof.recording.plan import StepPlan
from distprof.terminal import visible
from distprof.units import counted, duration

FEWEST_ROWS, FEWEST_COLUMNS = 4, 30
SAVE, RESTORE = "\x1b7", "\x1b8"
"""The cursor: where it is, and its colour."""
FAMILIES = ("xterm", "tmux", "screen", "rxvt", "alacritty", "foot", "linux", "vte", "konsole", "gnome", "wezterm", "st")
"""Terminals whose rows can be told apart. xterm-color is a notebook."""
OTHERS = ("STY", "JPY_PARENT_PID", "CI")
"""Variables of GNU screen, which forgets what scrolls away above a row that is kept, of notebooks, and of logs."""
WHOLE = "\x1b[r"
"""All rows scroll. This moves the cursor."""
OFF_THE_LAST_ROW = "\x1bD\x1b[A"
"""Down and up again, in its column: on the last row that scrolls all others up, elsewhere it changes nothing."""


class StatusRow:
    """Draws a line, anew whenever it is told, until it is cleared.

    Nothing is drawn where the terminal is small or of another kind, and while this process is in its background.
    """

    def __init__(self, terminal: int) -> None:
        """Takes an open file, which need not be a terminal."""
        self._terminal = terminal
        self._drawn_at: os.terminal_size | None = None
        """Its size when the line was drawn; None where no line is there."""

    def draw(self, text: str) -> None:
        """Puts a text there, cut where it is too long.

        Raises:
            OSError: The terminal is gone.
        """
        size = os.get_terminal_size(self._terminal)
        if size.lines < FEWEST_ROWS or size.columns < FEWEST_COLUMNS or not self._is_ours():
            self.clear()
            return
        # anew each time: the terminal may have another size now, or somebody has reset it
        self._write(drawn(visible(text), size))
        self._drawn_at = size

    def clear(self) -> None:
        """Takes the line away, where there is one.

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
    """What puts a text into the last row of a terminal, whatever is there and wherever its cursor is."""
    return (f"{SAVE}{WHOLE}{RESTORE}{OFF_THE_LAST_ROW}"
            f"{SAVE}\x1b[1;{size.lines - 1}r{_emptied(size)}{text[:size.columns - 1]}{RESTORE}")


def taken_away(size: os.terminal_size, *, before: os.terminal_size) -> str:
    """What takes it away; with another size than before, something else may be in that row."""
    return f"{SAVE}{WHOLE}{_emptied(size) if size == before else ''}{RESTORE}"


def _emptied(size: os.terminal_size) -> str:
    return f"\x1b[{size.lines};1H\x1b[0m\x1b[2K"


def has_rows(terminal: int, environ: Mapping[str, str]) -> bool:
    """Whether a file is a terminal that can keep a row, as far as its environment shows."""
    family = environ.get("TERM", "").partition("-")[0]
    return os.isatty(terminal) and family in FAMILIES and environ["TERM"] != "xterm-color" and not any(
        name in environ for name in OTHERS)


def never_stopped() -> None:
    """The thread that calls this may write to a terminal from the background, to take its line away."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTOU})


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
