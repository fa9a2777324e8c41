"""Runs distprof commands in one process, which does not need the packages of the tests.

    python commands_in_turn.py < commands.json

Reads a list of lists of words; prints exit code, standard output and standard error of each, as JSON.
"""

from __future__ import annotations

import io
import json
import sys
from contextlib import redirect_stderr, redirect_stdout


def run(words: list[str]) -> tuple[int, str, str]:
    from distprof.launch.cli import main

    out, err = io.StringIO(), io.StringIO()
    code = 0
    with redirect_stdout(out), redirect_stderr(err):
        try:
            main(words)
        except SystemExit as end:
            code = end.code or 0
    return code, out.getvalue(), err.getvalue()


if __name__ == "__main__":
    json.dump([run(words) for words in json.load(sys.stdin)], sys.stdout)
