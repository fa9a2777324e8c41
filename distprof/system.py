"""What only some systems have: signals, limits of a process, calls of the kernel and of the C library.

distprof records on Linux, and reads runs on Linux, macOS and Windows. What one of these lacks is asked for here and
nowhere else in what reads runs: tests/install/test_systems.py looks for it.
"""

from __future__ import annotations

import errno
import os
import shutil
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import IO, Any, Literal

from distprof.own import text_of

try:
    import resource as resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

LINUX, WINDOWS = sys.platform == "linux", sys.platform == "win32"
SIGPIPE = int(getattr(signal, "SIGPIPE", 13))
"""Ends who writes to a pipe that nobody reads; Windows knows the number alone."""
SIGNALS = tuple(signal.Signals[name] for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
"""Signals that ask a process to end."""
HERE, EXCHANGE = -100, 2
"""AT_FDCWD and RENAME_EXCHANGE of Linux."""
MOST_PROCESSES = 61 if WINDOWS else sys.maxsize
"""That Python waits for at once."""


def limit_of(name: str) -> int | None:
    """A limit of this process, like AS or NOFILE; None where there is none."""
    number = getattr(resource, f"RLIMIT_{name}", None)
    if number is None:
        return None
    soft, _ = resource.getrlimit(number)
    return None if soft == resource.RLIM_INFINITY else soft


def c_function(name: str) -> Any:
    """A function of the C library; None where it has none of that name."""
    if WINDOWS:  # it does not say which libraries a process has
        return None
    import ctypes  # takes milliseconds

    return getattr(ctypes.CDLL(None), name, None)


def exchange(one: Path, other: Path) -> bool:
    """Gives two folders the names of each other at once; False where kernel or file system cannot."""
    call = c_function("renameat2") if LINUX else None
    return call is not None and call(HERE, os.fsencode(one), HERE, os.fsencode(other), EXCHANGE) == 0


@contextmanager
def blocked(*names: str) -> Iterator[None]:
    """Signals, by their names, that a process which is started in here never gets."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.Signals[name] for name in names})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def all_blocked() -> Iterator[None]:
    """A thread that is started in here gets no signal."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def after_fork(call: Callable[[], object]) -> None:
    """Has a function called in each child that is forked."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=call)


def status_bytes(key: Literal["VmRSS", "VmHWM", "VmSize"]) -> int | None:
    """A line of /proc/self/status in bytes: proc_pid_status(5). None where the kernel has no such file.

    ru_maxrss of getrusage would not do: it survives exec, so it may be that of the parent program.
    """
    with suppress(OSError, StopIteration, ValueError):
        lines = text_of(Path("/proc/self/status")).splitlines()
        return int(next(line for line in lines if line.startswith(f"{key}:")).split()[1]) << 10
    return None


@cache
def end_forked_children_at_exit() -> None:
    """Ends children that are forked from now on as `os._exit` does once they exit, after the C library wrote its files.

    What would run behind that are destructors of libraries that this process loaded: one that waits for a thread of
    this process, which the child does not have, would wait forever.
    """
    at_exit, flush, on_exit, end = (c_function(name) for name in ("__cxa_atexit", "fflush", "on_exit", "_exit"))
    if at_exit and on_exit:  # of glibc
        after_fork(lambda: (on_exit(end, None), at_exit(flush, None, None)))  # the last one is called first


def lock(handle: int) -> None:
    """Locks an open file until it is closed.

    Raises:
        OSError: Another process has it, or there are no such locks here.
    """
    try:
        import fcntl
    except ImportError as error:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS)) from error
    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)


def is_ours(about: os.stat_result) -> bool:
    """True where a file belongs to the user of this process, as far as files have owners."""
    return not hasattr(os, "getuid") or about.st_uid == os.getuid()


def send(source: IO[bytes], target: IO[bytes]) -> None:
    """Adds the rest of a file to the end of another one: within the kernel, where it can."""
    target.flush()
    if sys.platform == "linux":  # that of macOS sends to sockets alone
        with suppress(OSError):  # some file systems cannot; what was sent is sent
            while os.sendfile(target.fileno(), source.fileno(), None, 1 << 30):
                pass
    target.seek(0, os.SEEK_END)
    shutil.copyfileobj(source, target)


def open_for_sync(path: Path) -> int | None:
    """A file or a folder as `os.fsync` takes it; None where folders are not synced."""
    if WINDOWS:
        return None if path.is_dir() else os.open(path, os.O_RDWR)
    return os.open(path, os.O_RDONLY)


def opened_at(number: int) -> tuple[int, int] | None:
    """What is open under a number; None where nothing is.

    A script that closes all files may open others under numbers that were ours, which must not be written to or closed.
    """
    try:
        found = os.fstat(number)
    except OSError:
        return None
    return found.st_dev, found.st_ino


class OwnSocket(socket.socket):
    """A socket whose number a script may close, as one that it does not know, and give to a file of its own: that one
    is then neither used nor closed.
    """

    def __init__(self, taken: socket.socket) -> None:
        """In the place of another one, which is no socket any more."""
        seconds = taken.gettimeout()
        super().__init__(fileno=taken.detach())
        self.settimeout(seconds)
        self._opened = opened_at(self.fileno())

    @property
    def is_there(self) -> bool:
        """False where its number is free, or another file's."""
        return self.fileno() >= 0 and opened_at(self.fileno()) == self._opened

    def close(self) -> None:
        """Ends it, if it is there."""
        if self.is_there:
            super().close()
        elif self.fileno() >= 0:
            self.detach()
