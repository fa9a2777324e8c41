"""The types of `run.json`, and the command of a job in it without what only says how it is recorded.

Fields with a default may be missing in a file: older versions did not write them all, and other tools need not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated

import msgspec

from distprof.contract.paths import FORMAT
from distprof.hidden import without_secrets

MOST_RANKS = 1 << 20
"""Numbers from here on are no ranks: damage makes such."""


class RanksDirectory(msgspec.Struct, frozen=True, kw_only=True):
    """A run directory of a job, which hosts without a common folder have one each of."""

    identity: str
    """`directory_id` of its run.json: equal paths on two hosts may be one directory, or two."""
    path: str
    """Absolute, as those hosts see it."""
    hosts: list[str]
    ranks: list[int]


class RunJson(msgspec.Struct, frozen=True, kw_only=True):
    """What `run.json` holds: what was launched, and how that ended."""

    format: int = FORMAT
    run_id: str
    argv: list[str] = []
    """Without secrets (`distprof/hidden.py`); empty where the user wants none of it stored."""
    working_directory: str = ""
    steps: str = ""
    """The plan, like wait=2,count=1,time=3,trace=6,arrivals=20; without what depends on a number of ranks that was not
    known."""
    world_size: Annotated[int, msgspec.Meta(ge=1, le=MOST_RANKS)] | None = None
    """None where torchrun decided it at run time."""
    given_sizes: dict[str, int] = {}
    """Model-parallel sizes that the user gave."""
    versions: dict[str, str] = {}
    git_commit: str = ""
    """What was checked out where the script lies; '' where git has no part in it. The files may differ from it."""
    hosts: list[str] = []
    start_ns: int = 0
    """Since the epoch, clock of the host that launched."""
    end_ns: int | None = None
    """None while the job runs, and where no launcher saw its end; likewise `exit_code`."""
    exit_code: int | None = None
    interrupted: bool = False
    """The user ended the job (Ctrl-C) after all its ranks had recorded everything."""
    failed_rank: int | None = None
    """The rank whose process failed first; None where none did, or it is not known."""
    failed_with: int | None = None
    """Its exit code; below 0: the signal that ended it."""
    failed_ns: int | None = None
    """When, since the epoch, clock of its host."""
    launch_key: str = ""
    """Equal on all launchers of a job, and in all its attempts; '' where they have nothing in common."""
    directory_id: str = ""
    """Random, of this directory: that of other hosts of the same run has another one."""
    first_step: int = 0
    """The step of the job that is step 0 here. Above 0 in what was recorded later in a job, see `windows/`."""
    directories: list[RanksDirectory] = []
    """Where all ranks of the job are recorded, as far as they told each other."""


RECORDING_FLAGS = {"--out": True, "--steps": True, "--topics": True, "--ranks": True, "--max-rank-size": True,
                   "--execution-trace": False, "--step-every": True, "--config": True, "--no-merge": False,
                   "--no-progress": False, "--no-argv": False, "--passes": True, "--watch": True,
                   "--watch-bytes": True, "--metrics": True, "--on-finding": True, "--otlp": True, "--log-to": True,
                   "--window-every": True, "--hosts": True, "--hosts-cert": True, "--hosts-key": True,
                   "--force": False, "--debug": False}
"""Flags of `distprof run` that the job itself does not see, and whether a value follows them."""
LAUNCHER = "distprof"


def job_command(argv: Sequence[str]) -> list[str]:
    """The script with its arguments, and flags of torchrun in front of it.

    Args:
        argv: `argv` of run.json: of `distprof run`, of `distprof demo`, or of a script that was started otherwise.
    """
    words = without_secrets(argv)  # older versions stored them
    if len(words) > 1 and words[1] == "run" and LAUNCHER in words[0]:
        words = words[2:]
        script = next((place for place, word in enumerate(words) if word == "-m" or word.endswith(".py")), len(words))
        return [*_of_torchrun(words[:script]), *words[script:]]
    if words[1:2] == ["demo"] and LAUNCHER in words[0]:
        return [LAUNCHER, "demo", *_of_torchrun(words[2:])]
    return words


def _of_torchrun(words: Sequence[str]) -> Iterator[str]:
    follows = False
    for word in words:
        if follows:
            follows = False
            continue
        flag, has_value, _ = word.partition("=")
        if flag in RECORDING_FLAGS:
            follows = RECORDING_FLAGS[flag] and not has_value
        else:
            yield word
