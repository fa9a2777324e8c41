"""Does work of a rank in a process of its own, so that what it imports takes neither memory nor threads of the script.

pyarrow takes 36 MB and several threads, for good. The process is no child of the script's, which waits for nothing that
it did not start, and it ends when it is told to, or with the script. Where none can be started, or pyarrow is there
anyway, the work is done here.
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
"""What is to stay out of the process of the script; where that has it, nothing is gained."""
LOOK_S = 1.0
"""How often the helper looks whether the process is there that it works for."""
BUSY_S = 1.0
"""How long one thread waits for the helper while another one has it, which may hang; then it does the work itself."""
LEFT_OUT = ("DISTPROF_OUT", "PYTHONSTARTUP", "PYTHONINSPECT", "PYTHONPROFILEIMPORTTIME")
"""Variables that are not for it."""
Request = tuple[str, Sequence[Any], Mapping[str, Any]]
"""Function, arguments."""
SERVES = "import sys; sys.path.append(sys.argv[1]); from distprof.helper import serve; serve(int(sys.argv[2]))"


class Helper:
    """Starts when it is needed first."""

    def __init__(self) -> None:
        self._lock = lock()
        self._connection: OwnSocket | None = None
        self._works = True

    def call(self, where: str, *args: Any, **kwargs: Any) -> Any:
        """Calls a function that is given as `module:name`; arguments and result must be picklable.

        Raises:
            Exception: What the function raises.
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
        """Ends the process, if there is one."""
        if self._connection is not None and self._lock.acquire(timeout=BUSY_S):
            with suppress(OSError):
                if self._connection.is_there:
                    _send(self._connection, None)
            self._drop()
            self._lock.release()

    def forget(self) -> None:
        """In a forked child: it is the parent's."""
        self._lock, self._works = lock(), False
        self._drop()

    def _asked(self, request: Request) -> tuple[Any, Exception | None] | None:
        """What it answers; None where it cannot be started, or ended."""
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
    # where it is gone, a script that has set SIGPIPE to its default would end
    connection.sendall(pickle.dumps(request, pickle.HIGHEST_PROTOCOL), socket.MSG_NOSIGNAL)


def _started() -> socket.socket:
    """A connection with a new process.

    Raises:
        OSError: None can be started.
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
    with own_imports():  # for no longer: threads of the script may import from its folder
        function = getattr(importlib.import_module(module), name)
    return function(*args, **kwargs)


# --- in the process --------------------------------------------------------------------------------------------------


def serve(parent: int) -> None:
    """Answers requests until it is told to end, or the process is gone that it works for."""
    requests, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is no answer
    while _is_asked(parent) and (request := pickle.load(requests)) is not None:
        pickle.dump(_answer(request), answers, pickle.HIGHEST_PROTOCOL)
        answers.flush()
    os._exit(0)  # a normal shutdown takes a second


def _answer(request: Request) -> tuple[Any, Exception | None]:
    try:
        return _call(*request), None
    except Exception as error:  # noqa: BLE001 (it is raised where it was asked)
        return None, _portable(error)


def _is_asked(parent: int) -> bool:
    """Waits; False where nobody will ask any more. Forked children of the script may hold its end of the pipe."""
    while not select.select([0], [], [], LOOK_S)[0]:
        if not Path(f"/proc/{parent}").exists():
            return False
    return True


def _portable(error: Exception) -> Exception:
    try:
        return error if type(pickle.loads(pickle.dumps(error))) is type(error) else RuntimeError(str(error))
    except Exception:  # noqa: BLE001 (its arguments may be anything)
        return RuntimeError(f"{type(error).__name__}: {error}")
