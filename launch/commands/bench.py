"""`distprof bench`: records two ways to run a job in turn, and compares them."""

from __future__ import annotations

import shlex
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import click

from distprof.errors import UsageError
from distprof.needs import expect_linux, import_torch
from distprof.terminal import say, show

FEWEST = 2
"""Smallest number of rounds: with two runs per side, the noise between runs of one side is measured."""


class TwoJobs(click.Command):
    """A command that accepts quoted arguments that begin with a flag of `distprof run`, such as '--nnodes 2 a.py'."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ours = {name for option in self.get_params(ctx) for name in option.opts}
        return super().parse_args(ctx, [
            f" {word}" if word.startswith("-") and " " in word and word.partition("=")[0] not in ours else word
            for word in args])


@click.command(cls=TwoJobs)
@click.argument("base", metavar="A")
@click.argument("new", metavar="B")
@click.option("--rounds", default=3, type=click.IntRange(min=FEWEST), metavar="N", show_default=True,
              help="How many times each is recorded.")
@click.option("--out", default=None, type=click.Path(path_type=Path), metavar="DIR",
              help="Folder of the run directories base1, new1, ...  [default: runs/bench-<time>]")
@click.option("--fail-if", multiple=True, metavar="LIMIT",
              help="Exit with 1 if a change exceeds a limit; see distprof diff.")
def bench(base: str, new: str, *, rounds: int, out: Path | None, fail_if: tuple[str, ...]) -> None:
    """Record two ways to run a job in turn, and compare them.

    A and B are the arguments of `distprof run`, each in quotes. Because they take turns, a machine that slows down
    makes neither of them look slower. distprof diff can compare the runs again later.

    \b
    distprof bench '--nproc-per-node 2 train.py' '--nproc-per-node 2 train.py --compile' --rounds 3
    """
    expect_linux("record")
    import_torch("record")
    folder = out if out is not None else Path("runs") / f"bench-{datetime.now():%Y%m%d-%H%M%S}"
    sides = {"base": _words("A", base), "new": _words("B", new)}
    for name, number in in_turns(rounds):
        run = folder / f"{name}{number}"
        say(f"round {number} of {rounds}: {name}")
        code = subprocess.call([sys.executable, "-m", "distprof", "run", "--no-merge", "--out", str(run), *sides[name]])
        if code:
            say(f"{name} ended with exit code {code}: nothing is compared")
            sys.exit(code if code > 0 else 128 - code)
    from distprof.launch.commands.diff import compared

    runs = {name: [folder / f"{name}{number}" for number in range(1, rounds + 1)] for name in sides}
    answer = compared(runs["base"], runs["new"], fail_if=fail_if)
    show(answer.text)
    if answer.error is not None:
        raise answer.error


def in_turns(rounds: int) -> list[tuple[str, int]]:
    """Returns the side and round of each run in order; the side that runs first alternates between rounds."""
    order = (("base", "new"), ("new", "base"))
    return [(name, number) for number in range(1, rounds + 1) for name in order[(number - 1) % 2]]


def _words(which: str, text: str) -> list[str]:
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UsageError(f"cannot split {which}, {text.strip()!r}, into arguments: {error}",
                         hint="put what follows `distprof run` in one pair of quotes") from error
    if "--out" in words or any(word.startswith("--out=") for word in words):
        raise UsageError(f"{which} must not have --out: {text.strip()!r}",
                         hint="distprof bench --out DIR chooses the folder of all runs")
    return words
