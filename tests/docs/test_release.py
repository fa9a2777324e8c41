"""`make dist`: what a release uploads is whole, holds nothing else, and runs where there is no compiler."""

from __future__ import annotations

import gzip
import json
import os
import platform
import runpy
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from distprof import __version__
from distprof.compiled.build import LIBRARY
from support.bare import in_turn
from support.jobs import PATIENCE_S, ROOT, clean_environ
from support.made_up_traces import folder, op

for tool in ("hatchling", "ziglang", "auditwheel", "twine"):
    pytest.importorskip(tool, reason=f"{tool}, of the extra `dist`, is not installed")
if not (ROOT / ".git").exists():
    pytest.skip("what git has is compared, and this is no checkout", allow_module_level=True)
pytestmark = pytest.mark.long
ENGINE = "distprof/compiled/_compiled.so"
STALE = b"\x7fELF of a machine that nobody knows"
SDIST, ANY = "distprof-{}.tar.gz", "distprof-{}-py3-none-any.whl"
MANYLINUX = "distprof-{{}}-py3-none-manylinux_2_17_{0}.manylinux2014_{0}.whl"


def run(*words: object, cwd: Path, **environ: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-m", *map(str, words)], cwd=cwd, env=clean_environ() | environ,
                          timeout=PATIENCE_S, capture_output=True, text=True, check=False)


def releasing(checkout: Path, out: Path, umask: int = 0o022) -> subprocess.Popen:
    """`make dist`, while it runs."""
    return subprocess.Popen([sys.executable, "docs/release.py", out], cwd=checkout, env=clean_environ(), umask=umask,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def packed(checkout: Path, out: Path, **environ: str) -> subprocess.CompletedProcess:
    """A wheel by itself, as pip has it made."""
    return run("hatchling", "build", "--target", "wheel", "--directory", out, cwd=checkout, **environ)


@pytest.fixture(scope="module")
def checkout(tmp_path_factory) -> Path:
    """The sources as git would have them, with an engine of another machine between them."""
    place = tmp_path_factory.mktemp("checkout")
    names = subprocess.run(["git", "-C", ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
                           check=True, capture_output=True, text=True).stdout.split("\0")
    for name in filter(lambda name: name and os.path.lexists(ROOT / name), names):
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, place / name, follow_symlinks=False)
    for words in (("init", "--quiet"), ("add", "--all"),
                  ("-c", "user.name=a", "-c", "user.email=a@b", "commit", "--quiet", "--message=all")):
        subprocess.run(["git", "-C", place, *words], check=True)
    for name in ("_compiled.so", "_compiled.123.so"):
        (place / "distprof" / "compiled" / name).write_bytes(STALE)
    return place


@pytest.fixture(scope="module")
def made(checkout) -> dict[str, Path]:
    """What `make dist` leaves, by name without the version."""
    return released(checkout / "dist", releasing(checkout, checkout / "dist"))


def released(out: Path, *commands: subprocess.Popen) -> dict[str, Path]:
    for command in commands:
        told, err = command.communicate(timeout=PATIENCE_S)
        assert (command.returncode, err) == (0, "") and len(told.splitlines()) == 4
    return {path.name.replace(f"-{__version__}", "-{}"): path for path in out.iterdir()}


def test_there_is_a_source_a_wheel_for_each_linux_and_one_for_the_rest(made):
    assert set(made) == {SDIST, ANY, MANYLINUX.format("x86_64"), MANYLINUX.format("aarch64")}


@pytest.mark.stress
def test_the_same_commit_gives_the_same_bytes(made, checkout, tmp_path):
    """Wherever it lies, whatever lies there, whoever may read it, and by two at once in one folder."""
    clone, out = tmp_path / "clone", tmp_path / "dist"
    subprocess.run(["git", "clone", "--quiet", checkout, clone], check=True, umask=0o077)
    again = released(out, releasing(clone, out, 0o077), releasing(clone, out))
    assert {name: path.read_bytes() for name, path in again.items()} == {
        name: path.read_bytes() for name, path in made.items()}
    assert zipfile.ZipFile(made[ANY]).infolist()[0].date_time[0] > 2020  # of the commit


def test_a_wheel_holds_the_package_and_the_engine_of_its_machine_alone(made):
    with tarfile.open(made[SDIST]) as archive:
        sources = {name.partition("/")[2] for name in archive.getnames()}
    assert {"Makefile", "pyproject.toml", "hatch_build.py", "tests/docs/test_release.py"} <= sources
    assert [name for name in sources if name.endswith((".so", ".pyc"))] == []
    for name, machine in ((ANY, None), (MANYLINUX.format("x86_64"), 62), (MANYLINUX.format("aarch64"), 183)):
        with zipfile.ZipFile(made[name]) as archive:
            names = {one for one in archive.namelist() if ".dist-info/" not in one}
            assert {one for one in names if one.endswith(".so")} == ({ENGINE} if machine else set())
            assert machine is None or archive.read(ENGINE)[18:20] == machine.to_bytes(2, "little")
        package = {one for one in sources if one.startswith("distprof/")}
        assert names - package - {ENGINE} == {"distprof-start.pth", "distprof_start.py"}
        assert package - names == {"distprof/launch/distprof-start.pth", "distprof/launch/distprof_start.py"}


@pytest.mark.parametrize(("system", "name"), [
    ("manylinux_2_17_aarch64", MANYLINUX.format("aarch64")), ("musllinux_1_2_x86_64", ANY), ("macosx_14_0_arm64", ANY)])
def test_pip_takes_the_wheel_of_the_system(made, tmp_path, system, name):
    done = run("pip", "download", "--quiet", "--no-deps", "--no-index", "--find-links", made[ANY].parent, "--dest",
               tmp_path, "--platform", system, "--only-binary=:all:", "distprof", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert [path.name for path in tmp_path.iterdir()] == [made[name].name]


@pytest.mark.job
def test_installed_without_a_compiler_it_merges_with_the_compiled_engine(made, tmp_path):
    """And the wheel for all systems with the other, to the same trace."""
    traces = folder(tmp_path, *([op("step", 10 * rank, 500), op("aten::mm", 10 * rank + 5, 100)] for rank in range(2)))
    ours = MANYLINUX.format(platform.machine())
    done = run("pip", "install", "--quiet", "--no-deps", "--no-index", "--no-compile", "--target", tmp_path / ours,
               made[ours], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    with zipfile.ZipFile(made[ANY]) as archive:
        archive.extractall(tmp_path / ANY)
    merged = {}
    for name in (ours, ANY):
        out = tmp_path / f"merged {len(merged)}"
        version, merge = in_turn(sys.executable, [["--version"], ["merge", str(traces), "--out", str(out)]],
                                 PATH=str(tmp_path), PYTHONPATH=str(tmp_path / name))
        told = version.stdout.splitlines()[1]
        assert told == f"merge engine: compiled (manylinux_2_17_{platform.machine()} wheel)" or name == ANY
        assert told.startswith("merge engine: plain Python, many times slower (it was not compiled") or name == ours
        assert merge.returncode == 0, merge.stderr
        merged[name] = json.loads(gzip.decompress((out / "trace.json.gz").read_bytes()))
    assert merged[ours] == merged[ANY]


@pytest.mark.parametrize(("change", "said"), [
    (lambda merge: (merge / "stray.py").write_text(""), "has what git has not: distprof/merge/stray.py"),
    pytest.param(lambda merge: (merge / "totals" / "totals.py").unlink(),
                 "lacks what git has: distprof/merge/totals/totals.py", marks=pytest.mark.stress),
], ids=["stray", "missing"])
def test_files_that_git_has_not_are_not_uploaded(checkout, tmp_path, change, said):
    place = tmp_path / "changed"
    subprocess.run(["git", "clone", "--quiet", checkout, place], check=True)
    change(place / "merge")
    command = releasing(place, tmp_path / "out")
    _, err = command.communicate(timeout=PATIENCE_S)
    assert command.returncode == 1 and said in err and len(err.splitlines()) == 1, err
    assert list((tmp_path / "out").iterdir()) == []


def test_a_file_of_git_that_is_missing_is_named(made):
    release = runpy.run_path(str(ROOT / "docs" / "release.py"))
    found = set(release["files_of"](made[SDIST]))
    with pytest.raises(release["Unfit"], match=r"lacks what git has: distprof/merge/totals/totals\.py  hint: "):
        release["compare"](made[SDIST], found - {"distprof/merge/totals/totals.py"}, found, "git")


def test_a_wheel_that_pip_makes_has_no_engine_where_there_is_no_compiler(checkout, tmp_path):
    done = packed(checkout, tmp_path, CC="no-such-compiler")
    (wheel,) = tmp_path.iterdir()
    assert done.returncode == 0 and "merging will be slow" in done.stderr and wheel.name.endswith("py3-none-any.whl")
    assert not [name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".so")]
    assert (checkout / LIBRARY.relative_to(ROOT)).read_bytes() == STALE


def test_a_wheel_that_is_to_have_an_engine_is_not_made_without(checkout, tmp_path):
    done = packed(checkout, tmp_path, CC="no-such-compiler", DISTPROF_WHEEL_PLATFORM="manylinux_2_17_riscv64")
    assert done.returncode != 0 and list(tmp_path.iterdir()) == []
    assert "a wheel for manylinux_2_17_riscv64 needs its engine  hint: CC names the compiler" in done.stderr
