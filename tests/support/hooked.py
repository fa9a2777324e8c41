"""A Python whose start hook is installed, as pip leaves it: every process of it looks for DISTPROF_OUT."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from distprof import launch
from support.jobs import PATIENCE_S, ROOT, clean_environ

HOOK = tuple(Path(launch.__file__).with_name(name) for name in ("distprof-start.pth", "distprof_start.py"))


def make_hooked(folder: Path) -> None:
    """Makes a virtual environment with all that this Python has, and the hook."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True, env=clean_environ(),
                   timeout=PATIENCE_S)
    site = folder / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    (site / "a-paths.pth").write_text(f"{ROOT}\n{sysconfig.get_paths()['purelib']}\n")
    for file in HOOK:
        shutil.copy(file, site)


def run_hooked(python: Path, *arguments: object, ok: bool = True, **environ: str) -> subprocess.CompletedProcess:
    """Runs a script, or a launcher, that knows nothing of us."""
    done = subprocess.run([python, *map(str, arguments)], capture_output=True, text=True, timeout=PATIENCE_S,
                          env=clean_environ() | environ, check=False)
    assert done.returncode == 0 or not ok, done.stderr
    return done
