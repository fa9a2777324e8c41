"""The cost of watching in the training process: programs with the same steps, each with a different watch, take turns.

Each is started as its users start it, and runs a block of steps while the others wait, so that load on the machine
affects all of them.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from statistics import fmean

from measuring.benchmark import DISTPROF
from measuring.processes import Failed
from measuring.watched_steps import BLOCK

PROGRAM = Path(__file__).parents[1] / "programs" / "steps_in_turn.py"
NOTHING, OURS, TRACEML = "nothing", "distprof run", "TraceML"
PATIENCE_S = 300.0
"""Timeout in seconds for the start of a program, and for a block."""
HEAD = ("step", "watched by", "steps", "processor time per step", "more than nothing", "of a step", "memory")


@dataclass(slots=True, kw_only=True)
class Costs:
    """Costs of a program."""

    cpu_s: list[float] = field(default_factory=list)
    """Processor seconds per step, one value per block."""
    rss_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """Costs of all programs, for one step duration."""

    step_ms: float
    of: dict[str, Costs]

    def more_ms(self, name: str) -> list[float]:
        """Returns the extra processor time per step compared with no watch, in ms, one value per turn, sorted."""
        pairs = zip(self.of[name].cpu_s, self.of[NOTHING].cpu_s, strict=True)
        return sorted((on - off) * 1e3 for on, off in pairs)

    def rows(self) -> Iterator[list[str]]:
        """Yields the rows of a table with `HEAD`."""
        for name, costs in self.of.items():
            more = self.more_ms(name)
            quarter = len(more) // 4
            yield [f"{self.step_ms:g} ms", name, str(len(more) * BLOCK), f"{fmean(costs.cpu_s) * 1e3:.3f} ms", *(
                ["", ""] if name == NOTHING else [
                    f"{fmean(more):.3f} ms ({more[quarter]:.3f} .. {more[-1 - quarter]:.3f})",
                    f"{fmean(more) / self.step_ms * 100:.2f} %"]),
                f"{(costs.rss_bytes - self.of[NOTHING].rss_bytes) / 1e6:+.1f} MB" if name != NOTHING else
                f"{costs.rss_bytes / 1e6:.1f} MB"]


def has_traceml() -> bool:
    """Returns whether `traceml-ai` is installed."""
    return find_spec("traceml_ai") is not None


def beside(folder: Path, step_ms: float, num_steps: int) -> Beside:
    """Runs steps with each program.

    Args:
        folder: Folder for the files of the programs.
        step_ms: Duration of a step.
        num_steps: Number of steps of each program, without the warm-up block.

    Raises:
        Failed: A program did not start, or ended early.
    """
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(PATIENCE_S)
        port = server.getsockname()[1]
        with started(_commands(folder, port, step_ms), folder) as names, _connected(server, names) as lines:
            return _in_turns(lines, step_ms, max(num_steps // BLOCK, 1))


def _in_turns(lines: dict[str, Lines], step_ms: float, num_turns: int) -> Beside:
    found = Beside(step_ms=step_ms, of={name: Costs() for name in lines})
    for turn in range(num_turns + 1):  # the first one is the warm-up
        for name, asked in lines.items():
            cpu_s, rss = asked.block()
            if turn:
                found.of[name].cpu_s.append(cpu_s)
                found.of[name].rss_bytes = rss
    return found


class Lines:
    """The connection to a program."""

    def __init__(self, connection: socket.socket) -> None:
        """Reads the name of the program."""
        connection.settimeout(PATIENCE_S)
        self._file = connection.makefile("rw")
        self.name = self._file.readline().rstrip()

    def block(self) -> tuple[float, int]:
        """Runs a block; returns processor seconds per step, and memory in bytes."""
        print(BLOCK, file=self._file, flush=True)
        words = self._file.readline().split()
        if len(words) != 2:
            raise Failed(f"{self.name} ended")
        return float(words[0]), int(words[1])

    def close(self) -> None:
        """Closes the connection, which ends the program."""
        with suppress(OSError):
            self._file.close()


@contextmanager
def _connected(server: socket.socket, names: Sequence[str]) -> Iterator[dict[str, Lines]]:
    connections, found = list[socket.socket](), dict[str, Lines]()
    try:
        while len(found) < len(names):
            try:
                connections.append(server.accept()[0])
            except TimeoutError as error:
                raise Failed(f"did not begin: {', '.join(sorted({*names} - found.keys()))}") from error
            lines = Lines(connections[-1])
            found[lines.name] = lines
        yield {name: found[name] for name in names}
    finally:
        for lines in found.values():
            lines.close()
        for connection in connections:
            connection.close()


def _commands(folder: Path, port: int, step_ms: float) -> dict[str, list[str]]:
    def words(name: str) -> list[str]:
        return [str(port), name, str(step_ms)]

    commands = {
        NOTHING: [sys.executable, str(PROGRAM), *words(NOTHING)],
        OURS: [*DISTPROF, "run", "--nproc-per-node", "1", "--passes", "off", "--no-merge", "--no-progress", "--out",
               str(folder / f"run-{step_ms:g}"), str(PROGRAM), *words(OURS)]}
    if has_traceml():
        commands[TRACEML] = [
            sys.executable, "-c", "from traceml_ai.launcher.cli import main; main()", "run", "--mode", "summary",
            "--logs-dir", str(folder / "traceml"), "--aggregator-port", str(free_port()),
            "--master-port", str(free_port()), str(PROGRAM), "--args", *words(TRACEML)]
    return commands


def free_port() -> int:
    """Returns a port that is free."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@contextmanager
def started(commands: dict[str, list[str]], folder: Path) -> Iterator[Sequence[str]]:
    """Runs all programs in their own sessions, which are killed at the end; yields their names."""
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    running = []
    try:
        for command in commands.values():
            running.append(subprocess.Popen(command, env=environ, cwd=folder, stdin=subprocess.DEVNULL,
                                            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                            start_new_session=True))
        yield [*commands]
    finally:
        for one in running:
            with suppress(subprocess.TimeoutExpired):
                one.wait(60)
            with suppress(OSError):
                os.killpg(one.pid, signal.SIGKILL)
            one.wait()
