"""One job on two hosts with different names and clocks and no common folder: two run directories, joined."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from support.jobs import PATIENCE_S, SCRIPTS, clean_environ, distprof
from support.several_hosts import hosts_on_a_switch, why_not

pytestmark = [pytest.mark.job, pytest.mark.skipif(why_not() is not None, reason=why_not() or "")]
AHEAD_S = 3.25


@pytest.mark.stress
@pytest.mark.parametrize("ranks", [1, 2])
def test_directories_of_two_hosts_are_joined_on_one_clock(tmp_path, ranks):
    """With so many ranks on each."""
    first, second = ("rank 0", "rank 1") if ranks == 1 else ("ranks 0 and 1", "ranks 2-3")
    outs = [tmp_path / "a" / "run", tmp_path / "b" / "own"]
    with hosts_on_a_switch(0.0, AHEAD_S) as hosts:
        jobs = [subprocess.Popen(
            host.command(sys.executable, "-m", "distprof", "run", "--out", out, "--hosts", "off", "--nnodes", 2,
                         "--node-rank", node,
                         "--nproc-per-node", ranks, "--master-addr", hosts[0].address, "--master-port", 29531,
                         "--steps", "wait=2,count=1,time=1,trace=4,arrivals=4", SCRIPTS / "two_hosts_job.py"),
            env=clean_environ() | host.environ(), stderr=subprocess.PIPE, text=True)
            for node, (host, out) in enumerate(zip(hosts, outs, strict=True))]
        told = [job.communicate(timeout=PATIENCE_S)[1] for job in jobs]
    assert [job.returncode for job in jobs] == [0, 0], told
    assert f"{ranks} of {2 * ranks} ranks recorded. The other ranks: {second} in host-b:{outs[1]}" in told[0], told[0]
    about = [json.loads((out / "run.json").read_text()) for out in outs]
    assert about[0]["run_id"] == about[1]["run_id"] and about[0]["directory_id"] != about[1]["directory_id"]
    alone = distprof("stats", outs[1])
    assert f"{first} of {2 * ranks} missing; recorded in host-a:{outs[0]}: pass that directory, too" in alone.stdout
    merged = distprof("merge", "--strict", *outs)
    assert merged.returncode == 0, merged.stdout + merged.stderr
    assert f"{2 * ranks} of {2 * ranks} ranks" in merged.stdout
    assert "2 clocks on 2 hosts aligned within" in merged.stdout
    clock = json.loads(distprof("stats", "--json", *outs).stdout)["clock"]
    assert clock["method"] == "samples" and clock["aligned"] and not clock["causality"]["contradicts"]
    for known in (one for one in clock["ranks"] if one["rank"] >= ranks):
        off_ns = known["offset_ns"] + AHEAD_S * 1e9
        assert abs(off_ns) <= known["uncertainty_ns"] < 50_000_000, (off_ns, known)
    print(f"off by {off_ns / 1e3:.1f} us, bound {known['uncertainty_ns'] / 1e3:.1f} us")
    assert "exposed communication" in distprof("stats", *outs).stdout
