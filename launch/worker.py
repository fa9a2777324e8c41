"""The program that torchrun starts on each rank: runs the script like `python script.py` does and records it.

    python -m distprof.launch.worker [-m] SCRIPT [ARGUMENTS]

It does not import torch, because the script may first set variables that torch reads on import. Recording starts when
the script has imported torch.
"""

from __future__ import annotations

import builtins
import importlib.abc
import importlib.machinery
import importlib.util
import io
import os
import runpy
import sys
import time
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from distprof.terminal import say

LINGER_S = 0.2


class _AfterImport(importlib.abc.MetaPathFinder):
    """Import hook that calls a function once, after a module was imported."""

    def __init__(self, name: str, call: Callable[[], None]) -> None:
        self._name = name
        self._call = call

    def find_spec(self, name: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if name != self._name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            loader: Any = spec.loader
            execute = loader.exec_module

            def exec_module(module: types.ModuleType) -> None:
                execute(module)
                self._call()

            loader.exec_module = exec_module
        return spec


class Worker:
    """Runs one script and records it."""

    def __init__(self) -> None:
        self._context: Any = None
        if not os.environ.get("DISTPROF_DISABLE"):
            if "torch" in sys.modules:  # a sitecustomize imported it
                self._start()
            else:
                sys.meta_path.insert(0, _AfterImport("torch", self._start))

    def _start(self) -> None:
        try:
            from distprof.recording.recorder import record

            self._context = record(os.environ["DISTPROF_OUT"], steps=os.environ["DISTPROF_STEPS"])
            self._context.__enter__()
        except Exception as error:  # noqa: BLE001 (a failure here must not stop the training job)
            say(f"{_this_rank()}: not recording: {error}")
            self._context = None

    def run(self, arguments: Sequence[str]) -> None:
        """Runs `[-m] SCRIPT [ARGUMENTS]`; closes the recording however the script ends."""
        is_module = arguments[0] == "-m"
        script, *rest = arguments[1:] if is_module else arguments
        error: BaseException | None = None
        try:
            sys.argv = [script, *rest]
            run_module(script) if is_module else run_script(script)
        except BaseException as raised:
            error = raised
            raise
        finally:
            self._close(error)
            if "torch" in sys.modules:
                # threads of gloo take the GIL to free their last work, which aborts a process that is shutting down
                # (torch 2.13, without distprof too): give them time before that
                time.sleep(LINGER_S)

    def _close(self, error: BaseException | None) -> None:
        if self._context is None:
            if not os.environ.get("DISTPROF_DISABLE") and "torch" not in sys.modules:
                say("nothing was recorded: the script did not import torch")
            return
        failed = error is not None and not (isinstance(error, SystemExit) and error.code in (None, 0))
        try:
            if failed and error is not None:
                from distprof.recording.recorder import active

                for recorder in active():
                    recorder.close(error)
            self._context.__exit__(None, None, None)
        except Exception as ours:  # noqa: BLE001 (the script ends as it would have)
            say(f"{_this_rank()}: the recording could not be closed: {ours}")


def _this_rank() -> str:
    return f"rank {os.environ.get('RANK', '0')}"


def run_script(script: str) -> None:
    """Executes a file as `__main__` with its folder first on sys.path."""
    script = os.path.abspath(script)  # noqa: PTH100 (like __file__ in python: links are not followed)
    sys.path[0] = os.fspath(Path(script).resolve().parent)
    main = types.ModuleType("__main__")
    main.__dict__.update(__file__=script, __builtins__=builtins, __cached__=None)
    main.__loader__ = importlib.machinery.SourceFileLoader("__main__", script)
    with io.open_code(script) as source:
        code = compile(source.read(), script, "exec", dont_inherit=True)  # without the __future__ imports of this file
    sys.modules["__main__"] = main
    exec(code, main.__dict__)


def run_module(name: str) -> None:
    """Executes a module like `python -m`."""
    sys.path[0] = os.fspath(Path.cwd())
    runpy.run_module(name, run_name="__main__", alter_sys=True)


def _frames_of_script(error: BaseException) -> types.TracebackType | None:
    """The traceback of the script alone, without frames of this file and of runpy."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename in (__file__, runpy.__file__, "<frozen runpy>"):
        trace = trace.tb_next
    return trace


def main() -> None:
    """Entry of every rank."""
    worker = Worker()
    try:
        worker.run(sys.argv[1:])
    except SystemExit:
        raise
    except KeyboardInterrupt as error:
        raise error.with_traceback(_frames_of_script(error)) from None
    except BaseException as error:  # noqa: BLE001 (printed like python prints it)
        shown = error.with_traceback(_frames_of_script(error))
        sys.excepthook(type(shown), shown, shown.__traceback__)
        sys.exit(1)


if __name__ == "__main__":
    main()
