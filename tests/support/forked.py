"""Forks Python processes from a process that has imported torch, if this makes no difference to what is tested."""

from __future__ import annotations

import os
import select
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from subprocess import Popen
from typing import Any, NamedTuple

from support.fork_server import Request
from support.processes import clean_environ

READ_AT_START = (
    "PYTHON", "LD_", "OMP_", "MKL_", "KMP_", "OPENBLAS_", "TORCH", "PYTORCH_", "CUDA_", "MALLOC_", "FAKETIME")
"""Prefixes of environment variables that Python, torch or the C library read while they load."""
READ_LATER = (
    "CUDA_VISIBLE_DEVICES", "FAKETIME_SHARED", "PYTHONDONTWRITEBYTECODE", "PYTHONPATH", "PYTORCH_NVML_BASED_CUDA_CHECK",
    "TORCHELASTIC_", "TORCHINDUCTOR_CACHE_DIR", "TORCH_NCCL_", "TORCH_FR_", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE")
"""Prefixes of those that are read later, in forked as in started processes: set by launchers, inductor and others."""
TESTS = str(Path(__file__).parents[1])
BEGIN = "import sys; sys.path.insert(0, sys.argv[3]); from support.fork_server import main; main()"
PLAIN = {"stdin", "stdout", "stderr", "cwd", "env", "text", "encoding", "errors", "start_new_session", "bufsize",
         "pass_fds"}
"""Arguments of `subprocess.Popen` that are supported for forked processes."""


class Forked(Popen):
    """Like `subprocess.Popen`, but the process is a child of the server, which reports its status."""

    def _execute_child(self, args: Sequence[object], executable: Any, preexec_fn: Any, close_fds: Any, pass_fds: Any,
                       cwd: Any, env: Mapping[str, str] | None, startupinfo: Any, creationflags: Any, shell: Any,
                       p2cread: int, p2cwrite: int, c2pread: int, c2pwrite: int, errread: int, errwrite: int,
                       restore_signals: Any, gid: Any, gids: Any, uid: Any, umask: Any, start_new_session: bool,
                       *_: Any) -> None:
        environ = dict(os.environ if env is None else env)
        request = Request([os.fspath(one) for one in args[1:]], os.fspath(cwd or Path.cwd()), environ,
                          start_new_session, [0, 1, 2, *pass_fds])
        self._end = socket.socket(socket.AF_UNIX)
        self._end.connect(_server_like(environ).address)
        streams = [given if given != -1 else own for own, given in enumerate((p2cread, c2pwrite, errwrite))]
        request.send(self._end, [*streams, *pass_fds])
        self.pid = self._told()
        self._child_created = True
        self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)

    def _told(self) -> int:
        return struct.unpack("!i", self._end.recv(4, socket.MSG_WAITALL))[0]

    def _internal_poll(self, _deadstate: int | None = None, *_: Any) -> int | None:
        try:
            return self._wait(0)
        except subprocess.TimeoutExpired:
            return None

    def _wait(self, timeout: float | None) -> int:
        with self._waitpid_lock:
            if self.returncode is None:
                ready = select.poll()
                ready.register(self._end, select.POLLIN)
                if not ready.poll(None if timeout is None else max(0, timeout) * 1000):
                    raise subprocess.TimeoutExpired(self.args, timeout or 0)
                self.returncode = self._told()
                self._end.close()
        return self.returncode


def popen(args: Sequence[object], **options: Any) -> Popen:
    """Like `subprocess.Popen(args, **options)`, but forks if this makes no difference."""
    return (Forked if _is_alike(args, options) else Popen)(args, **options)


def run(args: Sequence[object], *, timeout: float | None = None, input: Any = None, capture_output: bool = False,  # noqa: A002
        check: bool = False, **options: Any) -> subprocess.CompletedProcess:
    """Like `subprocess.run(args, ...)`, but forks if this makes no difference."""
    if capture_output:
        options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    if input is not None:
        options["stdin"] = subprocess.PIPE
    with popen(args, **options) as process:
        try:
            out, err = process.communicate(input, timeout)
        except BaseException:
            process.kill()
            raise
    done = subprocess.CompletedProcess(args, process.returncode, out, err)
    if check:
        done.check_returncode()
    return done


def _is_alike(args: Sequence[object], options: Mapping[str, Any]) -> bool:
    """Returns whether the program is this Python, and needs nothing that is decided before a process is forked."""
    words = [str(word) for word in args]
    assert not words[0].startswith("python"), f"`{words[0]}` may be a Python without distprof: sys.executable"
    first = words[2] if words[1:2] == ["-u"] else words[1]
    environ = options["env"] if options.get("env") is not None else os.environ
    return (words[0] == sys.executable and (not first.startswith("-") or first in ("-m", "-c"))
            and {name for name, value in options.items() if value is not None} <= PLAIN
            and (like := _server_like(environ)) is not None
            and not any(Path(folder, "sitecustomize.py").exists() for folder in
                        _python_path(environ).difference(_python_path(like.environ))))


def _python_path(environ: Mapping[str, str]) -> set[str]:
    return set(environ.get("PYTHONPATH", "").split(os.pathsep))


def _server_like(environ: Mapping[str, str]) -> Server | None:
    """Returns the server that was started with equal values of the variables that are read at start; None for none."""
    server()
    return next((one for one in _USED if _read_at_start(one.environ) == _read_at_start(environ)), None)


def _read_at_start(environ: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environ.items()
            if name.startswith(READ_AT_START) and not name.startswith(READ_LATER)}


class Server(NamedTuple):
    """The address of a fork server, and the environment with which it was started."""

    address: str
    environ: Mapping[str, str]
    process: Popen | None = None
    owner: int | None = None
    """A pipe that closes when this process ends, which ends the server."""


_USED: list[Server] = []


def use(server: Server) -> None:
    """Makes this process request others from a server."""
    _USED.append(server)


def use_first(server: Server) -> None:
    """Makes this process request others from a server, preferred over earlier ones."""
    _USED.insert(0, server)


def server() -> Server:
    """Returns the server of this process: the one that forked it, or a new one that ends with it."""
    if not _USED:
        use(_started(clean_environ()))
    return _USED[0]


@contextmanager
def server_with(environ: Mapping[str, str]) -> Iterator[None]:
    """Makes processes in the block fork from a server that was started with more environment variables."""
    with _used(_started(clean_environ() | environ)):
        yield


@contextmanager
def server_that_loads(*names: str) -> Iterator[None]:
    """Makes processes in the block fork from a server that has imported more modules, if they are installed:
    frameworks, whose import takes longer than their jobs."""
    address, environ = f"{tempfile.mkdtemp()}/fork", clean_environ()
    process = popen([sys.executable, "-c", BEGIN, address, "0", TESTS, *names], env=environ, stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE)
    assert process.stdin is not None
    with _used(_answers(process, Server(address, server().environ, process, os.dup(process.stdin.fileno())))):
        process.stdin.close()
        process.stdin = None
        yield


@contextmanager
def _used(own: Server) -> Iterator[None]:
    use_first(own)
    try:
        yield
    finally:
        _USED.remove(own)
        _end(own)


PROGRAM = """#!{python} -S
import os, sys
os.environ.pop("LD_LIBRARY_PATH", None)  # mpirun sets it for libraries of its own
sys.path.insert(0, {tests!r})
from support.forked import Server, popen, use
use(Server({address!r}, {environ!r}))
code = popen([sys.executable, *{words!r}, *sys.argv[1:]]).wait()
sys.exit(code if code >= 0 else 128 - code)
"""


def write_program(path: Path, *words: str) -> None:
    """Writes an executable that does what `python WORDS` does."""
    path.write_text(PROGRAM.format(python=sys.executable, tests=TESTS, words=words, address=server().address,
                                   environ=dict(server().environ)))
    path.chmod(0o755)


def close() -> None:
    """Ends the server of this process; processes that it forked and that still run become children of this one."""
    for one in _USED:
        _end(one)
    _USED.clear()


def _end(server: Server) -> None:
    if server.process is not None and server.owner is not None:
        os.close(server.owner)
        server.process.communicate()


def _started(environ: Mapping[str, str]) -> Server:
    address = f"{tempfile.mkdtemp()}/fork"
    read, write = os.pipe()
    process = Popen(
        [sys.executable, "-c", BEGIN, address, str(read), TESTS], env=environ, pass_fds=[read],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    os.close(read)
    return _answers(process, Server(address, environ, process, write))


def _answers(process: Popen, server: Server) -> Server:
    assert process.stdout is not None and b"\n" in iter(process.stdout.readline, b""), "the fork server did not start"
    return server
