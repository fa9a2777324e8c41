"""Records a script that nobody of ours started: `DISTPROF_OUT=runs/mine python train.py`, and the ranks it starts.

Python runs `distprof-start.pth` when it starts; where DISTPROF_OUT is set, that imports `distprof_start`, which waits
until the script imports torch. From then on `StartHook` watches. Recording begins where the process shows that it
trains: it enters a process group, or makes the first parameter of a model, or an optimizer. So launchers, workers of
data loaders and of compilers are not recorded. A process that was started by one that is recorded is recorded only if
it enters a process group.
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
"""Set for the processes that a recorded one starts."""
LINGER_S = 0.2
GROUP, MODEL, OPTIMIZER = "group", "model", "optimizer"
"""What shows that a process trains."""
AGENT_STORE = "TORCHELASTIC_USE_AGENT_STORE"
"""Set by torchrun for its ranks, and inherited by those that a script starts."""
C10D = "torch.distributed.distributed_c10d"


def watching() -> AfterImport:
    """The import hook that starts to watch once torch is imported; it is on sys.meta_path."""
    finder = AfterImport("torch", StartHook().watch)
    sys.meta_path.insert(0, finder)
    return finder


class StartHook:
    """Waits for the sign that this process trains, then records it until it ends."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []
        self._undo_groups: list[Callable[[], None]] = []
        self._begun = False
        self._recorder: Any = None
        self._child = RECORDED_BY in os.environ
        self._forked = False

    def watch(self) -> None:
        """Begins to wait; called once torch is imported."""
        try:
            if not self._forked:
                after_fork(self._after_fork)
            switch_on_flight_recorder()
            after_import(C10D, self._watch_groups)
            if not self._is_child():
                self._watch_training()
        except Exception:  # noqa: BLE001 (no script fails because of us)
            self._stop_waiting()

    def watch_children(self) -> None:
        """Waits in the children that are forked, of a process that is recorded otherwise."""
        after_fork(self._after_fork)

    def _is_child(self) -> bool:
        """True in a process that a script has started."""
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
        """Says why ranks of a script wait for ever where torchrun has started the script."""
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
        if sign != MODEL:  # a hook on parameters cannot be removed while it runs
            # a rank of torchrun's ranks that makes a model first may wait for ever in its group later
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
        except Exception as error:  # noqa: BLE001 (the script goes on as it would without us)
            _say(f"not recording: {error}")

    def _watch_end(self) -> None:
        atexit.register(self._end)
        if _is_multiprocessing_child():
            from multiprocessing.util import Finalize

            Finalize(None, self._end, exitpriority=0)  # such a process ends without atexit

    def _end(self) -> None:
        """Closes the recording however the script ended."""
        recorder, self._recorder = self._recorder, None
        if recorder is None:
            return
        from distprof.recording.active import end

        try:
            end(recorder, _failure_of(sys.exception() or _uncaught()))
        except Exception as error:  # noqa: BLE001 (the script ends as it would have)
            _say(f"the recording could not be closed: {error}")
        if C10D in sys.modules:
            # threads of gloo take the GIL to free their last work, which aborts a process that is shutting down
            # (torch 2.13, without distprof too): give them time before that
            time.sleep(LINGER_S)

    def _after_fork(self) -> None:
        """In a forked child: the parent's recording is not ours; a rank that is started by fork begins its own."""
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
    """True in a worker of a DataLoader, which may make modules to prepare samples."""
    worker = sys.modules.get("torch.utils.data._utils.worker")
    return worker is not None and worker.get_worker_info() is not None


def _uncaught() -> BaseException | None:
    """The exception that ended the script, which Python keeps before it calls `sys.excepthook`."""
    return getattr(sys, "last_value", None)


def _failure_of(error: BaseException | None) -> BaseException | None:
    """The exception that ends a child; mp.spawn prints it itself and leaves with SystemExit."""
    if isinstance(error, SystemExit):
        if error.code in (None, 0):
            return None
        return error.__context__ or error
    return error
