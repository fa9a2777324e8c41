"""Limits of the process on memory, threads and open files: the messages of commands that reach one of them.

Commands that read large traces make the allocator keep freed memory; they own their process, a library must not do
this.
"""

from __future__ import annotations

import errno
import gc
import os
import re
from collections.abc import Iterator

from distprof.system import LINUX, c_function, limit_of
from distprof.threads import is_scarce

ENOUGH_KB = 2_000_000
"""Address space in KB that is enough for every command on small inputs, with 2 processors and torch without CUDA;
1,000,000 is not enough for a merge.
"""
FEW_PROCESSES = 512
"""A limit on processes and threads of a user is low below this number."""
FEW_FILES = 64
"""A limit on open files is low below this number."""
_SHORT_OF_FILES = re.compile(r"too many open files", re.IGNORECASE)
_SHORT_OF_MEMORY = re.compile(
    r"cannot allocate memory|failed to map segment|resource temporarily unavailable|new thread", re.IGNORECASE)


def is_limited() -> bool:
    """Returns whether a limit of this process is so low that a library may abort; always False except on Linux."""
    return LINUX and _is_low()


def _is_low() -> bool:
    return limit_of("AS") is not None or _few_processes() is not None or _few_files() is not None


def reached(error: BaseException) -> str | None:
    """Returns a line about the limit that caused an error, directly or through its causes; None for other errors."""
    chain = list(_chain(error))
    if any(_is_of_files(one) for one in chain):
        return short_of_files()
    # if memory is scarce, an unexpected error is attributed to it
    if any(_is_of_memory(one) for one in chain) or (is_scarce() and not isinstance(error, OSError)):
        return short_of_memory()
    return None


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen = set[int]()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def _is_of_files(error: BaseException) -> bool:
    if isinstance(error, OSError):
        return error.errno in (errno.EMFILE, errno.ENFILE)
    if isinstance(error, ImportError) and _few_files() is not None:  # Python hides that it could not open files
        return True
    return bool(_SHORT_OF_FILES.search(str(error)))


def _is_of_memory(error: BaseException) -> bool:
    if isinstance(error, OSError):
        return error.errno in (errno.ENOMEM, errno.EAGAIN)
    return isinstance(error, MemoryError) or bool(_SHORT_OF_MEMORY.search(str(error)))


def short_of_files() -> str:
    """Returns the message for too many open files."""
    limit = limit_of("NOFILE")
    return f"too many open files: the limit is {limit}  hint: ulimit -n 1024"


def short_of_memory() -> str:
    """Returns the message for lack of memory, or of threads."""
    limit, processes = limit_of("AS"), _few_processes()
    if limit is None and processes is not None:
        return (f"cannot start threads: the limit is {processes} processes and threads  hint: ulimit -u "
                f"{FEW_PROCESSES}")
    found = "none left" if limit is None else f"a limit of {limit >> 10} KB of address space"
    return f"out of memory: {found}  hint: ulimit -v unlimited, or at least {ENOUGH_KB}"


def short() -> str:
    """Returns the message after a library aborted, for the limit that is the most likely reason."""
    is_files = _few_files() is not None and limit_of("AS") is None and _few_processes() is None
    return short_of_files() if is_files else short_of_memory()


def _few_processes() -> int | None:
    limit = limit_of("NPROC")
    return limit if limit is not None and limit < FEW_PROCESSES else None


def _few_files() -> int | None:
    limit = limit_of("NOFILE")
    return limit if limit is not None and limit < FEW_FILES else None


_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
"""Options of glibc's `mallopt`."""
_OBJECTS = 200_000
"""Number of new objects between two runs of the cyclic garbage collector; a merge creates few cycles."""


def reuse_memory() -> None:
    """Makes the allocator keep freed memory for the next chunk instead of asking the kernel for new pages.

    Call it before numpy and Arrow are imported. OpenBLAS gets one thread, because distprof does not multiply matrices.
    """
    gc.set_threshold(_OBJECTS)
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    mallopt = c_function("mallopt")
    if mallopt is not None:  # only glibc has it
        mallopt(_M_MMAP_THRESHOLD, 32 << 20)
        mallopt(_M_TRIM_THRESHOLD, 256 << 20)
