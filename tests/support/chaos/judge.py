"""What has to hold when a job is over, whatever came over it."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import polars as pl

from support.chaos.job import ENDS, NUM_STEPS, ChaosJob
from support.jobs import ROOT, called

PREFIX = re.compile(r"\[rank\d+\]: ?")
FRAME = re.compile(r'\s*File "(.*?)", line \d+')
OURS = (f"{ROOT / 'distprof'}/", f"{ROOT / 'launch'}/", f"{ROOT / 'merge'}/")


def assert_no_error_of_ours(told: str) -> None:
    """No traceback ends in our code, no thread of ours died, and each line of ours is one."""
    innermost = ""
    for line in (PREFIX.sub("", line, count=1) for line in told.splitlines()):
        if found := FRAME.match(line):
            innermost = found[1]
        elif innermost and line.strip() and not line.startswith(" "):
            ours = innermost.startswith(OURS) and "KeyboardInterrupt" not in line  # that comes wherever Python is
            assert not ours, told
            innermost = ""
    assert "Exception in thread distprof" not in told, told
    assert "Exception ignored in" not in told or "distprof" not in told.split("Exception ignored in")[1][:500], told


class Left:
    """What a job left, as the commands show it."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.merge, self.stats, self.comms = [called(*words, out) for words in (
            ("merge",), ("stats", "--json"), ("comms", "--json"))]
        for done in (self.merge, self.stats, self.comms):
            assert done.returncode in (0, 1), done
            assert "Traceback" not in done.stderr and "unexpected" not in done.stderr, done.stderr
            assert len(done.stderr.splitlines()) == done.returncode, "one line, and only where it fails\n" + done.stderr
        self.readable = self.merge.returncode == 0
        self.summary = json.loads(self.stats.stdout) if self.stats.returncode == 0 else {"ranks": [], "problems": []}
        assert self.readable or "no readable rank folders" in self.merge.stderr, self.merge.stderr
        assert self.readable == (self.stats.returncode == 0), (self.merge, self.stats)

    def named(self, rank: int) -> bool:
        """Whether any problem names the rank, by its number or by its folder."""
        return any(one.get("rank") == rank or rank in one.get("ranks", ())
                   or str(one.get("file", "")).startswith(f"rank{rank:05d}") for one in self.summary["problems"])

    def table(self, rank: int, name: str) -> pl.DataFrame | None:
        """A table that the rank wrote."""
        path = next(self.out.glob(f"rank{rank:05d}*"), Path()) / f"{name}.parquet"
        return pl.read_parquet(path) if path.exists() else None

    def status(self, rank: int) -> dict:
        """Its rank.json."""
        return json.loads((next(self.out.glob(f"rank{rank:05d}*")) / "rank.json").read_text())

    def assert_passes_are_there(self, rank: int, steps: int) -> None:
        """All that a rank which finished so many steps had written by then can be read."""
        assert rank in self.summary["ranks"], f"rank {rank} had finished {steps} steps\n{self.merge}"
        modules = self.table(rank, "modules")
        if steps >= ENDS["count"]:
            assert modules is not None and modules["fwd_flops"].max() > 0, f"rank {rank}: {steps} steps"
        if steps >= ENDS["time"]:
            assert modules is not None and modules["fwd_time_ns"].max() > 0, f"rank {rank}: {steps} steps"
        if steps >= ENDS["trace"]:
            collectives, table = self.table(rank, "collectives"), self.table(rank, "steps")
            assert collectives is not None and collectives.height and table is not None and table.height >= 10, rank
            assert rank in json.loads((self.out / "merged" / "summary.json").read_text())["ranks"]

    def assert_losses_are_named(self, rank: int, steps: int) -> None:
        """A rank that has not all of the steps it could have recorded is in the problems."""
        if not self.readable or self.named(rank):
            return
        found = self.status(rank)
        assert found["status"] == "complete", f"rank {rank} is {found['status']}, and nothing says so\n{self.merge}"
        # it may be told to end in the arrivals pass: what is there is complete then
        assert found["num_steps"] >= min(steps, ENDS["trace"]), f"rank {rank}: {steps} steps\n{found}"
        assert found["num_steps"] == found["files"]["steps.parquet"], f"rank {rank}: {found}"
        for name, rows in found["files"].items():
            if name.endswith(".parquet"):
                table = self.table(rank, name.removesuffix(".parquet"))
                assert table is not None and table.height == rows, f"rank {rank}: {name}"


def copy_of(job: ChaosJob, folder: Path) -> Path | None:
    """The run where there is room to merge it; None where nothing is left of it."""
    return Path(shutil.copytree(job.out, folder / "copy")) if job.out.exists() else None


def assert_complete(left: Left, ranks: int) -> None:
    """Nothing is missing at all."""
    assert left.summary["ranks"] == list(range(ranks)), left.merge
    serious = [one for one in left.summary["problems"] if not one["code"].startswith(("clocks", "wall_clock"))]
    assert serious == []
    for rank in range(ranks):
        found = left.status(rank)
        assert (found["status"], found["num_steps"]) == ("complete", ENDS["arrivals"]), found


def trained_to_the_end(job: ChaosJob) -> bool:
    """Whether all ranks came to their end, in the last attempt."""
    return len(job.trained()) == job.ranks and all(steps == NUM_STEPS for steps in job.progress().values())
