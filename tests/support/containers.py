"""Commands in surroundings that lack something: namespaces of their own, where this process may make them."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from support.jobs import PATIENCE_S, clean_environ


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """What is different from here."""

    namespaces: tuple[str, ...] = ()
    """Flags of `unshare`; none: no new ones, and no need to be root."""
    setup: str = ""
    """Shell commands before the command; $W is its folder, which can be written to."""
    user: int | None = None
    """A user id without a name, under which the command runs."""
    without: tuple[str, ...] = ()
    """Variables that are not set."""
    environ: dict[str, str] = field(default_factory=dict)

    @property
    def refused(self) -> str | None:
        """Why this process may not have them."""
        if not self.namespaces and self.user is None:
            return None
        if os.getuid():
            return "only root may make namespaces and change the user"
        told = _unshare_refuses(self.namespaces)
        return f"unshare is refused: {told}" if told else None

    def run(self, folder: Path, *command: object, cwd: str = "") -> subprocess.CompletedProcess:
        """Runs a command in a folder that lies at /srv where there are namespaces of mounts; $W is its place."""
        place = "/srv" if "--mount" in self.namespaces else os.fspath(folder)
        words = [str(word).replace("$W", place) for word in command]
        if self.user is not None:
            # its files need not be those of everybody: Python may lie in the home of root
            words = ["setpriv", f"--reuid={self.user}", f"--regid={self.user}", "--clear-groups",
                     "--inh-caps=+dac_override", "--ambient-caps=+dac_override", *words]
        script = f'{self._mount_folder(folder)}\nW={place}\n{self.setup}\ncd {cwd or "$W"}\nexec "$@"'
        outer = ["unshare", *self.namespaces] if self.namespaces else []
        environ = {name: value for name, value in clean_environ().items() if name not in self.without}
        environ |= {name: value.replace("$W", place) for name, value in self.environ.items()}
        return subprocess.run([*outer, "sh", "-ec", script, "sh", *words], env=environ, capture_output=True, text=True,
                              timeout=PATIENCE_S, check=False)

    def _mount_folder(self, folder: Path) -> str:
        # folders of tests are closed to other users
        lines = [f"mount --bind {folder} /srv"] if "--mount" in self.namespaces else []
        lines += [f"chown -R {self.user} {folder}"] if self.user is not None else []
        return "\n".join(lines)


@cache
def _unshare_refuses(namespaces: tuple[str, ...]) -> str:
    tried = subprocess.run(["unshare", *namespaces, "true"], capture_output=True, text=True, check=False)
    return tried.stderr.strip() if tried.returncode else ""
