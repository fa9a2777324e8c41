"""Builds and checks the files of a release: `make dist`. release.md describes the other steps of a release.

    python docs/release.py          the sdist and the wheels, in dist/
    python docs/release.py FOLDER   in another folder

Wheels are built from the sdist, which has exactly the files in git. Their merge engine is compiled by zig, for any
Linux with glibc 2.17 or later; one wheel has no engine, for all other systems.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[1]
ENGINE = "distprof/compiled/_compiled.so"
START_FILES = {f"distprof/launch/{name}": name for name in ("distprof-start.pth", "distprof_start.py")}
"""File in the repository -> its name in a wheel, where it is beside the package."""
MACHINES = {"x86_64": 62, "aarch64": 183}
"""Architecture of a wheel with the engine -> machine number in the header of an ELF file."""
LINKS = ("launch", "merge")
"""Folders that replace the links to them in the sdist."""
NOT_SHIPPED = {".ci/run", *(f"distprof/{name}" for name in LINKS)}
"""Files in git that are not in the sdist."""
TOOLS = ("hatchling", "ziglang", "auditwheel", "twine")


class Unfit(Exception):
    """A file of the release must not be uploaded, or cannot be built."""


def make(folder: Path) -> list[Path]:
    """Builds and checks everything, then moves it to a folder and removes files of earlier releases there."""
    if missing := [name for name in TOOLS if importlib.util.find_spec(name) is None]:
        raise Unfit(f"cannot import {', '.join(missing)}  hint: make dist, or pip install 'distprof[dist]'")
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=".", dir=folder) as temporary:
        made = [(sdist := new_sdist(Path(temporary))), *new_wheels(sdist, Path(temporary))]
        run("twine", "check", "--strict", *made)
        for path in folder.glob("distprof-*"):
            if path.name not in {one.name for one in made}:
                path.unlink(missing_ok=True)
        return [path.replace(folder / path.name) for path in made]


def new_sdist(folder: Path) -> Path:
    """Builds the sdist, and compares its files with those in git."""
    sdist = packed("sdist", ROOT, folder)
    if not (ROOT / ".git").exists():
        say("this is no checkout of git: the files of the sdist were not compared")
        return sdist
    found, wanted = set(files_of(sdist)), in_sdist(git("ls-files").splitlines())
    compare(sdist, found - {"PKG-INFO"}, wanted, "git")
    if changed := git("status", "--porcelain", "--untracked-files=no").splitlines():
        say(f"{len(changed)} files differ from the last commit, and are packed as they are")
    return sdist


def new_wheels(sdist: Path, folder: Path) -> Iterable[Path]:
    """Builds the wheels from the sdist alone."""
    output("tar", "-xzf", sdist, "-C", folder)
    source = folder / sdist.name.removesuffix(".tar.gz")
    files = {START_FILES.get(name, name) for name in files_of(sdist) if name.startswith("distprof/")}
    plain = packed("wheel", source, folder / "any", {"DISTPROF_WHEEL_PLATFORM": "any"})
    compare(plain, contents(plain), files, sdist.name)
    yield plain
    for architecture, machine in MACHINES.items():
        wheel = packed("wheel", source, folder / architecture, cross_compiling(architecture))
        compare(wheel, contents(wheel), files | {ENGINE}, sdist.name)
        check_engine(wheel, architecture, machine)
        yield wheel


def cross_compiling(architecture: str) -> dict[str, str]:
    """Returns environment variables with which hatch_build.py cross-compiles with zig."""
    compiler = (sys.executable, "-m", "ziglang", "cc", "-target", f"{architecture}-linux-gnu.2.17", "-s")
    # pip supports the first name since version 20.3
    return {"DISTPROF_WHEEL_PLATFORM": f"manylinux_2_17_{architecture}.manylinux2014_{architecture}",
            "CC": shlex.join(compiler)}


def check_engine(wheel: Path, architecture: str, machine: int) -> None:
    """Checks that the library matches the architecture of the wheel, and needs no newer glibc."""
    with zipfile.ZipFile(wheel) as archive:
        header = archive.read(ENGINE)[:20]
    if header[:4] != b"\x7fELF" or int.from_bytes(header[18:20], "little") != machine:
        raise Unfit(f"{wheel.name}: its merge engine is of another machine")
    told = " ".join(run("auditwheel", "show", wheel).split())
    if f'consistent with the following platform tag: "manylinux_2_17_{architecture}"' not in told:
        raise Unfit(f"{wheel.name}: {told}")


def packed(kind: str, source: Path, folder: Path, environ: Mapping[str, str] | None = None) -> Path:
    """Builds with hatchling; the result is reproducible."""
    run("hatchling", "build", "--target", kind, "--directory", folder, cwd=source, environ=environ or {})
    (path,) = folder.glob("distprof-*.*")
    return path


def files_of(sdist: Path) -> list[str]:
    """Returns the paths in an sdist, relative to its top-level folder."""
    with tarfile.open(sdist) as archive:
        return [member.name.partition("/")[2] for member in archive if not member.isdir()]


def contents(wheel: Path) -> set[str]:
    """Returns the paths in a wheel without its metadata."""
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


def in_sdist(names: Iterable[str]) -> set[str]:
    """Returns the paths in the sdist of files in git."""
    return {f"distprof/{name}" if name.startswith(tuple(f"{link}/" for link in LINKS)) else name
            for name in names if name not in NOT_SHIPPED}


def compare(made: Path, found: set[str], wanted: set[str], source: str) -> None:
    """Checks that an archive has exactly the files that it should have."""
    if strays := sorted(found - wanted):
        raise Unfit(f"{made.name} has what {source} has not: {named(strays)}  hint: commit or remove")
    if missing := sorted(wanted - found):
        raise Unfit(f"{made.name} lacks what {source} has: {named(missing)}  hint: see [tool.hatch] of pyproject.toml")


def named(paths: Sequence[str]) -> str:
    """Returns the first path and the number of others as text."""
    return paths[0] + (f" and {len(paths) - 1} more" if len(paths) > 1 else "")


def git(*words: str) -> str:
    """Returns the output of git."""
    return output("git", "-C", ROOT, *words)


def run(*words: object, cwd: Path = ROOT, environ: Mapping[str, str] | None = None) -> str:
    """Runs a Python tool and returns its output."""
    return output(sys.executable, "-m", *words, cwd=cwd, environ=environ)


def output(*words: object, cwd: Path = ROOT, environ: Mapping[str, str] | None = None) -> str:
    """Runs a program that must succeed and returns its output."""
    command = [*map(str, words)]
    try:
        done = subprocess.run(command, cwd=cwd, env=os.environ | (environ or {}), capture_output=True, text=True,
                              check=False)
    except OSError as error:
        raise Unfit(f"cannot run {command[0]}: {error.strerror}") from error
    if done.returncode != 0:
        raise Unfit(f"{shlex.join(command)} failed: {(done.stdout + done.stderr).strip()}")
    return done.stdout


def say(text: str) -> None:
    """Prints a message to stderr."""
    sys.stderr.write(f"distprof: {text}\n")


def main(words: Sequence[str]) -> None:
    """Builds the release and prints its files."""
    try:
        if (ROOT / ".git").exists():
            os.environ.setdefault("SOURCE_DATE_EPOCH", git("log", "-1", "--format=%ct").strip())
        made = make(Path(words[0]).absolute() if words else ROOT / "dist")
    except Unfit as error:
        say(str(error))
        sys.exit(1)
    for path in made:
        sys.stdout.write(f"{path}  {path.stat().st_size / 1e6:.2f} MB\n")


if __name__ == "__main__":
    main(sys.argv[1:])
