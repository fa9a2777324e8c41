"""Makes what a release uploads, and checks it: `make dist`. release.md says what else a release is.

    python docs/release.py          the sdist and the wheels, in dist/
    python docs/release.py FOLDER   in another folder

Wheels are packed from the sdist, whose files are those that git has. The merge engine in them is compiled by zig, for
any Linux with glibc 2.17 or later; one wheel is without, for every other system.
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
"""What a wheel has beside the package, and not in it."""
MACHINES = {"x86_64": 62, "aarch64": 183}
"""Architecture of a wheel with the engine -> the machine that the header of an ELF file names."""
LINKS = ("launch", "merge")
"""Folders that the sdist has in the place of the links to them."""
NOT_SHIPPED = {".ci/run", *(f"distprof/{name}" for name in LINKS)}
"""What git has and the sdist has not."""
TOOLS = ("hatchling", "ziglang", "auditwheel", "twine")


class Unfit(Exception):
    """What was made must not be uploaded, or cannot be made."""


def make(folder: Path) -> list[Path]:
    """Makes and checks everything, then puts it into a folder in the place of what an earlier release left there."""
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
    """Packs the source, and compares its files with those of git."""
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
    """Packs the wheels from the sdist alone."""
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
    """The environment in which hatch_build.py compiles for another machine: zig brings all that it takes."""
    compiler = (sys.executable, "-m", "ziglang", "cc", "-target", f"{architecture}-linux-gnu.2.17", "-s")
    # pip knows the first name since 20.3
    return {"DISTPROF_WHEEL_PLATFORM": f"manylinux_2_17_{architecture}.manylinux2014_{architecture}",
            "CC": shlex.join(compiler)}


def check_engine(wheel: Path, architecture: str, machine: int) -> None:
    """The library is of the machine that the wheel is named after, and asks for no newer glibc."""
    with zipfile.ZipFile(wheel) as archive:
        header = archive.read(ENGINE)[:20]
    if header[:4] != b"\x7fELF" or int.from_bytes(header[18:20], "little") != machine:
        raise Unfit(f"{wheel.name}: its merge engine is of another machine")
    told = " ".join(run("auditwheel", "show", wheel).split())
    if f'consistent with the following platform tag: "manylinux_2_17_{architecture}"' not in told:
        raise Unfit(f"{wheel.name}: {told}")


def packed(kind: str, source: Path, folder: Path, environ: Mapping[str, str] | None = None) -> Path:
    """Lets hatchling pack; the same source gives the same bytes."""
    run("hatchling", "build", "--target", kind, "--directory", folder, cwd=source, environ=environ or {})
    (path,) = folder.glob("distprof-*.*")
    return path


def files_of(sdist: Path) -> list[str]:
    """Paths of an sdist below its one folder."""
    with tarfile.open(sdist) as archive:
        return [member.name.partition("/")[2] for member in archive if not member.isdir()]


def contents(wheel: Path) -> set[str]:
    """Paths of a wheel without its metadata."""
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


def in_sdist(names: Iterable[str]) -> set[str]:
    """Where the sdist has the files of git."""
    return {f"distprof/{name}" if name.startswith(tuple(f"{link}/" for link in LINKS)) else name
            for name in names if name not in NOT_SHIPPED}


def compare(made: Path, found: set[str], wanted: set[str], source: str) -> None:
    """The archive has the files that it should have, and no other."""
    if strays := sorted(found - wanted):
        raise Unfit(f"{made.name} has what {source} has not: {named(strays)}  hint: commit or remove")
    if missing := sorted(wanted - found):
        raise Unfit(f"{made.name} lacks what {source} has: {named(missing)}  hint: see [tool.hatch] of pyproject.toml")


def named(paths: Sequence[str]) -> str:
    """The first path, and how many more."""
    return paths[0] + (f" and {len(paths) - 1} more" if len(paths) > 1 else "")


def git(*words: str) -> str:
    """What git prints."""
    return output("git", "-C", ROOT, *words)


def run(*words: object, cwd: Path = ROOT, environ: Mapping[str, str] | None = None) -> str:
    """Runs a Python tool; what it prints."""
    return output(sys.executable, "-m", *words, cwd=cwd, environ=environ)


def output(*words: object, cwd: Path = ROOT, environ: Mapping[str, str] | None = None) -> str:
    """Runs a program that must succeed; what it prints."""
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
    """Talks, on stderr."""
    sys.stderr.write(f"distprof: {text}\n")


def main(words: Sequence[str]) -> None:
    """Shows what was made."""
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
