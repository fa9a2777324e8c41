"""Waits for the import of torch in every Python process with DISTPROF_OUT set; installed beside the package.

`distprof-start.pth` imports this before anything else runs, so it imports nothing that Python has not loaded by then.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # instead of the one in `typing`, whose import takes milliseconds
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec


class UntilTorch:
    """Import hook that is called for every module; when torch is imported, `distprof.launch.start_hook` takes over."""

    handed_over = False

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Finds torch as Python would, and installs the hook that waits for the start of training."""
        if name != "torch" or self.handed_over:
            return None
        self.handed_over = True
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        first = [] if sys.flags.safe_path else sys.path[:1]  # the folder of the script may have a distprof.py
        try:
            del sys.path[:len(first)]
            try:
                from distprof.launch.start_hook import watching
            finally:
                sys.path[:0] = first
            return watching().find_spec(name, path, target)
        except Exception:  # noqa: BLE001 (distprof must not break the script; the import of torch reports the error)
            return None


def begin() -> None:
    """Starts to wait, except in distprof's own worker, which records by itself, and with DISTPROF_DISABLE."""
    if os.environ.get("DISTPROF_DISABLE") or any(
            word.endswith(("distprof.launch.worker", "launch/worker.py")) for word in sys.orig_argv):
        return
    os.environ["DISTPROF_OUT"] = os.path.abspath(os.environ["DISTPROF_OUT"])  # noqa: PTH100 (pathlib takes its time)
    sys.meta_path.insert(0, UntilTorch())


if os.environ.get("DISTPROF_OUT"):
    begin()
