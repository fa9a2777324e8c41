"""Does work of a rank in a helper process, so that its imports use neither memory nor threads of the script's process.

pyarrow permanently takes 36 MB and several threads. The helper is not a child of the script, which might wait for all
its children; it ends when told to, or with the script. If it cannot be started, or if the script has imported pyarrow
itself, the work is done in the script's process.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import pickle
import select
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from distprof.after_import import own_imports
from distprof.compiled.library import library
from distprof.own import lock
from distprof.system import OwnSocket

HEAVY = "pyarrow"
"""Package that the script's process should not import; if it has, the helper has no advantage."""
LOOK_S = 1.0
"""Interval in seconds at which the helper checks that the script's process still exists."""
BUSY_S = 1.0
"""Seconds a thread waits while another one, which may hang, uses the helper; then it does the work itself."""
LEFT_OUT = ("DISTPROF_OUT", "PYTHONSTARTUP", "PYTHONINSPECT", "PYTHONPROFILEIMPORTTIME")
"""Environment variables that the helper does not get."""
Request = tuple[str, Sequence[Any], Mapping[str, Any]]
"""Function as `module:name`, positional arguments, keyword arguments."""
SERVES = "import sys; sys.path.append(sys.argv[1]); from distprof.helper import serve; serve(int(sys.argv[2]))"


class Helper:
    """The handle of the helper process, which starts at the first call."""

    def __init__(self) -> None:
        self._lock = lock()
        self._connection: OwnSocket | None = None
        self._works = True

    def call(self, where: str, *args: Any, **kwargs: Any) -> Any:
        """Calls a function named `module:name` in the helper; arguments and result must be picklable.

        Raises:
            Exception: Whatever the function raises.
        """
        if not self._works or HEAVY in sys.modules or not self._lock.acquire(timeout=BUSY_S):
            return _call(where, args, kwargs)
        try:
            answer = self._asked((where, args, kwargs))
        finally:
            self._lock.release()
        if answer is None:
            return _call(where, args, kwargs)
        result, error = answer
        if error is not None:
            raise error
        return result

    def close(self) -> None:
        """Ends the helper process, if there is one."""
        if self._connection is not None and self._lock.acquire(timeout=BUSY_S):
            with suppress(OSError):
                if self._connection.is_there:
                    _send(self._connection, None)
            self._drop()
            self._lock.release()

    def forget(self) -> None:
        """Makes a forked child stop using the helper, which belongs to its parent."""
        self._lock, self._works = lock(), False
        self._drop()

    def _asked(self, request: Request) -> tuple[Any, Exception | None] | None:
        """Returns the answer of the helper; None if it cannot be started or has ended."""
        try:
            if self._connection is None:
                self._connection = OwnSocket(_started())
            elif not self._connection.is_there:
                raise OSError("the script closed it")
            _send(self._connection, request)
            found = _received(self._connection)
        except (OSError, EOFError, pickle.UnpicklingError):
            self._works = False
            self._drop()
            return None
        return found

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


def _received(connection: socket.socket) -> tuple[Any, Exception | None]:
    with connection.makefile("rb") as answers:
        found: tuple[Any, Exception | None] = pickle.load(answers)
    return found


def _send(connection: socket.socket, request: Request | None) -> None:
    # without MSG_NOSIGNAL, SIGPIPE could end the script if the helper is gone
    connection.sendall(pickle.dumps(request, pickle.HIGHEST_PROTOCOL), socket.MSG_NOSIGNAL)


def _started() -> socket.socket:
    """Returns a connection to a new helper process.

    Raises:
        OSError: It cannot be started.
    """
    compiled = library()
    if compiled is None or not sys.executable:
        raise OSError("there is no compiled library, or no Python to start")
    ours, theirs = socket.socketpair()
    with theirs:
        pid = compiled.start_apart(_texts(_command()), _texts(_environ()), theirs.fileno(), theirs.fileno())
    if pid <= 0:
        ours.close()
        raise OSError(-pid, os.strerror(-pid))
    return ours


def _command() -> list[str]:
    place = Path(__file__).resolve().parents[1]
    return [sys.executable, "-P", "-W", "ignore", "-c", SERVES, os.fspath(place), str(os.getpid())]


def _environ() -> list[str]:
    return [f"{name}={value}" for name, value in os.environ.items() if name not in LEFT_OUT]


def _texts(words: Sequence[str]) -> Any:
    return (ctypes.c_char_p * (len(words) + 1))(*map(os.fsencode, words), None)


def _call(where: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    module, _, name = where.partition(":")
    with own_imports():  # not for the call as well: threads of the script may import from its folder
        function = getattr(importlib.import_module(module), name)
    return function(*args, **kwargs)


# --- in the helper process -------------------------------------------------------------------------------------------


def serve(parent: int) -> None:
    """Answers requests until it is told to end, or the parent process (pid `parent`) has ended."""
    requests, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # output of libraries must not mix with answers
    while _is_asked(parent) and (request := pickle.load(requests)) is not None:
        pickle.dump(_answer(request), answers, pickle.HIGHEST_PROTOCOL)
        answers.flush()
    os._exit(0)  # a normal shutdown takes a second


def _answer(request: Request) -> tuple[Any, Exception | None]:
    try:
        return _call(*request), None
    except Exception as error:  # noqa: BLE001 (it is raised in the script's process)
        return None, _portable(error)


def _is_asked(parent: int) -> bool:
    """Waits for a request; returns False if the parent process has ended. End of file is not enough to notice that,
    because forked children of the script may hold its end of the connection."""
    while not select.select([0], [], [], LOOK_S)[0]:
        if not Path(f"/proc/{parent}").exists():
            return False
    return True


def _portable(error: Exception) -> Exception:
    try:
        return error if type(pickle.loads(pickle.dumps(error))) is type(error) else RuntimeError(str(error))
    except Exception:  # noqa: BLE001 (its arguments may be anything)
        return RuntimeError(f"{type(error).__name__}: {error}")
