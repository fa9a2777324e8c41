"""An OpenSSH server for the user who runs the tests, with its own keys and home, reachable only from this machine."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from support.jobs import PATIENCE_S
from support.ports import free_port

PATH = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"))
CONF = """
Port {port}
ListenAddress 127.0.0.1
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/authorized_keys
StrictModes no
UsePAM no
PidFile none
PermitRootLogin yes
PasswordAuthentication no
KbdInteractiveAuthentication no
Subsystem sftp internal-sftp{more}
"""


def why_not() -> str:
    """Returns what is missing on this machine; '' if nothing."""
    if shutil.which("sshd", path=PATH) is None or shutil.which("ssh-keygen") is None:
        return "sshd: not installed (Debian: openssh-server)"
    if os.geteuid() == 0 and subprocess.run([*_before(), "true"], capture_output=True, check=False).returncode:
        return "sshd: root may not make mount namespaces here"
    try:
        pwd.getpwuid(os.geteuid())
    except KeyError:
        return "sshd: this user has no name"
    return ""


def _before() -> Sequence[str]:
    """Returns a command prefix; for root, it creates a folder in /run that sshd needs, in a private mount namespace."""
    apart = 'mount -t tmpfs none /run && mkdir -m 755 /run/sshd && exec "$@"'
    return ("unshare", "--mount", "sh", "-c", apart, "--") if os.geteuid() == 0 else ()


@dataclass
class SshServer:
    """An SSH server and its process."""

    folder: Path
    port: int
    process: subprocess.Popen[bytes] | None = None

    @property
    def home(self) -> Path:
        """Home directory of a user with access to the server."""
        return self.folder / "home"

    @property
    def host(self) -> str:
        """User, host and port as in a URL."""
        return f"{pwd.getpwuid(os.geteuid()).pw_name}@127.0.0.1:{self.port}"

    def environ(self) -> dict[str, str]:
        """Returns environment variables that make a client that user."""
        return {"HOME": str(self.home), "SSH_AUTH_SOCK": ""}

    def start(self, *, more: str = "") -> None:
        """Starts the server; `more` are options of the SFTP server."""
        conf = self.folder / "conf"
        conf.write_text(CONF.format(port=self.port, folder=self.folder, more=more and f" {more}"))
        command = [*_before(), shutil.which("sshd", path=PATH) or "sshd", "-D", "-E", self.folder / "log", "-f", conf]
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                        stderr=subprocess.DEVNULL, start_new_session=True)
        until = time.monotonic() + PATIENCE_S
        while not _answers(self.port):
            assert self.process.poll() is None, (self.folder / "log").read_text()
            assert time.monotonic() < until
            time.sleep(0.02)

    def kill(self) -> None:
        """Kills the server and all its connections."""
        if self.process is not None:
            _, *connections = tree = _tree(self.process.pid)
            for pid in reversed(tree):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self.process.wait()
            for pid in connections:  # they are children of this process, if tests adopt orphans
                with suppress(ChildProcessError):
                    os.waitpid(pid, 0)
            self.process = None


@contextmanager
def ssh_server(folder: Path, *, more: str = "") -> Iterator[SshServer]:
    """Creates keys and starts a server that ends after the block."""
    (folder / "home" / ".ssh").mkdir(parents=True)
    for key in (folder / "host_key", folder / "home" / ".ssh" / "id_ed25519"):
        make_key(key)
    shutil.copy(folder / "home" / ".ssh" / "id_ed25519.pub", folder / "authorized_keys")
    port = free_port()
    server = SshServer(folder, port)
    kind, key = (folder / "host_key.pub").read_text().split()[:2]
    (server.home / ".ssh" / "known_hosts").write_text(f"[127.0.0.1]:{port} {kind} {key}\n")
    try:
        server.start(more=more)
        yield server
    finally:
        server.kill()


def make_key(file: Path) -> None:
    """Creates a new key pair; replaces an earlier one."""
    file.unlink(missing_ok=True)
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", file], check=True)


def _answers(port: int) -> bool:
    with socket.socket() as asked:
        asked.settimeout(10)
        try:
            return asked.connect_ex(("127.0.0.1", port)) == 0 and asked.recv(4) == b"SSH-"
        except OSError:  # not yet
            return False


def _tree(pid: int) -> list[int]:
    """Returns a process and its descendants; each connection has its own processes."""
    try:
        children = [int(child) for task in Path(f"/proc/{pid}/task").iterdir()
                    for child in (task / "children").read_text().split()]
    except FileNotFoundError:
        return []
    return [pid, *(one for child in children for one in _tree(child))]
