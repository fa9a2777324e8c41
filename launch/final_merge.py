"""The merge at the end of `distprof run`, in a process of its own: whatever becomes of it, the job has ended well."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from distprof.ending import ended_by_signals
from distprof.errors import Ended
from distprof.terminal import say

MERGE = "import sys; sys.path[:] = sys.argv.pop(1).split('\\n'); from distprof.launch.cli import main; main()"
"""Imports what this process would import, and not what lies in the working directory, as `-m` does."""


def final_merge(directory: Path) -> list[str] | None:
    """Merges a run.

    Returns:
        The answer, line by line; None where there is no merge, which was said.
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
    """Its exit code and its standard output; standard error is ours, where it draws its progress.

    Raises:
        Ended: A signal ends this process; the merge has ended, too.
    """
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
                          errors="backslashreplace", env=environ) as merge:
        try:
            answer, _ = merge.communicate()
        except Ended:
            merge.terminate()  # a terminal has sent it the signal already, others have not
            raise
    return merge.returncode, answer
