"""The types of `run.json`, and the command of the job in it, without flags of the recording.

Fields with a default may be missing in a file: older versions did not write all of them, and other tools need not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated

import msgspec

from distprof.contract.paths import FORMAT
from distprof.hidden import without_secrets

MOST_RANKS = 1 << 20
"""Larger numbers of ranks are taken for damage."""


class RanksDirectory(msgspec.Struct, frozen=True, kw_only=True):
    """One of the run directories of a job: hosts without a shared folder have one each."""

    identity: str
    """`directory_id` of its run.json: the same path on two hosts may be one directory or two."""
    path: str
    """Absolute path on these hosts."""
    hosts: list[str]
    ranks: list[int]


class RunJson(msgspec.Struct, frozen=True, kw_only=True):
    """Content of `run.json`: what was launched, and how it ended."""

    format: int = FORMAT
    run_id: str
    argv: list[str] = []
    """Command line without secrets (`distprof/hidden.py`); empty if the user does not want it stored."""
    working_directory: str = ""
    steps: str = ""
    """The plan, like wait=2,count=1,time=3,trace=6,arrivals=20, without passes whose steps depend on an unknown number
    of ranks."""
    world_size: Annotated[int, msgspec.Meta(ge=1, le=MOST_RANKS)] | None = None
    """None if torchrun decided it at run time."""
    given_sizes: dict[str, int] = {}
    """Model-parallel sizes that the user gave."""
    versions: dict[str, str] = {}
    git_commit: str = ""
    """Commit checked out in the folder of the script, or else in the working directory; '' if git does not manage it.
    The files may differ from it."""
    hosts: list[str] = []
    start_ns: int = 0
    """Since the epoch, by the clock of the launching host."""
    end_ns: int | None = None
    """None while the job runs and if no launcher saw its end, as is `exit_code`."""
    exit_code: int | None = None
    interrupted: bool = False
    """Whether the user ended the job (Ctrl-C) after all its ranks had recorded everything."""
    failed_rank: int | None = None
    """The rank whose process failed first; None if none failed, or if it is unknown."""
    failed_with: int | None = None
    """Its exit code; negative: minus the signal that ended it."""
    failed_ns: int | None = None
    """When it failed: since the epoch, by the clock of its host."""
    launch_key: str = ""
    """The same for all launchers of a job and all its attempts; '' if they share nothing that could identify the
    job."""
    directory_id: str = ""
    """Random id of this directory; directories of the same run on other hosts have other ids."""
    first_step: int = 0
    """The step of the job that is step 0 here; above 0 for recordings made later in a job, see `windows/`."""
    directories: list[RanksDirectory] = []
    """Run directories of all ranks of the job, as far as ranks told each other."""


RECORDING_FLAGS = {"--out": True, "--steps": True, "--topics": True, "--ranks": True, "--max-rank-size": True,
                   "--execution-trace": False, "--step-every": True, "--config": True, "--no-merge": False,
                   "--no-progress": False, "--no-argv": False, "--passes": True, "--watch": True,
                   "--watch-bytes": True, "--metrics": True, "--on-finding": True, "--otlp": True, "--log-to": True,
                   "--window-every": True, "--hosts": True, "--hosts-cert": True, "--hosts-key": True,
                   "--force": False, "--debug": False}
"""Flags of `distprof run` that the job itself does not see -> whether a value follows them."""
LAUNCHER = "distprof"


def job_command(argv: Sequence[str]) -> list[str]:
    """Returns the script with its arguments, preceded by flags of torchrun.

    Args:
        argv: `argv` of run.json: the command line of `distprof run`, of `distprof demo`, or of a script.
    """
    words = without_secrets(argv)  # older versions stored secrets
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
