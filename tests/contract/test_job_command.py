"""What of a command line is of the job, and what says how it is recorded."""

from __future__ import annotations

import argparse

import pytest

from distprof.contract.job_command import RECORDING_FLAGS, job_command
from distprof.contract.mesh import MESH_AXES
from distprof.launch.job_arguments import add_recording_flags


@pytest.mark.parametrize(("argv", "command"), [
    ("/venv/bin/distprof run --out runs/a --nproc-per-node 4 train.py --out mine",
     "--nproc-per-node 4 train.py --out mine"),
    ("distprof run --steps=trace=3 --no-merge --tp 2 -m train --steps 9", "--tp 2 -m train --steps 9"),
    ("distprof run --force --debug", ""),
    ("/venv/bin/distprof demo --out runs/demo --force", "distprof demo"),
    ("train.py --out mine", "train.py --out mine")])
def test_what_is_of_the_job(argv, command):
    assert " ".join(job_command(argv.split())) == command


def test_every_flag_of_recording_is_known():
    parser = argparse.ArgumentParser(add_help=False)
    add_recording_flags(parser)
    of_job = {f"--{axis.name}" for axis in MESH_AXES}
    flags = {name: action.nargs != 0 for action in parser._actions for name in action.option_strings
             if name not in of_job}
    assert flags == RECORDING_FLAGS
