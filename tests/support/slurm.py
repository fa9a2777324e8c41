"""A Slurm cluster of one node in a folder, for `srun` and `sbatch`, independent of any other Slurm on the machine."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from support.jobs import PATIENCE_S
from support.ports import free_port

PROGRAMS = ("slurmctld", "slurmd", "srun", "sbatch", "sinfo", "squeue", "scancel")
PATH = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"))
"""Includes the folders of daemons, which the PATH of users other than root may lack."""
CONF = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmdPort={node}
AuthType=auth/none
CredType=cred/none
SlurmUser={user}
SlurmdUser={user}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MessageTimeout=100
TCPTimeout=60
SlurmdTimeout=0
BatchStartTimeout=600
NodeName=localhost NodeHostname={host} NodeAddr=127.0.0.1 CPUs={cpus} RealMemory=4096
PartitionName=all Nodes=localhost Default=YES OverSubscribe=FORCE:4
"""


def why_not() -> str:
    """Returns what is missing on this machine; '' if nothing."""
    missing = [name for name in PROGRAMS if shutil.which(name, path=PATH) is None]
    if missing:
        return f"{', '.join(missing)}: not installed (Debian: slurm-wlm)"
    return ""


@contextmanager
def slurm(folder: Path) -> Iterator[dict[str, str]]:
    """Runs the two daemons; yields environment variables with which `srun` finds them."""
    for name in ("state", "spool"):
        (folder / name).mkdir(parents=True)
    conf = folder / "slurm.conf"
    controller, node = free_port(), free_port()
    conf.write_text(CONF.format(host=socket.gethostname().partition(".")[0], controller=controller, node=node,
                                user=os.geteuid(), folder=folder, cpus=4))
    environ = os.environ | {"PATH": PATH, "SLURM_CONF": str(conf)}
    daemons = [subprocess.Popen([shutil.which(name, path=PATH) or name, "-D", "-f", conf], env=environ,
                                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
               for name in PROGRAMS[:2]]
    try:
        _wait(lambda: _asked("sinfo", "-h", "-o", "%T", environ=environ) == "idle", folder)
        yield {"PATH": PATH, "SLURM_CONF": str(conf)}
    finally:
        try:  # job steps need both daemons to end
            _asked("scancel", "--quiet", "--me", environ=environ)
            _wait(lambda: not _asked("squeue", "-h", environ=environ), folder)
        finally:
            for daemon in reversed(daemons):
                daemon.terminate()
                daemon.wait(PATIENCE_S)


def _asked(*command: str, environ: dict[str, str]) -> str:
    return subprocess.run(command, env=environ, capture_output=True, text=True, check=False).stdout.strip()


def _wait(ready: Callable[[], bool], folder: Path) -> None:
    until = time.monotonic() + PATIENCE_S
    while not ready():
        assert time.monotonic() < until, "\n".join(path.read_text() for path in folder.glob("*.log"))
        time.sleep(0.1)
