"""How the commands of this package end: errors are one line on stderr, and have their own exit codes."""

from __future__ import annotations

import argparse
import signal
from collections.abc import Callable
from typing import NoReturn

from distprof.errors import DistprofError, Ended, UsageError
from distprof.terminal import say


class Parser(argparse.ArgumentParser):
    """A parser that raises errors instead of printing them with the usage."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(message, hint=f"python -m {self.prog} -h lists the flags")


def exit_code(run: Callable[[], object]) -> int:
    """Runs a command; returns 0, or the exit code of its error."""
    try:
        run()
    except DistprofError as error:
        say(str(error))
        return error.exit_code
    except Ended as end:
        return end.exit_code
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    return 0
