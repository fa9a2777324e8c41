"""Jobs in surroundings that lack something: they end as they would without distprof, and what is lost is said."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from support.chaos.job import ENDS, NUM_STEPS, PLAN
from support.containers import Surroundings
from support.jobs import SCRIPTS

MOUNTS = ("--mount",)
PLACES = {
    "nothing is different": Surroundings(),
    "a read-only root": Surroundings(namespaces=MOUNTS, setup="mount -o remount,bind,ro /",
                                     environ={"TMPDIR": "$W"}),
    "no place for temporary files": Surroundings(
        namespaces=MOUNTS, setup="mount --bind $W/runs $W/runs; mount -o remount,bind,ro /srv; "
                                 "mount -o remount,bind,ro /"),
    "no home": Surroundings(without=("HOME",)),
    "a home that is nowhere": Surroundings(environ={"HOME": "/nowhere"}),
    "a user without a name": Surroundings(namespaces=MOUNTS, user=12345, without=("HOME", "USER", "LOGNAME")),
    "a /dev/shm that is read-only": Surroundings(
        namespaces=MOUNTS, setup="mount -t tmpfs -o ro none /dev/shm"),
    "no /dev/shm": Surroundings(
        namespaces=MOUNTS, setup="mkdir -p $W/dev; for name in null zero full urandom random; do touch $W/dev/$name; "
                                 "mount --bind /dev/$name $W/dev/$name; done; mount --rbind $W/dev /dev"),
    "64 MB for temporary files": Surroundings(
        namespaces=MOUNTS, setup="mkdir -p $W/tmp; mount -t tmpfs -o size=64m none $W/tmp",
        environ={"TMPDIR": "$W/tmp"}),
    "a host name that does not resolve": Surroundings(
        namespaces=("--uts", "--mount"),  # and nobody to ask, who might take his time
        setup="echo nowhere.invalid > /proc/sys/kernel/hostname; true > $W/none; "
              "mount --bind $W/none /etc/resolv.conf",
        environ={"PET_LOCAL_ADDR": "127.0.0.1"}),  # of torchrun, which else looks for this host until it gives up
    "no network but loopback": Surroundings(namespaces=("--net",), setup="ip link set lo up"),
    "only IPv6": Surroundings(
        namespaces=("--net", "--mount"),
        setup="ip link set lo up; ip addr del 127.0.0.1/8 dev lo; "
              "echo ::1 localhost $(cat /proc/sys/kernel/hostname) > $W/hosts; mount --bind $W/hosts /etc/hosts"),
    "no network at all": Surroundings(namespaces=("--net",)),
    "64 open files": Surroundings(setup="ulimit -n 64"),
    "nobody who reads stderr": Surroundings(setup="exec 2>/dev/full"),
    "no stderr": Surroundings(setup="exec 2>&-"),
}


def here(name: str) -> Surroundings:
    place = PLACES[name]
    if place.refused:
        pytest.skip(place.refused)
    return place


def job_words(marks: str) -> list[object]:
    return ["--nproc-per-node", 2, SCRIPTS / "chaos.py", marks, NUM_STEPS]


@pytest.mark.stress
@pytest.mark.parametrize("name", PLACES, ids=lambda name: name.replace(" ", "-"))
def test_a_job_runs_as_it_does_without_us_and_is_recorded_and_merged(tmp_path, name):
    place = here(name)
    for folder in ("plain", "marks", "runs"):
        (tmp_path / folder).mkdir()
    plain = place.run(tmp_path, sys.executable, "-m", "torch.distributed.run", "--standalone", *job_words("$W/plain"))
    ours = place.run(tmp_path, sys.executable, "-m", "distprof", "run", "--no-merge", "--out", "$W/runs/one", "--steps",
                     PLAN, *job_words("$W/marks"))
    print(plain.stderr, ours.stderr, sep="\n--- recorded:\n")
    assert ours.returncode == plain.returncode
    assert trained(tmp_path / "marks") == trained(tmp_path / "plain")
    if plain.returncode:
        return
    told = place.run(tmp_path, sys.executable, "-m", "distprof", "merge", "$W/runs/one")
    assert told.returncode == 0, told.stderr
    summary = json.loads((tmp_path / "runs" / "one" / "merged" / "summary.json").read_text())
    assert (summary["ranks"], summary["problems"]) == ([0, 1], [])
    for rank in (0, 1):
        info = json.loads((tmp_path / "runs" / "one" / f"rank{rank:05d}" / "rank.json").read_text())
        assert (info["status"], info["num_steps"]) == ("complete", ENDS["arrivals"])


def trained(marks: Path) -> list[str]:
    return [path.read_text() for path in sorted(marks.glob("*.trained"))]
