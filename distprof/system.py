"""System-specific features: signals, process limits, functions of the kernel and of the C library.

distprof records on Linux, and reads runs on Linux, macOS and Windows. Code that reads runs uses features that one of
these lacks only through this module; tests/install/test_systems.py checks that.
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
"""Number of the signal for writing to a pipe without a reader; Windows has no such signal."""
SIGNALS = tuple(signal.Signals[name] for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
"""Signals that request a process to end."""
HERE, EXCHANGE = -100, 2
"""Linux constants AT_FDCWD and RENAME_EXCHANGE."""
MOST_PROCESSES = 61 if WINDOWS else sys.maxsize
"""Maximum number of processes that Python can wait for at once."""


def limit_of(name: str) -> int | None:
    """Returns the soft limit of this process for a resource such as AS or NOFILE; None: unlimited or unsupported."""
    number = getattr(resource, f"RLIMIT_{name}", None)
    if number is None:
        return None
    soft, _ = resource.getrlimit(number)
    return None if soft == resource.RLIM_INFINITY else soft


def c_function(name: str) -> Any:
    """Returns a function of the C library; None if it does not exist."""
    if WINDOWS:  # cannot look up symbols in all loaded libraries
        return None
    import ctypes  # takes milliseconds

    return getattr(ctypes.CDLL(None), name, None)


def exchange(one: Path, other: Path) -> bool:
    """Atomically exchanges the names of two folders; returns False if the kernel or file system cannot."""
    call = c_function("renameat2") if LINUX else None
    return call is not None and call(HERE, os.fsencode(one), HERE, os.fsencode(other), EXCHANGE) == 0


@contextmanager
def blocked(*names: str) -> Iterator[None]:
    """Blocks signals, by name, in the calling thread; processes that are started in the block never receive them."""
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
    """Blocks all signals in the calling thread; threads that are started in the block receive none."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def after_fork(call: Callable[[], object]) -> None:
    """Registers a function to be called in each forked child."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=call)


def status_bytes(key: Literal["VmRSS", "VmHWM", "VmSize"]) -> int | None:
    """Returns a field of /proc/self/status (proc_pid_status(5)) in bytes; None if the system has no such file.

    ru_maxrss of getrusage cannot replace it: it survives exec, so it may be that of the parent program.
    """
    with suppress(OSError, StopIteration, ValueError):
        lines = text_of(Path("/proc/self/status")).splitlines()
        return int(next(line for line in lines if line.startswith(f"{key}:")).split()[1]) << 10
    return None


@cache
def end_forked_children_at_exit() -> None:
    """Makes children that are forked from now on exit like `os._exit`, after the C library has flushed its files.

    This skips destructors of libraries that this process loaded: one that waits for a thread of this process, which the
    child does not have, would wait forever.
    """
    at_exit, flush, on_exit, end = (c_function(name) for name in ("__cxa_atexit", "fflush", "on_exit", "_exit"))
    if at_exit and on_exit:  # only in glibc
        after_fork(lambda: (on_exit(end, None), at_exit(flush, None, None)))  # called in reverse order


def lock(handle: int) -> None:
    """Locks an open file until it is closed.

    Raises:
        OSError: Another process holds the lock, or the system has no such locks.
    """
    try:
        import fcntl
    except ImportError as error:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS)) from error
    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)


def is_ours(about: os.stat_result) -> bool:
    """Returns whether a file belongs to the user of this process; always True if the system has no owners."""
    return not hasattr(os, "getuid") or about.st_uid == os.getuid()


def send(source: IO[bytes], target: IO[bytes]) -> None:
    """Appends the rest of a file to another one, within the kernel if possible."""
    target.flush()
    if sys.platform == "linux":  # on macOS, sendfile works only with sockets
        with suppress(OSError):  # some file systems do not support it; the rest is copied below
            while os.sendfile(target.fileno(), source.fileno(), None, 1 << 30):
                pass
    target.seek(0, os.SEEK_END)
    shutil.copyfileobj(source, target)


def open_for_sync(path: Path) -> int | None:
    """Opens a file or folder for `os.fsync`; None for folders on Windows, which cannot be synced."""
    if WINDOWS:
        return None if path.is_dir() else os.open(path, os.O_RDWR)
    return os.open(path, os.O_RDONLY)


def opened_at(number: int) -> tuple[int, int] | None:
    """Returns device and inode of what is open under a file descriptor; None if nothing is.

    A script that closes all files may reuse descriptors that were ours, which must then not be written to or closed.
    """
    try:
        found = os.fstat(number)
    except OSError:
        return None
    return found.st_dev, found.st_ino


class OwnSocket(socket.socket):
    """A socket that notices if the script closed its descriptor and reused it for another file, and then neither uses
    nor closes that file."""

    def __init__(self, taken: socket.socket) -> None:
        """Takes over the descriptor of `taken`, which is detached."""
        seconds = taken.gettimeout()
        super().__init__(fileno=taken.detach())
        self.settimeout(seconds)
        self._opened = opened_at(self.fileno())

    @property
    def is_there(self) -> bool:
        """Whether the descriptor still belongs to this socket."""
        return self.fileno() >= 0 and opened_at(self.fileno()) == self._opened

    def close(self) -> None:
        """Closes the socket, if it is still there."""
        if self.is_there:
            super().close()
        elif self.fileno() >= 0:
            self.detach()
