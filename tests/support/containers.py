"""Runs commands in restricted environments, in their own namespaces if this process may create them."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from support.jobs import PATIENCE_S, clean_environ


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """How an environment differs from that of this process."""

    namespaces: tuple[str, ...] = ()
    """Flags of `unshare`; empty: no new namespaces, and root is not needed."""
    setup: str = ""
    """Shell commands before the command; $W is its writable folder."""
    user: int | None = None
    """User id, without a name, under which the command runs."""
    without: tuple[str, ...] = ()
    """Environment variables that are removed."""
    environ: dict[str, str] = field(default_factory=dict)

    @property
    def refused(self) -> str | None:
        """Why this process cannot create the environment; None if it can."""
        if not self.namespaces and self.user is None:
            return None
        if os.getuid():
            return "only root may make namespaces and change the user"
        told = _unshare_refuses(self.namespaces)
        return f"unshare is refused: {told}" if told else None

    def run(self, folder: Path, *command: object, cwd: str = "") -> subprocess.CompletedProcess:
        """Runs a command in a folder, which is mounted at /srv in a mount namespace; $W is its path."""
        place = "/srv" if "--mount" in self.namespaces else os.fspath(folder)
        words = [str(word).replace("$W", place) for word in command]
        if self.user is not None:
            # needs access to files of other users: Python may be in root's home directory
            words = ["setpriv", f"--reuid={self.user}", f"--regid={self.user}", "--clear-groups",
                     "--inh-caps=+dac_override", "--ambient-caps=+dac_override", *words]
        script = f'{self._mount_folder(folder)}\nW={place}\n{self.setup}\ncd {cwd or "$W"}\nexec "$@"'
        outer = ["unshare", *self.namespaces] if self.namespaces else []
        environ = {name: value for name, value in clean_environ().items() if name not in self.without}
        environ |= {name: value.replace("$W", place) for name, value in self.environ.items()}
        return subprocess.run([*outer, "sh", "-ec", script, "sh", *words], env=environ, capture_output=True, text=True,
                              timeout=PATIENCE_S, check=False)

    def _mount_folder(self, folder: Path) -> str:
        # folders of tests are not readable for other users
        lines = [f"mount --bind {folder} /srv"] if "--mount" in self.namespaces else []
        lines += [f"chown -R {self.user} {folder}"] if self.user is not None else []
        return "\n".join(lines)


@cache
def _unshare_refuses(namespaces: tuple[str, ...]) -> str:
    tried = subprocess.run(["unshare", *namespaces, "true"], capture_output=True, text=True, check=False)
    return tried.stderr.strip() if tried.returncode else ""
