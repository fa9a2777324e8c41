"""Explains why a script hangs that starts its own ranks under torchrun, and so under `distprof run`.

Its ranks inherit torchrun's `TORCHELASTIC_USE_AGENT_STORE`, so all of them try to connect to a store that a launcher
should have opened. There is none at the address that the script chose, and torch retries for half an hour.
"""

from __future__ import annotations

import inspect
import os
import shlex
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from distprof.terminal import say

PATIENCE_S = 10.0
FIRST = "0"


@contextmanager
def explained(init: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[None]:
    """Wraps `init_process_group` in a process started by a rank of torchrun; explains after 10 s, in rank 0 only."""
    if not _waits_for_agent(init, args, kwargs):
        yield
        return
    timer = threading.Timer(PATIENCE_S, _explain)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _waits_for_agent(init: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Returns whether this is rank 0 of ranks that will wait for the store of torchrun."""
    try:
        given = inspect.signature(init).bind(*args, **kwargs).arguments
    except TypeError:
        return False  # torch will report the wrong arguments
    rank = given.get("rank", -1)
    return (os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True" and given.get("store") is None
            and given.get("init_method") in (None, "env://")
            and (os.environ.get("RANK", FIRST) if rank == -1 else str(rank)) == FIRST)


def _explain() -> None:
    script = Path(sys.argv[0])
    command = shlex.join(["python", *sys.argv])
    where = ":".join(os.environ.get(name, "?") for name in ("MASTER_ADDR", "MASTER_PORT"))
    say(f"the script starts its own ranks, and they have waited {PATIENCE_S:g} s for a store at {where}: under "
        "torchrun, and so under distprof run, none of them opens it  hint: stop the job and run "
        f"`DISTPROF_OUT=runs/{script.stem} {command}`, which records the ranks that a script starts")
