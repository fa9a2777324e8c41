"""Compiles the merge engine where there is a C compiler; without one distprof works, and merges slowly."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class EngineBuild(BuildHookInterface):
    """Runs before a wheel is packed or an editable install is made."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compiles; a wheel that holds machine code gets the name of the platform."""
        if self.target_name != "wheel":
            return
        script = Path(self.root) / "distprof" / "merge" / "scan" / "compiled" / "build.py"
        if runpy.run_path(str(script))["build"]() is not None and version != "editable":
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{_platform()}"


def _platform() -> str:
    from packaging.tags import sys_tags

    return next(tag.platform for tag in sys_tags() if tag.platform.startswith("linux") or "linux" not in tag.platform)
