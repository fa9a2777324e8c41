"""Measures the memory of distprof commands."""

from __future__ import annotations

import subprocess
import sys

from support.jobs import clean_environ

MEASURE = """
import os, subprocess, sys
process = subprocess.Popen([sys.executable, "-m", "distprof", *sys.argv[1:]], stdout=subprocess.DEVNULL)
_, status, usage = os.wait4(process.pid, 0)
process.returncode = os.waitstatus_to_exitcode(status)
print(usage.ru_maxrss)
sys.exit(process.returncode)
"""
"""Runs in a small process: ru_maxrss includes a fork of the process that starts the command, and pytest is large."""


def peak_bytes(*words: object) -> int:
    """Returns the peak resident set size of a command in bytes."""
    done = subprocess.run([sys.executable, "-c", MEASURE, *map(str, words)], stdout=subprocess.PIPE, check=True,
                          env=clean_environ())
    return int(done.stdout) * 1024
