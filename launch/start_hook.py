"""Records a script without our launcher: `DISTPROF_OUT=runs/mine python train.py`, and the ranks that it starts.

Python runs `distprof-start.pth` when it starts; if DISTPROF_OUT is set, this imports `distprof_start`, which waits
until the script imports torch. Then `StartHook` waits for a sign that the process trains: it joins a process group, or
creates the first parameter of a model, or an optimizer. Recording begins at this sign, so launchers and workers of data
loaders and compilers are not recorded. Children of a recorded process are recorded only if they join a process group.
"""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import wraps
from typing import Any

from distprof.after_import import AfterImport, after_import, own_imports
from distprof.needs import switch_on_flight_recorder
from distprof.own import time
from distprof.system import after_fork

RECORDED_BY = "DISTPROF_RECORDED_BY"
"""Environment variable that a recorded process sets for its children."""
LINGER_S = 0.2
GROUP, MODEL, OPTIMIZER = "group", "model", "optimizer"
"""Signs that a process trains."""
AGENT_STORE = "TORCHELASTIC_USE_AGENT_STORE"
"""Environment variable that torchrun sets for its ranks; ranks that a script starts inherit it."""
C10D = "torch.distributed.distributed_c10d"


def watching() -> AfterImport:
    """Installs and returns the import hook that calls `StartHook.watch` after torch is imported."""
    finder = AfterImport("torch", StartHook().watch)
    sys.meta_path.insert(0, finder)
    return finder


class StartHook:
    """Waits for a sign that this process trains, then records it until it ends."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []
        self._undo_groups: list[Callable[[], None]] = []
        self._begun = False
        self._recorder: Any = None
        self._child = RECORDED_BY in os.environ
        self._forked = False

    def watch(self) -> None:
        """Starts to wait; called after torch is imported."""
        try:
            if not self._forked:
                after_fork(self._after_fork)
            switch_on_flight_recorder()
            after_import(C10D, self._watch_groups)
            if not self._is_child():
                self._watch_training()
        except Exception:  # noqa: BLE001 (distprof must not break the script)
            self._stop_waiting()

    def watch_children(self) -> None:
        """Waits only in forked children; for a process that is recorded in another way."""
        after_fork(self._after_fork)

    def _is_child(self) -> bool:
        """Returns whether a script started this process."""
        return self._child or self._forked or _is_multiprocessing_child()

    def _watch_training(self) -> None:
        from torch.nn.modules.module import register_module_parameter_registration_hook
        from torch.optim import Optimizer

        from distprof.model.quiet import unnoticed

        with unnoticed():
            handle = register_module_parameter_registration_hook(lambda *_: self._begin(MODEL))
        original = Optimizer.__init__

        @wraps(original)
        def init(*args: Any, **kwargs: Any) -> None:
            original(*args, **kwargs)
            self._begin(OPTIMIZER)

        Optimizer.__init__ = init  # type: ignore[method-assign]

        def undo() -> None:
            handle.remove()
            if Optimizer.__init__ is init:
                Optimizer.__init__ = original  # type: ignore[method-assign]

        self._undo.append(undo)

    def _watch_groups(self) -> None:
        import torch.distributed as public
        from torch.distributed import distributed_c10d as home

        original: Any = home.init_process_group

        @wraps(original)
        def init_process_group(*args: Any, **kwargs: Any) -> Any:
            with self._explained(original, args, kwargs):
                found = original(*args, **kwargs)
            self._begin(GROUP)
            return found

        places: list[Any] = [home, *([public] if public.init_process_group is original else [])]
        for place in places:
            place.init_process_group = init_process_group

        def undo() -> None:
            for place in places:
                if place.init_process_group is init_process_group:
                    place.init_process_group = original

        self._undo_groups.append(undo)

    def _explained(self, init: Callable[..., Any], args: tuple[Any, ...],
                   kwargs: dict[str, Any]) -> AbstractContextManager[None]:
        """Explains why ranks of a script hang if torchrun started the script."""
        if not self._is_child() or AGENT_STORE not in os.environ:
            return nullcontext()
        from distprof.launch.own_ranks import explained

        return explained(init, args, kwargs)

    def _stop_waiting(self, *, for_groups: bool = True) -> None:
        for undone in (self._undo, self._undo_groups if for_groups else []):
            while undone:
                undone.pop()()

    def _begin(self, sign: str) -> None:
        if _is_data_worker():
            return
        if sign != MODEL:  # a parameter hook cannot be removed while it runs
            # a rank started by a rank of torchrun may hang when it joins a group later, which `_explained` reports
            self._stop_waiting(for_groups=sign == GROUP or AGENT_STORE not in os.environ)
        if self._begun:
            return
        self._begun = True
        try:
            with own_imports():
                from distprof.recording.active import begin

            self._recorder = begin(os.environ["DISTPROF_OUT"], steps=os.environ.get("DISTPROF_STEPS", ""),
                                  topics=os.environ.get("DISTPROF_TOPICS", ""),
                                  force=bool(os.environ.get("DISTPROF_FORCE")), tentative=sign != GROUP)
            os.environ[RECORDED_BY] = str(os.getpid())
            self._watch_end()
        except Exception as error:  # noqa: BLE001 (distprof must not break the script)
            _say(f"not recording: {error}")

    def _watch_end(self) -> None:
        atexit.register(self._end)
        if _is_multiprocessing_child():
            from multiprocessing.util import Finalize

            Finalize(None, self._end, exitpriority=0)  # such a process does not run atexit

    def _end(self) -> None:
        """Closes the recording however the script ended."""
        recorder, self._recorder = self._recorder, None
        if recorder is None:
            return
        from distprof.recording.active import end

        try:
            end(recorder, _failure_of(sys.exception() or _uncaught()))
        except Exception as error:  # noqa: BLE001 (must not change how the script ends)
            _say(f"the recording could not be closed: {error}")
        if C10D in sys.modules:
            # threads of gloo take the GIL to free their last work, which aborts an interpreter that is shutting down
            # (torch 2.13, also without distprof): gives them time before that
            time.sleep(LINGER_S)

    def _after_fork(self) -> None:
        """Resets the state in a forked child: it does not use the recording of its parent, but may start its own."""
        self._begun, self._recorder, self._forked = False, None, True
        self._stop_waiting()
        if "distprof.recording.active" in sys.modules:
            from distprof.recording.active import forget_active

            forget_active()
        self.watch()


def _say(message: str) -> None:
    from distprof.terminal import say  # takes its time, and few processes need it

    say(message)


def _is_multiprocessing_child() -> bool:
    process = sys.modules.get("multiprocessing.process")
    return process is not None and process.parent_process() is not None


def _is_data_worker() -> bool:
    """Returns whether this is a worker of a DataLoader, which may create modules to prepare samples."""
    worker = sys.modules.get("torch.utils.data._utils.worker")
    return worker is not None and worker.get_worker_info() is not None


def _uncaught() -> BaseException | None:
    """Returns the exception that ended the script, which Python stores before it calls `sys.excepthook`."""
    return getattr(sys, "last_value", None)


def _failure_of(error: BaseException | None) -> BaseException | None:
    """Returns the exception that ends a process; mp.spawn prints the original one and exits with SystemExit."""
    if isinstance(error, SystemExit):
        if error.code in (None, 0):
            return None
        return error.__context__ or error
    return error
