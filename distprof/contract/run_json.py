"""The types of `run.json`, and the command of the job in it, without flags of the recording.

Fields with a default may be missing in a file: older versions did not write all of them, and other tools need not.
"""

from __future__ import annotations

from collections.abc import Sequence
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
MODULE = ("-m", "--module")
TORCHRUN_SWITCHES = frozenset((
    *MODULE, "-h", "--help", "--standalone", "--no-python", "--no_python", "--run-path", "--run_path",
    "--virtual-local-rank", "--virtual_local_rank"))
"""Flags of torchrun that no value follows; one follows all others."""
LAUNCHER = "distprof"


def job_command(argv: Sequence[str]) -> list[str]:
    """Returns the script with its arguments, preceded by flags of torchrun.

    Args:
        argv: `argv` of run.json: the command line of `distprof run`, of `distprof demo`, or of a script.
    """
    flags, script = _parts(argv)
    return [*flags, *script]


def script_command(argv: Sequence[str]) -> list[str]:
    """Returns the script with its arguments, or `-m` and a module with its arguments, like `job_command`."""
    return _parts(argv)[1]


def _parts(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Returns the flags of torchrun, and the script."""
    words = without_secrets(argv)  # older versions stored secrets
    if len(words) > 1 and words[1] == "run" and LAUNCHER in words[0]:
        return _of_torchrun(words[2:])
    if words[1:2] == ["demo"] and LAUNCHER in words[0]:
        flags, others = _of_torchrun(words[2:])
        return [], [LAUNCHER, "demo", *flags, *others]
    return [], words


def _of_torchrun(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Divides the arguments of `distprof run` as its parser does, without flags of the recording."""
    flags, module, place = list[str](), list[str](), 0
    while place < len(words) and words[place].startswith("-") and words[place] != "--":
        begin, (word, has_value, _) = place, words[place].partition("=")
        name = _unabbreviated(word)
        is_joined = bool(has_value) or (not word.startswith("--") and len(word) > 2)  # --role=a, -r3
        place += 1 if is_joined or name in TORCHRUN_SWITCHES or not RECORDING_FLAGS.get(name, True) else 2
        if name in MODULE:
            module = [word]
        elif name not in RECORDING_FLAGS:
            flags += words[begin:place]
    return flags, [*module, *words[place + (words[place:place + 1] == ["--"]):]]


def _unabbreviated(flag: str) -> str:
    """Returns the flag that argparse takes this for, if it is known here."""
    known = (*RECORDING_FLAGS, *TORCHRUN_SWITCHES)
    return flag if flag in known or not flag.startswith("--") else next(
        (name for name in known if name.startswith(flag)), flag)
