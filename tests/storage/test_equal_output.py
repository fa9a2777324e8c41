"""Every command says of a run in a bucket what it says of the same run here."""

from __future__ import annotations

from pathlib import Path

import pytest

from distprof.terminal import quoted
from support.jobs import called
from support.s3_server import S3Server

RUN = "runs/a run é"
COMMANDS = (
    ("stats",), ("stats", "--json"), ("stats", "--modules"), ("comms",), ("comms", "--json"), ("ops",),
    ("ops", "--csv"), ("waits",), ("critical-path",), ("whatif", "--free-communication"), ("report", "--json"),
    ("report", "--markdown"),
)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_command_prints_the_same(command: tuple[str, ...], ddp: Path, server: S3Server, bucket: str) -> None:
    url = server.put(ddp, f"{bucket}/{RUN}")
    here, there = called(*command, ddp), called(*command, url)
    assert there.returncode == here.returncode == 0, there.stderr
    assert there.stdout == here.stdout.replace(str(ddp), url) or there.stdout == here.stdout.replace(
        quoted(ddp), quoted(url))
    assert there.stderr == here.stderr
