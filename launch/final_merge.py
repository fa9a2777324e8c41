"""The merge at the end of `distprof run`, in its own process, so that its failure cannot affect the job."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from distprof.ending import ended_by_signals
from distprof.errors import Ended
from distprof.terminal import say

MERGE = "import sys; sys.path[:] = sys.argv.pop(1).split('\\n'); from distprof.launch.cli import main; main()"
"""Imports from the same path as this process; `-m` would also import from the working directory."""


def final_merge(directory: Path) -> list[str] | None:
    """Merges a run.

    Returns:
        The lines of the answer; None if the merge failed.
    """
    command = [sys.executable, "-c", MERGE, "\n".join(sys.path), "merge", "--answer", str(directory)]  # or its URL
    environ = {name: value for name, value in os.environ.items() if name != "DISTPROF_OUT"}
    try:
        with ended_by_signals():
            code, answer = _run(command, environ)
    except Ended:
        return None
    except OSError as error:
        say(f"cannot start the merge: {error.strerror}")
        return None
    if code:
        say(f"the merge ended with exit code {code}" if code > 0 else f"the merge was ended by signal {-code}")
    return None if code else answer.splitlines()


def _run(command: list[str], environ: dict[str, str]) -> tuple[int, str]:
    """Returns the exit code and standard output of the merge; it inherits standard error, for its progress bar.

    Raises:
        Ended: A signal ends this process; it has also ended the merge.
    """
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
                          errors="backslashreplace", env=environ) as merge:
        try:
            answer, _ = merge.communicate()
        except Ended:
            merge.terminate()  # it received the signal only if that came from a terminal
            raise
    return merge.returncode, answer
