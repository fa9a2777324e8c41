"""A Python environment with the start hook as installed by pip: each of its processes checks DISTPROF_OUT."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

from distprof import launch
from support import forked
from support.jobs import PATIENCE_S, ROOT, clean_environ, distprof

PLAN = "wait=1,count=1,time=1,trace=1,arrivals=0"
PROGRAMS = {"distprof": "distprof.launch.cli", "torchrun": "torch.distributed.run",
            "accelerate": "accelerate.commands.accelerate_cli", "deepspeed": "deepspeed.launcher.runner"}
"""Command as pip would install it -> module whose `main` it calls."""
HOOK = tuple(Path(launch.__file__).with_name(name) for name in ("distprof-start.pth", "distprof_start.py"))


def make_hooked(folder: Path) -> None:
    """Creates a virtual environment with all packages of this Python, and the hook."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True, env=clean_environ(),
                   timeout=PATIENCE_S)
    site = folder / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    (site / "a-paths.pth").write_text(f"{ROOT}\n{sysconfig.get_paths()['purelib']}\n")
    for file in HOOK:
        shutil.copy(file, site)
    write_metadata(site)
    for name, module in PROGRAMS.items():
        program = folder / "bin" / name
        program.write_text(f"#!/usr/bin/env python\nimport sys\nfrom {module} import main\nsys.exit(main())\n")
        program.chmod(0o755)


def write_metadata(folder: Path) -> None:
    """Writes the metadata that pip would install, with the entry points of this tree."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    about = folder / f"{project['name']}-{project['version']}.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    (about / "entry_points.txt").write_text("".join(
        f"[{group}]\n" + "".join(f"{name} = {target}\n" for name, target in targets.items())
        for group, targets in project["entry-points"].items()))


def run_hooked(program: Path | str, *arguments: object, ok: bool = True, **environ: str) -> subprocess.CompletedProcess:
    """Runs a script or launcher that does not use distprof itself; `sys.executable` is forked."""
    done = forked.run([program, *map(str, arguments)], capture_output=True, text=True, timeout=PATIENCE_S,
                          env=clean_environ() | environ, check=False)
    assert done.returncode == 0 or not ok, done.stderr
    return done


def whole_run(run: Path, number: int = 2) -> list[dict]:
    """Checks that a run is complete and has a single id; returns the rank.json of its ranks."""
    assert sorted({path.name for path in run.iterdir()} - {"watch", "hosts"}) == [
        "columns", *(f"rank{rank:05d}" for rank in range(number)), "run.json"]
    found = [json.loads((run / f"rank{rank:05d}" / "rank.json").read_text()) for rank in range(number)]
    about = json.loads((run / "run.json").read_text())
    assert {one["run_id"] for one in found} == {about["run_id"]} and about["world_size"] == number
    assert [(one["rank"], one["world_size"], one["status"]) for one in found] == [
        (rank, number, "complete") for rank in range(number)]
    return found


def right_run(out: Path, *, macs: int, ranks: int = 2) -> dict:
    """Checks a complete run on one host whose step has `macs` MACs (counted by hand); returns its `stats --json`."""
    assert [one["local_rank"] for one in whole_run(out, ranks)] == [*range(ranks)]
    found = json.loads(distprof("stats", "--json", out).stdout)
    assert found["problems"] == [] and found["topology_certain"] and found["topology"] == {"dp": ranks}
    assert {found["per_gpu"]["fwd_macs"][which] for which in ("min", "max")} == {macs}
    assert found["step"]["found"]["rule"] == "optimizer"
    return found
