"""pip installs what reads runs and no torch: every command that reads does so there, the others say what they need."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tomllib
from contextlib import closing
from importlib.metadata import Distribution
from pathlib import Path
from urllib.request import urlopen

import pytest

from distprof import needs
from distprof.launch.what_next import command_names
from support.bare import link_packages, site_packages
from support.jobs import PATIENCE_S, ROOT, clean_environ
from support.reading import APART, RECORDING, reading_commands

pytestmark = pytest.mark.job
INSTALL = "hint: pip install 'distprof[record]'"
BROKEN = {
    "missing library": ("raise OSError('libcudart.so.12: cannot open shared object file')",
                        "cannot be imported: libcudart.so.12: cannot open shared object file  hint: reinstall it"),
    "wrong build": ("raise ImportError('libtorch.so: undefined symbol: f\\nmore')",
                    "cannot be imported: libtorch.so: undefined symbol: f  hint: reinstall it"),
    "lacks a package": ("import no_such_package", "cannot be imported: No module named 'no_such_package'"),
    "old": ("__version__ = '2.7.1+cpu'", "torch 2.7.1+cpu is older than 2.8  hint: pip install 'torch>=2.8'"),
    "a folder of that name": (None, f"no torch  {INSTALL}"),
}


def in_bare(bare: Path, program: str, *arguments: object, **environ: str) -> subprocess.CompletedProcess:
    return subprocess.run([bare / "bin" / program, *map(str, arguments)], capture_output=True, text=True, check=False,
                          cwd=bare, timeout=PATIENCE_S, env=clean_environ() | {"PYTHONPATH": ""} | environ)


def test_pip_brings_no_torch(bare):
    done = in_bare(bare, "python", "-c", "import distprof; print(distprof.__file__); import torch")
    assert Path(done.stdout.strip()).is_relative_to(site_packages(bare))
    assert done.returncode == 1 and "No module named 'torch'" in done.stderr
    asked = Distribution.at(next(site_packages(bare).glob("distprof-*.dist-info"))).requires or []
    assert [one for one in asked if one.startswith("torch")] == ["torch>=2.8; extra == 'record'"]


def test_the_oldest_torch_is_that_of_the_extra():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert extras["record"] == [f"torch>={'.'.join(map(str, needs.LEAST))}"]


def test_every_command_reads_or_records(tmp_path):
    reading = {words[0] for words in reading_commands(tmp_path, tmp_path, tmp_path)}
    assert reading | APART | RECORDING >= set(command_names()) and not (reading | APART) & RECORDING


def test_a_run_is_read_in_python(bare, everything):
    code = "import sys, distprof; print(len(distprof.read_run(sys.argv[1]).steps()), 'torch' in sys.modules)"
    done = in_bare(bare, "python", "-c", code, everything)
    assert done.stderr == "" and re.fullmatch(r"[1-9]\d* False\n", done.stdout)


def test_a_merged_trace_is_split(bare, everything, tmp_path):
    assert in_bare(bare, "distprof", "merge", everything, "--out", tmp_path / "merged").returncode == 0
    done = in_bare(bare, "distprof", "split", tmp_path / "merged" / "trace.json.gz", "--out", tmp_path / "apart")
    assert done.returncode == 0 and (tmp_path / "apart" / "rank0.json.gz").is_file(), done.stderr


def test_a_trace_is_viewed(bare, everything):
    command = [bare / "bin" / "distprof", "view", "--print-url", everything]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          env=clean_environ() | {"PYTHONPATH": ""}) as viewing:
        assert viewing.stdout is not None
        address = viewing.stdout.readline().strip()
        for name in ("", "trace.json.gz", "loaded"):
            with closing(urlopen(address + name, timeout=PATIENCE_S)) as answer:
                assert answer.status == 200
        _, said = viewing.communicate(timeout=PATIENCE_S)
        assert viewing.returncode == 0 and "loaded by the browser" in said


def test_a_run_is_uploaded_and_read_there(bare, everything, bucket, tmp_path):
    url = f"{bucket}/a"
    environ = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
    without = in_bare(bare, "distprof", "upload", everything, url, **environ)
    assert without.returncode == 2 and "hint: pip install 'distprof[s3]'" in without.stderr
    environ["PYTHONPATH"] = str(link_packages(tmp_path / "s3", ["s3fs"]))
    done = in_bare(bare, "distprof", "upload", everything, url, **environ)
    assert done.returncode == 0, done.stderr
    there, here = (in_bare(bare, "distprof", "stats", "--json", run, **environ) for run in (url, everything))
    assert there.returncode == 0 and json.loads(there.stdout)["model"] == json.loads(here.stdout)["model"]


def test_the_fixture_of_pytest_compares_runs(bare, everything, tmp_path):
    (tmp_path / "test_it.py").write_text(
        "def test_same(distprof_regression):\n"
        f"    assert distprof_regression({str(everything)!r}, baseline={str(everything)!r}, unsure='pass').text\n")
    packages = link_packages(tmp_path / "pytest", ["pytest"])
    done = in_bare(bare, "python", "-m", "pytest", "-q", "-p", "no:cacheprovider", tmp_path / "test_it.py",
                   PYTHONPATH=str(packages))
    assert done.returncode == 0 and "1 passed" in done.stdout, done.stdout + done.stderr


def test_doctor_says_what_this_python_is_good_for(bare, tmp_path):
    done = in_bare(bare, "distprof", "doctor", "--out", tmp_path)
    assert done.stdout.splitlines()[-1] == "This machine can read runs but cannot record: no torch"
    assert f"fail  torch      no torch  {INSTALL}" in done.stdout.splitlines() and done.returncode == 1
    found = json.loads(in_bare(bare, "distprof", "doctor", "--json", "--out", tmp_path).stdout)
    assert found["reads"] is True and found["healthy"] is False


@pytest.mark.parametrize(("words", "purpose"), [
    (("run", "train.py"), "record"), (("run", "--help"), "record"), (("demo",), "record"),
    (("selftest",), "record"),
    (("count", "m.py:f"), "count"), (("profile", "m.py:f"), "measure a model"),
    (("reconcile", "m.py:f"), "reconcile counts")])
def test_what_needs_torch_says_so_in_a_line(bare, words, purpose):
    done = in_bare(bare, "distprof", *words)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", f"distprof: cannot {purpose}: no torch  {INSTALL}\n")


@pytest.mark.parametrize("name", ["record", "count", "Recorder", "throughput"])
def test_names_that_need_torch_raise_an_import_error(bare, name):
    code = f"try:\n    from distprof import {name}\nexcept ImportError as error:\n    print(error)"
    done = in_bare(bare, "python", "-c", code)
    assert (done.stdout, done.stderr) == (f"cannot use distprof.{name}: no torch  {INSTALL}\n", "")


def test_scripts_run_as_without_us(bare, tmp_path):
    (tmp_path / "plain.py").write_text("print('done')")
    (tmp_path / "train.py").write_text("import torch")
    environ = {"DISTPROF_OUT": str(tmp_path / "out")}
    done = in_bare(bare, "python", tmp_path / "plain.py", **environ)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")
    done = in_bare(bare, "python", tmp_path / "train.py", **environ)
    assert done.returncode == 1 and done.stderr.endswith("\nModuleNotFoundError: No module named 'torch'\n")
    assert "distprof" not in done.stderr and not (tmp_path / "out").exists()


@pytest.mark.parametrize("kind", BROKEN)
def test_a_torch_that_is_no_good_is_named(bare, tmp_path, kind):
    code, said = BROKEN[kind]
    (tmp_path / "torch").mkdir()
    if code is not None:
        (tmp_path / "torch" / "__init__.py").write_text(code)
    done = in_bare(bare, "distprof", "run", "train.py", PYTHONPATH=str(tmp_path))
    assert done.returncode == 1 and done.stdout == "" and len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("distprof: cannot record: ") and said in done.stderr
    told = in_bare(bare, "distprof", "doctor", "--out", tmp_path, PYTHONPATH=str(tmp_path))
    assert told.returncode == 1 and told.stderr == "" and said in told.stdout
    assert told.stdout.splitlines()[-1].startswith("This machine can read runs but cannot record: ")
