"""A process that has imported torch and distprof, and forks the Python processes that tests request, because importing
torch takes longer than most of what is tested.

A forked process behaves like a started one, except for what is decided while Python and torch load: the hash seed, and
environment variables that are read then (`forked.py` starts a real process if these differ).
"""

from __future__ import annotations

import atexit
import builtins
import ctypes
import fcntl
import gc
import importlib
import importlib.abc
import importlib.machinery
import io
import json
import os
import pkgutil
import runpy
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import types
import weakref
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

LOADED = (
    "torch", "torch._dynamo", "torch.distributed.run", "torch.distributed.fsdp", "torch.distributed.pipelining",
    "torch.distributed.tensor.parallel", "torch.distributed.elastic.agent.server.local_elastic_agent",
    "torch.distributed.elastic.rendezvous.c10d_rendezvous_backend", "torch.nn.attention.flex_attention",
    "torch.nn.parallel.distributed", "torch.profiler", "torch.utils.flop_counter", "pyarrow.parquet",
    "distprof.launch.cli", "distprof.launch.commands.run", "distprof.launch.job")
LOADED_IF_INSTALLED = (
    "distributed.cli.dask_scheduler", "distributed.cli.dask_worker", "distributed.nanny", "s3fs")
WORKER = ("distprof.launch.worker", "launch/worker.py")
REST_S = 0.05
MOST_FILES = 32
HOST = "OF_HOST"
"""Environment variable with the id of a process whose network and host name a forked process uses."""
SPAWNED = "FORK_WHAT_IS_SPAWNED"
"""Environment variable with which multiprocessing forks processes that it would start as new Pythons (`spawn`)."""
ROOMS = ("recording", "counting", "profiling", "storage", "summaries", "merge", "reporters")
"""Packages of distprof that ranks, and commands that read runs, import."""


class Request(NamedTuple):
    """A requested Python process: arguments after `python`, working directory, environment."""

    words: list[str]
    folder: str
    environ: dict[str, str]
    new_session: bool
    numbers: list[int]
    """Descriptors of its open files: 0, 1, 2, and those that it inherits in addition."""

    @classmethod
    def received(cls, connection: socket.socket) -> tuple[Request, list[int]]:
        """Receives a request and its open files."""
        head, files, _, _ = socket.recv_fds(connection, 4, MOST_FILES)
        with connection.makefile("rb") as sent:
            return cls(*json.loads(sent.read(*struct.unpack("!I", head)))), files

    def send(self, connection: socket.socket, files: list[int]) -> None:
        text = json.dumps(self).encode()
        socket.send_fds(connection, [struct.pack("!I", len(text))], files)
        connection.sendall(text)


def serve(listener: socket.socket, owner: int) -> Request | None:
    """Forks a process for each request.

    Args:
        listener: Socket for requests; each gets the process id, and the status when the process has ended.
        owner: A pipe that closes when the owner of this server ends.

    Returns:
        In each forked process, the request to run; in the server None, at its end.
    """
    running: dict[int, tuple[int, socket.socket]] = {}
    waiting = select.poll()
    waiting.register(listener)
    waiting.register(owner)
    while True:
        for file, _ in waiting.poll():
            if file == owner:
                return None
            if file != listener.fileno():
                waiting.unregister(file)
                _tell_end(file, *running.pop(file))
                continue
            connection = listener.accept()[0]
            request, files = Request.received(connection)
            child = os.fork()
            if not child:
                others = [listener, connection, *(to for _, to in running.values())]
                _keep(files, request.numbers, above=max(owner, *running, *(one.fileno() for one in others), 2))
                for one in others:
                    one.detach()
                return request
            for one in files:
                os.close(one)
            ended = os.pidfd_open(child)
            running[ended] = child, connection
            waiting.register(ended, select.POLLIN)
            _tell(connection, child)


def _keep(files: list[int], numbers: list[int], above: int) -> None:
    """Moves files to these descriptors and closes all others; those other than `files` are at most `above`."""
    begin = max(above, *files, *numbers) + 1
    copies = [fcntl.fcntl(file, fcntl.F_DUPFD, begin) for file in files]
    os.closerange(3, begin)
    for copy, number in zip(copies, numbers, strict=True):
        os.dup2(copy, number)
    os.closerange(begin, max(copies) + 1)


def _tell_end(file: int, child: int, connection: socket.socket) -> None:
    _tell(connection, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    connection.close()
    os.close(file)


def _tell(connection: socket.socket, number: int) -> None:
    try:
        connection.sendall(struct.pack("!i", number))
    except BrokenPipeError:
        pass  # the process that sent the request has ended


def become(request: Request) -> NoReturn:
    """Runs a request in this process, which was forked for it."""
    if request.new_session:
        os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if holder := request.environ.get(HOST):
        _enter(holder)
    os.chdir(request.folder)
    os.environ.clear()
    os.environ.update(request.environ)
    sys.path[:0] = filter(None, request.environ.get("PYTHONPATH", "").split(os.pathsep))
    sys.dont_write_bytecode = bool(request.environ.get("PYTHONDONTWRITEBYTECODE"))
    words = request.words
    unbuffered = words[0] == "-u"
    words = words[unbuffered:]
    _open_streams(unbuffered=unbuffered or bool(request.environ.get("PYTHONUNBUFFERED")))
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed()
    if any(name.startswith("DASK_") for name in request.environ):
        sys.modules["dask.config"].refresh()
    if request.environ.get(SPAWNED):
        _fork_what_is_spawned()
    main = types.ModuleType("__main__")
    main.__dict__.update(__builtins__=builtins)
    sys.modules["__main__"] = main
    sys.argv = words[words[0] in ("-m", "-c"):]
    sys.orig_argv = [sys.executable, *request.words]
    _wait_for_torch(request)
    _end(_exit_code(request, words, main))


def _enter(holder: str) -> None:
    """Moves this process, which has no other threads, to the network and UTS namespaces of another one."""
    libc = ctypes.CDLL(None, use_errno=True)
    for kind in ("net", "uts"):
        file = os.open(f"/proc/{holder}/ns/{kind}", os.O_RDONLY)
        if libc.setns(file, 0):
            raise OSError(ctypes.get_errno(), f"cannot enter the {kind} of process {holder}")
        os.close(file)


class _LoadedTorch(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Import hook that returns the torch that is already loaded, for the hook that waits for its import."""

    def __init__(self) -> None:
        self._torch = sys.modules.pop("torch")
        self._spec = self._torch.__spec__

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        return importlib.machinery.ModuleSpec("torch", self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return self._torch

    def exec_module(self, module: types.ModuleType) -> None:
        module.__spec__ = self._spec


def _wait_for_torch(request: Request) -> None:
    """Makes the worker, or the hook of `distprof-start.pth`, wait for the import of torch."""
    waits = any(word.endswith(WORKER) for word in request.words)
    if request.environ.get("DISTPROF_OUT"):
        before = len(sys.meta_path)
        sys.modules.pop("distprof_start", None)
        importlib.import_module("distprof_start")
        waits |= len(sys.meta_path) > before
    if waits:
        sys.meta_path.insert(sys.meta_path.index(importlib.machinery.BuiltinImporter), _LoadedTorch())


def _exit_code(request: Request, words: list[str], main: types.ModuleType) -> int:
    """Runs a program, reports its end as Python does, and returns its exit code."""
    try:
        _run(request, words, main)
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except BaseException as error:
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename in (__file__, runpy.__file__, "<frozen runpy>"):
            trace = trace.tb_next
        sys.last_value = error
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        return -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    return 0


def _end(code: int) -> NoReturn:
    """Ends this process as Python does, but without destroying all modules, which takes longer than many tests."""
    threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):  # the stream may be None
            stream.flush()
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code & 0xFF)


def _run(request: Request, words: list[str], main: types.ModuleType) -> None:
    if words[0] == "-m":
        sys.path.insert(0, request.folder)
        sys.modules.pop(words[1], None)  # runpy warns of a module that is already imported
        runpy._run_module_as_main(words[1])
    elif words[0] == "-c":
        sys.path.insert(0, "")
        sys.argv[0] = "-c"
        exec(compile(words[1], "<string>", "exec", dont_inherit=True), main.__dict__)
    else:
        sys.path.insert(0, os.fspath(Path(words[0]).resolve().parent))
        main.__file__ = os.path.abspath(words[0])  # noqa: PTH100 (does not follow links)
        main.__loader__ = importlib.machinery.SourceFileLoader("__main__", main.__file__)
        exec(compile(Path(words[0]).read_bytes(), main.__file__, "exec", dont_inherit=True), main.__dict__)


def _open_streams(*, unbuffered: bool) -> None:
    """Opens standard streams as Python does, with or without -u."""
    sys.stdin = sys.__stdin__ = open(  # noqa: SIM115
        0, encoding="utf-8", errors="surrogateescape", closefd=False)
    for number, name in ((1, "stdout"), (2, "stderr")):
        binary = open(number, "wb", 0 if unbuffered else -1, closefd=False)  # noqa: SIM115
        lines = not unbuffered and (name == "stderr" or binary.isatty())
        text = io.TextIOWrapper(binary, "utf-8", "surrogateescape" if name == "stdout" else "backslashreplace",
                                line_buffering=lines, write_through=unbuffered)
        setattr(sys, name, text)
        setattr(sys, f"__{name}__", text)


def load() -> None:
    """Imports what ranks, their launchers and commands that read runs need."""
    gc.disable()  # imports create no garbage
    for name in LOADED:
        importlib.import_module(name)
    for name in LOADED_IF_INSTALLED:
        with suppress(ModuleNotFoundError):
            importlib.import_module(name)
    for room in ROOMS:
        package = importlib.import_module(f"distprof.{room}")
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            with suppress(ModuleNotFoundError):  # it needs an optional package
                importlib.import_module(module.name)
    _let_gloo_rest()
    _forget_who_records()
    _leave_ends_to_the_server()
    _fork_beside_jobs()
    gc.collect()
    gc.freeze()
    gc.enable()


def _load_more(names: list[str], scripts: str) -> None:
    """Imports frameworks that are installed, and makes the launcher of Lightning fork as well."""
    from support import forked

    sys.path.insert(0, scripts)
    for name in names:
        with suppress(ModuleNotFoundError):
            importlib.import_module(name)
    sys.path.remove(scripts)
    if launcher := sys.modules.get("lightning.pytorch.strategies.launchers.subprocess_script"):
        launcher.subprocess = types.SimpleNamespace(Popen=forked.popen)
    gc.collect()
    gc.freeze()


def _let_gloo_rest() -> None:
    """Makes ranks wait a moment before they destroy a process group.

    A thread of gloo takes the GIL to free its last work. The destructor of a DDP model waits for that thread while it
    holds the GIL: a deadlock (torch 2.13, also without distprof). A forked rank gets there sooner than a started one.
    """
    import torch.distributed as public
    from torch.distributed import distributed_c10d as home

    original = home.destroy_process_group

    @wraps(original)
    def destroy_process_group(*args: Any, **kwargs: Any) -> None:
        time.sleep(REST_S)
        original(*args, **kwargs)

    home.destroy_process_group = public.destroy_process_group = destroy_process_group


def _forget_who_records() -> None:
    """Makes torchrun log its events without inspecting the source of its callers, which is most of its work."""
    from torch.distributed.elastic.rendezvous import dynamic_rendezvous

    dynamic_rendezvous.get_method_name = lambda depth=2: "of a test"


def _leave_ends_to_the_server() -> None:
    """Skips unregistering torch's 177 operator libraries and counting compilations at exit: two thirds of the time of a
    short rank."""
    for finalizer in list(weakref.finalize._registry):
        finalizer.atexit = False
    atexit.unregister(importlib.import_module("torch._dynamo.utils").dump_compile_times)


def _fork_beside_jobs() -> None:
    """Makes launchers fork the processes beside and after a job: the watch, the upload and the merge."""
    from distprof.launch import final_merge
    from distprof.launch.upload import job_upload
    from distprof.launch.watching import watch_process
    from support import forked

    forking = types.SimpleNamespace(**vars(subprocess) | {"Popen": forked.popen})
    final_merge.subprocess = job_upload.subprocess = watch_process.subprocess = forking


def _fork_what_is_spawned() -> None:
    """Makes `spawn` of multiprocessing request processes from the server.

    They are children of the server, not of the process that spawns them.
    """
    from multiprocessing import popen_spawn_posix, util

    from support import forked

    start, spawned = util.spawnv_passfds, {}

    def spawnv_passfds(path: bytes, words: list[Any], files: list[int]) -> int:
        if "--multiprocessing-fork" not in words:
            return start(path, words, files)  # the resource tracker
        process = forked.popen(list(map(os.fsdecode, (path, *words[1:]))), pass_fds=files)
        spawned[process.pid] = process
        return process.pid

    class Popen(popen_spawn_posix.Popen):
        def poll(self, flag: int = os.WNOHANG) -> int | None:
            return spawned[self.pid].poll() if flag else spawned[self.pid].wait()

    util.spawnv_passfds, popen_spawn_posix.Popen = spawnv_passfds, Popen


def main() -> None:
    """Runs the server. Arguments are the path of the socket to create, a pipe of the owner, the folder of tests, and,
    in a server forked from another one, additional modules to load."""
    from support import forked

    address, owner, tests, *more = sys.argv[1], int(sys.argv[2]), *sys.argv[3:]
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.path.pop(0)
    if more:
        _load_more(more, f"{tests}/scripts")
    else:
        load()
    from torch.distributed.elastic.multiprocessing.subprocess_handler import subprocess_handler

    forked.use_first(forked.Server(address, dict(os.environ)))
    subprocess_handler.Popen = forked.popen
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen(16)
        print(flush=True)
        request = serve(listener, owner)
    if request is not None:
        become(request)
