"""The program that torchrun starts on each rank: runs the script like `python script.py` does and records it.

    python .../distprof/launch/worker.py [-m] SCRIPT [ARGUMENTS]

It is started as a file: with `python -m`, modules of the working directory would come before those of Python.
It does not import torch, because the script may first set variables that torch reads on import. Recording starts when
the script has imported torch.
"""

from __future__ import annotations

import builtins
import importlib.machinery
import io
import os
import pkgutil
import runpy
import sys
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from distprof.after_import import after_import, own_imports
from distprof.own import time
from distprof.terminal import say

LINGER_S = 0.2


class Worker:
    """Runs one script and records it."""

    def __init__(self) -> None:
        self._context: Any = None
        if not os.environ.get("DISTPROF_DISABLE"):
            after_import("torch", self._start)  # also works if a sitecustomize has imported torch already

    def _start(self) -> None:
        try:
            with own_imports():
                from distprof.launch.start_hook import StartHook
                from distprof.recording.active import record

            StartHook().watch_children()

            self._context = record(_directory(), steps=os.environ.get("DISTPROF_STEPS", ""),
                                   topics=os.environ.get("DISTPROF_TOPICS", ""),
                                   force=bool(os.environ.get("DISTPROF_FORCE")))
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
                # threads of gloo take the GIL to free their last work, which aborts an interpreter in shutdown
                # (torch 2.13, also without distprof): gives them time before that
                time.sleep(LINGER_S)

    def _close(self, error: BaseException | None) -> None:
        if self._context is None:
            if not os.environ.get("DISTPROF_DISABLE") and "torch" not in sys.modules:
                say("nothing was recorded: the script did not import torch")
            return
        failed = error is not None and not (isinstance(error, SystemExit) and error.code in (None, 0))
        try:
            if failed and error is not None:
                from distprof.recording.active import active

                for recorder in active():
                    recorder.close(error)
            self._context.__exit__(None, None, None)
        except Exception as ours:  # noqa: BLE001 (must not change how the script ends)
            say(f"{_this_rank()}: could not close the recording: {ours}")


def _directory() -> str:
    """Returns the run directory; without DISTPROF_OUT, a path that all ranks of the job derive independently."""
    given = os.environ.get("DISTPROF_OUT")
    if given:
        return given
    from distprof.recording.run_directory import launch_key_of

    name = launch_key_of(os.environ) or f"{time.strftime('%Y%m%d-%H%M%S')}"
    found = os.path.abspath(f"runs/{Path(sys.argv[0]).stem}-{name}")  # noqa: PTH100 (does not follow links)
    os.environ["DISTPROF_OUT"] = found
    if os.environ.get("RANK", "0") == "0":
        say(f"recording to {found}")
    return found


def _this_rank() -> str:
    return f"rank {os.environ.get('RANK', '0')}"


def run_script(script: str) -> None:
    """Executes a file as `__main__` with its folder first on sys.path; a folder or archive by its `__main__.py`."""
    if pkgutil.get_importer(script) is not None:
        sys.path[:not sys.flags.safe_path] = [script]
        _new_main()
        _run_as_main("__main__", alter_argv=False)
        return
    script = os.path.abspath(script)  # noqa: PTH100 (like __file__ in Python, does not follow links)
    _look_first_in(Path(script).resolve().parent)
    is_compiled = script.endswith(".pyc")
    kind = importlib.machinery.SourcelessFileLoader if is_compiled else importlib.machinery.SourceFileLoader
    with io.open_code(script) as file:
        code = pkgutil.read_code(file) if is_compiled else compile(
            file.read(), script, "exec", dont_inherit=True)  # not with the __future__ imports of this file
    exec(code, _new_main(__file__=script, __cached__=None, __loader__=kind("__main__", script)))


def run_module(name: str) -> None:
    """Executes a module like `python -m`."""
    _look_first_in(Path.cwd())
    _new_main()
    _run_as_main(name)


_run_as_main = vars(runpy)["_run_module_as_main"]  # the function that Python calls for -m


def _new_main(**attributes: Any) -> dict[str, Any]:
    main = types.ModuleType("__main__")
    main.__dict__.update(attributes, __builtins__=builtins)
    if sys.version_info < (3, 14):
        vars(main).update(__annotations__={})
    sys.modules["__main__"] = main
    return main.__dict__


def _look_first_in(folder: Path) -> None:
    if not sys.flags.safe_path:  # with it, Python does not add the folder
        sys.path[0] = os.fspath(folder)


def _frames_of_script(error: BaseException) -> types.TracebackType | None:
    """Returns the traceback without the outer frames of this file and of runpy."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename in (__file__, runpy.__file__, "<frozen runpy>"):
        trace = trace.tb_next
    return trace


def main() -> None:
    """Entry point of every rank."""
    worker = Worker()
    try:
        worker.run(sys.argv[1:])
    except SystemExit:
        raise
    except BaseException as error:  # prints it as Python would
        shown = error.with_traceback(_frames_of_script(error))
        sys.last_type, sys.last_value, sys.last_traceback = type(shown), shown, shown.__traceback__
        sys.excepthook(type(shown), shown, shown.__traceback__)
        if isinstance(error, KeyboardInterrupt):  # Python then ends by SIGINT
            sys.excepthook = lambda *_: None
            raise
        sys.exit(1)


if __name__ == "__main__":
    main()
