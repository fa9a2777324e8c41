"""Puts the merge engine into wheels, where there is a C compiler; without it distprof works, and merges slowly."""

from __future__ import annotations

import os
import runpy
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PLATFORM = "DISTPROF_WHEEL_PLATFORM"
"""Environment variable: the platform that CC compiles for, as the name of the wheel has it; `any` for no engine. Unless
it is set, the wheel is for this machine, and has no engine where there is no compiler."""


class EngineBuild(BuildHookInterface):
    """Runs before a wheel is packed or an editable install is made."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compiles, for a wheel out of the tree: what lies there may be of another platform."""
        platform = os.environ.get(PLATFORM)
        if self.target_name != "wheel" or platform == "any":
            return
        build: Callable[..., Path | None] = runpy.run_path(
            str(Path(self.root) / "distprof" / "compiled" / "build.py"))["build"]
        if version == "editable":
            build()
            return
        self._folder = TemporaryDirectory(prefix="distprof-engine-")
        library = build(Path(self._folder.name) / "_compiled.so", wheel=platform and platform.split(".")[0])
        if library is not None:
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{platform or _this_platform()}"
            build_data["force_include"][str(library)] = "distprof/compiled/_compiled.so"
        elif platform:
            self.app.abort(f"distprof: a wheel for {platform} needs its engine  hint: CC names the compiler")

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Removes what is packed by now."""
        if hasattr(self, "_folder"):
            self._folder.cleanup()


def _this_platform() -> str:
    from packaging.tags import sys_tags

    return next(tag.platform for tag in sys_tags() if tag.platform.startswith("linux") or "linux" not in tag.platform)
