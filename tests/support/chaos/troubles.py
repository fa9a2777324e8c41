"""What may go wrong in a job. Each trouble says what it needs before the job starts, and strikes once while it runs."""

from __future__ import annotations

import errno
import os
import random
import resource
import shutil
import signal
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

from support.chaos.disk import can_mount, make_read_only, small_disk
from support.chaos.job import ChaosJob

SURVIVED = frozenset({0})


@dataclass(kw_only=True)
class Trouble:
    """Something that goes wrong; this one is nothing."""

    folder: Path
    chance: random.Random
    library: Path
    """The one that makes files fail."""
    stack: ExitStack
    """What is to be undone after the job."""
    ends: frozenset[int] = SURVIVED
    """Exit codes that the job may have under `distprof run`."""
    loses: bool = True
    """Whether something that was recorded may be lost, which has to be said."""
    environ: dict[str, str] = field(default_factory=dict)
    restarts: int = 0
    details: str = ""

    def prepare(self) -> None:
        """Before the job starts."""

    def strike(self, job: ChaosJob) -> None:
        """While it runs."""

    def heal(self, job: ChaosJob) -> None:
        """After it ended: what is there can be read."""

    def keeps(self, rank: int) -> bool:
        """Whether what a rank had written when the trouble struck has to be there."""
        return True

    def one_rank(self, job: ChaosJob) -> int:
        """A process of a rank; there is one, as soon as a rank has come to the script."""
        job.wait_for_step(0)
        rank, pid = self.chance.choice(sorted(job.pids().items()))
        self.details += f" rank {rank}"
        return pid

    def send(self, pid: int, number: signal.Signals) -> None:
        self.details += f" {number.name}"
        with suppress(ProcessLookupError):
            os.kill(pid, number)


class RankKilled(Trouble):
    """A rank is gone at once; the others notice that their connection is, at any of their calls."""

    def prepare(self) -> None:
        self.ends = frozenset({137, 1, 134})

    def strike(self, job: ChaosJob) -> None:
        self.send(self.one_rank(job), signal.SIGKILL)


class RankTerminated(Trouble):
    def prepare(self) -> None:
        self.ends = frozenset({143, 1, 134})

    def strike(self, job: ChaosJob) -> None:
        self.send(self.one_rank(job), signal.SIGTERM)


class LauncherTerminated(Trouble):
    def prepare(self) -> None:
        self.ends = frozenset({143, -15})

    def strike(self, job: ChaosJob) -> None:
        self.send(job.process.pid, signal.SIGTERM)


class LauncherInterrupted(Trouble):
    """As by Ctrl-C, which the ranks do not get from the terminal here."""

    def prepare(self) -> None:
        self.ends = frozenset({130, -2})

    def strike(self, job: ChaosJob) -> None:
        self.send(job.process.pid, signal.SIGINT)


class RankAsked(Trouble):
    """The script handles SIGTERM itself, and goes on."""

    def prepare(self) -> None:
        when = self.chance.choice(["before", "after"])
        self.details += f" handler from {when} torch"
        self.environ = {"CHAOS_HANDLER": when}

    def strike(self, job: ChaosJob) -> None:
        self.send(self.one_rank(job), signal.SIGTERM)


class RankRestarted(Trouble):
    """torchrun starts all ranks anew."""

    def prepare(self) -> None:
        self.loses, self.restarts = False, 1
        # ranks that use the store of the launcher hang when they are started anew (torch 2.13, without distprof too)
        self.environ = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}

    def strike(self, job: ChaosJob) -> None:
        self.send(self.one_rank(job), signal.SIGKILL)


class RankStopped(Trouble):
    """It stands still for 5 s and goes on."""

    def prepare(self) -> None:
        self.loses = False

    def strike(self, job: ChaosJob) -> None:
        pid = self.one_rank(job)
        self.send(pid, signal.SIGSTOP)
        time.sleep(5)
        self.send(pid, signal.SIGCONT)


class FilesFail(Trouble):
    """Writes fail: all from now on, some of them, or for a while."""

    def prepare(self) -> None:
        self.flag = self.folder / "flag"
        self.environ = {"LD_PRELOAD": str(self.library), "CHAOS_FAILS": str(self.flag),
                        "CHAOS_UNDER": f"{self.folder / 'disk'}/"}

    def strike(self, job: ChaosJob) -> None:
        number = self.chance.choice([errno.ENOSPC, errno.EIO, errno.EROFS, errno.EDQUOT, errno.ESTALE, errno.EACCES])
        between, seconds = self.chance.choice([0, 0, 1, 3, 7, 20]), self.chance.choice([None, None, 0.05, 0.5])
        self.details += f" {errno.errorcode[number]}, {between} calls succeed between two, for {seconds} s"
        temporary = self.flag.with_suffix(".new")
        temporary.write_text(f"{number} {between}")
        temporary.replace(self.flag)
        if seconds is not None:
            time.sleep(seconds)
            self.flag.unlink()

    def heal(self, job: ChaosJob) -> None:
        self.flag.unlink(missing_ok=True)


class DiskFull(Trouble):
    """There is little room from the start."""

    def keeps(self, rank: int) -> bool:
        return False

    def prepare(self) -> None:
        size_kib = self.chance.choice([4, 16, 48, 96, 160, 256, 384, 512, 768])
        self.details += f" {size_kib} KiB"
        self.stack.enter_context(small_disk(self.folder / "disk", size_kib))


class DiskReadOnly(Trouble):
    """The file system is mounted anew, as after an error of the disk."""

    def prepare(self) -> None:
        self.stack.enter_context(small_disk(self.folder / "disk", 1 << 16))

    def strike(self, job: ChaosJob) -> None:
        deadline = time.monotonic() + 5
        while not make_read_only(self.folder / "disk") and time.monotonic() < deadline:
            time.sleep(0.001)

    def heal(self, job: ChaosJob) -> None:
        make_read_only(self.folder / "disk", read_only=False)


class FileSize(Trouble):
    """A rank may not write larger files than so."""

    def strike(self, job: ChaosJob) -> None:
        pid, size = self.one_rank(job), self.chance.choice([4096, 8192, 16384, 65536])
        self.details += f" {size} bytes"
        with suppress(ProcessLookupError):
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, size))


class FolderRemoved(Trouble):
    """The run, or the folder of a rank, is removed or put elsewhere."""

    def keeps(self, rank: int) -> bool:
        return " run " not in self.details and f"rank {rank} " not in self.details

    def strike(self, job: ChaosJob) -> None:
        found = [job.out, *sorted(job.out.glob("rank*"))]
        what, moved = self.chance.choice(found), self.chance.random() < 0.3
        self.details += " run itself" if what == job.out else f" rank {int(what.name[4:9])} of the run"
        self.details += " moved" if moved else " removed"
        with suppress(OSError):
            what.rename(self.folder / "elsewhere") if moved else shutil.rmtree(what)


class ClockStep(Trouble):
    """The wall clock is set while recording."""

    def prepare(self) -> None:
        self.loses = False
        self.clock = self.folder / "clock"
        self.environ = {"LD_PRELOAD": str(self.library), "CHAOS_CLOCK": str(self.clock)}

    def strike(self, job: ChaosJob) -> None:
        seconds = self.chance.choice([-3600, -3, -0.05, 0.05, 3, 3600])
        self.details += f" {seconds:+} s"
        temporary = self.clock.with_suffix(".new")
        temporary.write_text(str(int(seconds * 1e9)))
        temporary.replace(self.clock)


def kinds() -> list[type[Trouble]]:
    """Those that this machine can have."""
    found: list[type[Trouble]] = [RankKilled, RankTerminated, LauncherTerminated, LauncherInterrupted, RankAsked,
                                  RankRestarted, RankStopped, FilesFail, FilesFail, FileSize, FolderRemoved, ClockStep]
    return [*found, DiskFull, DiskReadOnly] if can_mount() else found
