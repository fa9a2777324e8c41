"""Makes Python lack what another system lacks, in each process that has this folder on its path when it starts.

Modules are hidden from everybody, names of the others from distprof alone: Python and its libraries go on as on Linux.
Files are treated as Windows does: what is open can be neither renamed nor removed, and not every name is one.
PRETENDED names a file with a `Pretended` of `support/other_systems.py`.
"""

import builtins
import ctypes
import json
import os
import pathlib
import re
import sys
import types

WRONG = re.compile(r'[<>:"|?*\x00-\x1f]|[. ]\Z|\A(con|prn|aux|nul|com\d|lpt\d)(\.|\Z)', re.IGNORECASE)
"""In names of files of Windows."""
OPEN_MODES = os.O_ACCMODE

system = json.loads(pathlib.Path(os.environ["PRETENDED"]).read_text())
is_windows = system["platform"] == "win32"


class Seen(types.ModuleType):
    """A module as distprof sees it."""

    def __init__(self, real, lacks, **instead):
        self.__dict__.update(_real=real, _lacks=frozenset(lacks), _instead=instead)

    def __getattr__(self, name):
        if name in self._lacks:
            raise AttributeError(f"{self._real.__name__}.{name} is not there on {system['platform']}")
        return self._instead[name] if name in self._instead else getattr(self._real, name)

    def __setattr__(self, name, value):
        setattr(self._real, name, value)


def open_as_windows(path, flags, *more, **named):
    if os.path.isdir(path):
        raise PermissionError(13, "Permission denied", os.fspath(path))
    return os.open(path, flags, *more, **named)


def fsync_as_windows(handle):
    flags = pathlib.Path(f"/proc/self/fdinfo/{handle}").read_text().split("flags:")[1].split()[0]
    if not int(flags, 8) & OPEN_MODES:
        raise OSError(9, "Bad file descriptor")
    os.fsync(handle)


def library_as_windows(name, *more):
    if name is None:
        raise TypeError("expected the name of a library")
    return ctypes.CDLL(name, *more)


class PosixPath(pathlib.PosixPath):
    def __new__(cls, *_, **__):
        raise NotImplementedError("cannot make a PosixPath here")


INSTEAD = {"sys": {"platform": system["platform"]}}
if is_windows:
    INSTEAD |= {"os": {"name": "nt", "open": open_as_windows, "fsync": fsync_as_windows},
                "ctypes": {"CDLL": library_as_windows}, "pathlib": {"PosixPath": PosixPath}}
seen = {name: Seen(__import__(name), system["lacks"].get(name, ()), **INSTEAD.get(name, {}))
        for name in {*system["lacks"], *INSTEAD}}
really_import = builtins.__import__


def import_as_seen(name, globals=None, locals=None, fromlist=(), level=0):  # noqa: A002 (as Python calls it)
    found = really_import(name, globals, locals, fromlist, level)
    importer = (globals or {}).get("__name__") or ""
    return seen.get(name, found) if not level and importer.partition(".")[0] == "distprof" else found


def held(path):
    """What this process has open at a path, or below it."""
    for entry in os.scandir("/proc/self/fd"):
        try:
            target = os.readlink(entry.path)
        except OSError:
            continue
        if target == path or target.startswith(f"{path}/"):
            return target
    return None


def audit(event, arguments):
    if event in ("os.rename", "os.remove", "os.rmdir"):
        for path in arguments[:2 if event == "os.rename" else 1]:
            if isinstance(path, int) or (found := held(os.path.abspath(os.fsdecode(path)))) is None:
                continue
            raise PermissionError(13, f"it is open: {found}", path)
    created = event == "os.mkdir" or (event == "open" and isinstance(arguments[2], int) and arguments[2] & os.O_CREAT)
    for path in arguments[:1] if created else arguments[1:2] if event == "os.rename" else ():
        if isinstance(path, str | bytes | os.PathLike) and WRONG.search(os.path.basename(os.fsdecode(path))):
            raise OSError(22, "The filename, directory name, or volume label syntax is incorrect", os.fsdecode(path))


for name in system["modules"]:
    sys.modules[name] = None
builtins.__import__ = import_as_seen
if is_windows:
    sys.addaudithook(audit)
