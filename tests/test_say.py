"""A line of ours is lost where stderr does not take it, and nothing else happens."""

from __future__ import annotations

import subprocess
import sys

import pytest

from distprof.terminal import say

SPEAKS = "import sys; from distprof.terminal import say; say('one'); say('two')"


@pytest.mark.parametrize("where", ["2>/dev/full", "2>&-", "2>/dev/null"])
def test_a_stderr_that_takes_nothing_changes_no_exit_code(where):
    done = subprocess.run(["sh", "-c", f'exec "$0" -c "$1" {where}', sys.executable, SPEAKS], capture_output=True,
                          text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_each_message_is_one_line():
    done = subprocess.run([sys.executable, "-c", SPEAKS], capture_output=True, text=True, check=True)
    assert done.stderr == "distprof: one\ndistprof: two\n"


class Log:
    """What a script may put in the place of stderr."""

    def __init__(self) -> None:
        self.text = ""

    def write(self, text):
        self.text += text

    def flush(self):
        pass


def test_a_script_that_logs_in_its_own_way_gets_the_line(monkeypatch):
    log = Log()
    monkeypatch.setattr(sys, "stderr", log)
    say("here")
    assert log.text == "distprof: here\n"
