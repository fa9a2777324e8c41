"""A job of a few ranks that train together, while a trouble of some kind comes over it at some moment."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from support import forked
from support.jobs import PATIENCE_S, SCRIPTS, clean_environ

PLAN = "wait=1,count=2,time=3,trace=4,arrivals=6"
ENDS = {"wait": 1, "count": 3, "time": 6, "trace": 10, "arrivals": 16}
"""Pass -> steps after which it is over."""
NUM_STEPS = 24


class ChaosJob:
    """One job. It is started by `distprof run`, or by torchrun and records itself, or not at all."""

    def __init__(self, folder: Path, *, ranks: int, launcher: str, restarts: int = 0, **environ: str) -> None:
        """Starts it.

        Args:
            folder: For the run and for what the ranks note about themselves.
            ranks: How many.
            launcher: "run", "torchrun", or "alone": by torchrun, without distprof.
            restarts: How often torchrun may restart the ranks.
            **environ: Added to its environment.
        """
        self.out, self.marks, self.ranks, self.launcher = folder / "disk" / "run", folder / "marks", ranks, launcher
        for path in (self.out.parent, self.marks):
            path.mkdir(parents=True, exist_ok=True)
        start = ["distprof", "run", "--no-merge", "--out", self.out, "--steps", PLAN] if launcher == "run" else [
            "torch.distributed.run", "--standalone"]
        script = [SCRIPTS / "patient.py"] if environ.get("CHAOS_HANDLER") == "before" else []
        by_hand = [PLAN, self.out] if launcher == "torchrun" else []
        self._log = (folder / "stderr").open("w+", errors="replace")  # a pipe would be full at some time
        self.process = forked.popen(
            [sys.executable, "-m", *start, "--nproc-per-node", str(ranks), "--max-restarts", str(restarts),
             *script, SCRIPTS / "chaos.py", self.marks, str(NUM_STEPS), *by_hand],
            env=clean_environ() | environ, stdout=subprocess.DEVNULL, stderr=self._log, text=True)
        self.began = time.monotonic()

    def attempt(self) -> int:
        """The last one that a rank is in."""
        return max((int(path.name.split(".")[1]) for path in self.marks.iterdir()), default=0)

    def progress(self) -> dict[int, int]:
        """Rank -> steps that it finished in the last attempt; ranks that have come to the script."""
        return {rank: max(len(lines) - 1, 0) for rank, lines in self._noted().items()}

    def pids(self) -> dict[int, int]:
        """Rank -> process id, of those ranks."""
        return {rank: int(lines[0]) for rank, lines in self._noted().items() if lines}

    def _noted(self) -> dict[int, list[str]]:
        attempt, found = self.attempt(), {}
        for rank in range(self.ranks):
            path = self.marks / f"{rank}.{attempt}"
            if path.exists():
                found[rank] = path.read_text().splitlines()
        return found

    def trained(self) -> list[str]:
        """What each rank that came to its end has trained, in the last attempt."""
        attempt = self.attempt()
        return [path.read_text() for rank in range(self.ranks)
                if (path := self.marks / f"{rank}.{attempt}.trained").exists()]

    def wait_for_step(self, step: int) -> None:
        """Until all ranks have finished that many steps (0: have come to the script), or the job is over."""
        deadline = time.monotonic() + PATIENCE_S
        while self.process.poll() is None and time.monotonic() < deadline:
            seen = self.progress()
            if len(seen) == self.ranks and min(seen.values()) >= step:
                return
            time.sleep(0.005)

    def end(self, seconds: float) -> tuple[int, str]:
        """Its exit code and stderr; it has to end by itself in that time.

        Raises:
            AssertionError: It hangs. It is killed then.
        """
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            for pid in [*self.pids().values(), self.process.pid]:
                _kill(pid)
            raise AssertionError(f"the job hangs: nothing for {seconds} s\n{self._told()}") from None
        return self.process.returncode, self._told()

    def _told(self) -> str:
        self._log.seek(0)
        return self._log.read()

    def close(self) -> None:
        """Lets go of it."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self._log.close()


def _kill(pid: int) -> None:
    try:
        os.kill(pid, 9)
    except ProcessLookupError:
        pass
