"""How the commands of this package end: an error is one line on stderr, and the exit code says which."""

from __future__ import annotations

import argparse
import signal
from collections.abc import Callable
from typing import NoReturn

from distprof.errors import DistprofError, Ended, UsageError
from distprof.terminal import say


class Parser(argparse.ArgumentParser):
    """Raises what it would print with its usage."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(message, hint=f"python -m {self.prog} -h lists the flags")


def exit_code(run: Callable[[], object]) -> int:
    """Runs a command; returns 0, or what the error ends a process with."""
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
