"""Waits for torch in every Python that starts with DISTPROF_OUT set; installed beside the package, for its start hook.

`distprof-start.pth` imports this before anything else runs, so it imports nothing that Python has not loaded by then.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # that of `typing`, which takes milliseconds
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec


class UntilTorch:
    """Import hook that is called for every module, and hands over to `distprof.launch.start_hook` at torch."""

    handed_over = False

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Finds torch as Python would, with what watches for the start of a training."""
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
        except Exception:  # noqa: BLE001 (no script fails because of us; its import of torch will say what is wrong)
            return None


def begin() -> None:
    """Waits, in a process that is not one of ours."""
    if os.environ.get("DISTPROF_DISABLE") or any(
            word.endswith(("distprof.launch.worker", "launch/worker.py")) for word in sys.orig_argv):
        return
    os.environ["DISTPROF_OUT"] = os.path.abspath(os.environ["DISTPROF_OUT"])  # noqa: PTH100 (pathlib takes its time)
    sys.meta_path.insert(0, UntilTorch())


if os.environ.get("DISTPROF_OUT"):
    begin()
