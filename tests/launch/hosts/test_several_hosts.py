"""A job on hosts that share nothing but a network: its answer is that of one host, and a host that is gone is named."""

from __future__ import annotations

import re
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from support import forked
from support.jobs import PATIENCE_S, SCRIPTS, distprof, wait_for
from support.several_hosts import Host, hosts_on_a_switch, why_not

pytestmark = [pytest.mark.job, pytest.mark.skipif(why_not() is not None, reason=why_not() or "")]
AHEAD_S = 3.25
SHORT = ("--steps", "wait=2,count=1,time=1,trace=4,arrivals=4")


@pytest.fixture(scope="module")
def ahead() -> Iterator[None]:
    """What is forked of hosts whose clock is ahead by `AHEAD_S`."""
    forked.server()
    with forked.server_with(Host(name="", address="", holder=0, ahead_s=AHEAD_S).environ()):
        yield


def begun(hosts: Sequence[Host], folder: Path, port: int, script: Path, *arguments: object,
          flags: Sequence[object] = SHORT, real: bool = True,
          folders: Sequence[Path] = ()) -> list[subprocess.Popen[str]]:
    """The launchers of a job of one rank a host, each with a directory of its own unless folders are given."""
    folders = folders or [folder / host.name for host in hosts]
    return [host.start(
        "-m", "distprof", "run", "--out", folders[node], "--nnodes", len(hosts), "--node-rank", node,
        "--nproc-per-node", 1, "--master-addr", hosts[0].address, "--master-port", port, *flags, script, *arguments,
        real=real, stderr=subprocess.PIPE, start_new_session=True) for node, host in enumerate(hosts)]


def told(jobs: Sequence[subprocess.Popen[str]]) -> list[str]:
    return [job.communicate(timeout=PATIENCE_S)[1] for job in jobs]


def same_files(folder: Path, hosts: Sequence[Host]) -> bool:
    """Whether the first host has what each other one recorded, byte by byte."""
    return all((folder / hosts[0].name / file.relative_to(folder / host.name)).read_bytes() == file.read_bytes()
               for host in hosts[1:] for file in (folder / host.name).glob("rank*/*"))


@pytest.mark.usefixtures("ahead")
def test_the_answer_for_two_hosts_is_said_by_the_first_one(tmp_path):
    with hosts_on_a_switch(0.0, AHEAD_S) as hosts:
        jobs = begun(hosts, tmp_path, 29533, SCRIPTS / "two_hosts_job.py", real=False)
        first, second = told(jobs)
    assert [job.returncode for job in jobs] == [0, 0], (first, second)
    assert "2 of 2 ranks recorded. Merging" in first and "2 ranks = dp 2" in first, first
    assert "all 2 ranks complete" in first
    assert f"Copied to host-a:{tmp_path}/host-a, where the answer is printed" in second, second
    assert "2 ranks = dp 2" not in second
    assert same_files(tmp_path, hosts)
    about = distprof("stats", "--json", tmp_path / "host-a")
    assert about.returncode == 0 and "missing" not in about.stderr
    assert not list(tmp_path.glob("host-b/merged")) and not list(tmp_path.glob("host-a/**/*.copied"))



@pytest.mark.usefixtures("ahead")
def test_one_launcher_merges_what_two_hosts_recorded_into_one_directory(tmp_path):
    out = tmp_path / "run"
    with hosts_on_a_switch(0.0, AHEAD_S) as hosts:
        jobs = begun(hosts, tmp_path, 29532, SCRIPTS / "two_hosts_job.py", folders=[out, out], real=False)
        said = told(jobs)
    assert [job.returncode for job in jobs] == [0, 0], said
    first, second = sorted(said, key=lambda text: "Another host merges them" in text)
    assert "all ranks of all hosts are recorded. Merging" in first and "2 ranks = dp 2" in first, said
    assert "Another host merges them" in second and "exposed communication" not in second, said
    assert (out / "merged" / "trace.json.gz").is_file()


@pytest.mark.stress
def test_hosts_that_are_to_copy_nothing_keep_it(tmp_path):
    with hosts_on_a_switch(0.0, 0.0) as hosts:
        jobs = begun(hosts, tmp_path, 29534, SCRIPTS / "two_hosts_job.py", flags=("--hosts", "off", *SHORT), real=False)
        first, second = told(jobs)
    assert "1 of 2 ranks recorded. The other ranks: rank 1 in host-b:" in first, first
    assert "1 of 2 ranks recorded. The other ranks: rank 0 in host-a:" in second, second
    assert not (tmp_path / "host-a" / "rank00001").exists()


@pytest.mark.stress
@pytest.mark.parametrize("num_hosts", [4, 8])
def test_many_hosts_have_one_answer_within_half_a_minute(tmp_path, num_hosts):
    with hosts_on_a_switch(*(AHEAD_S * (number % 3 - 1) for number in range(num_hosts))) as hosts:
        jobs = begun(hosts, tmp_path, 29535, SCRIPTS / "two_hosts_job.py")
        others = told(jobs[1:])
        over_s = time.monotonic()
        first, = told(jobs[:1])
        took_s = time.monotonic() - over_s
    assert not any(job.returncode for job in jobs), (first, others)
    assert f"{num_hosts} of {num_hosts} ranks recorded. Merging" in first, first
    assert all("Copied to host-a:" in text for text in others), others
    assert same_files(tmp_path, hosts)
    assert took_s < 30, took_s
    print(f"{num_hosts} hosts: answer {took_s:.1f} s after the last other host")


@pytest.mark.stress
def test_a_host_that_loses_power_is_named_and_the_others_are_answered(tmp_path):
    """Its cable is out and everything on it killed: ranks of the others wait for it, and are ended by hand."""
    with hosts_on_a_switch(0.0, AHEAD_S, -AHEAD_S) as hosts:
        jobs = begun(hosts, tmp_path, 29536, SCRIPTS / "linked.py", "ring", 10**9, 1000, 0.02)
        wait_for(jobs[0], *(tmp_path / "host-a" / f"rank{rank:05d}" / "rank.json" for rank in range(3)))
        hosts[2].lose_power()
        time.sleep(5)
        for job in jobs[:2]:
            job.send_signal(signal.SIGTERM)
        over_s = time.monotonic()
        first, second = told(jobs[:2])
        told(jobs[2:])
        took_s = time.monotonic() - over_s
    assert "without host-c: its files did not all arrive" in first, first
    assert "Merging" in first and "3 ranks = dp 3" in first, first
    assert "Copied to host-a:" in second, second
    assert took_s < 60, took_s
    print(f"answer {took_s:.1f} s after the job was ended")


@pytest.mark.stress
def test_a_host_that_cannot_connect_keeps_its_files_and_says_so(tmp_path):
    with hosts_on_a_switch(0.0, 0.0) as hosts:
        jobs = begun(hosts, tmp_path, 29537, SCRIPTS / "two_hosts_job.py", flags=("--hosts", "127.0.0.1:29600", *SHORT))
        first, second = told(jobs)
    assert [job.returncode for job in jobs] == [0, 0]
    assert "cannot copy files to host-a" in second and "hint:" in second, second
    assert "1 of 2 ranks recorded. The other ranks: rank 0 in host-a:" in second, second
    assert "without node 1" in first and re.search(r"1 of 2 ranks recorded. Merging", first), first
