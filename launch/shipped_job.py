"""What is alike in jobs that distprof ships and records itself: their environment and their rendezvous."""

from __future__ import annotations

from collections.abc import Mapping

OF_OTHERS = ("DISTPROF_", "PET_")
"""Begin names of variables that set what is recorded, and flags of torchrun."""
KEPT = ("DISTPROF_DEBUG", "DISTPROF_PLAIN_ENGINE")
ON_THIS_MACHINE = ("--no-progress", "--standalone", "--local-addr=127.0.0.1")
"""Flags of `distprof run`. No name of this machine is looked up, which takes long, or fails, without a network."""


def forgotten(environ: Mapping[str, str]) -> list[str]:
    """Variables that another job has set and that a shipped job must not see."""
    return [name for name in environ if name.startswith(OF_OTHERS) and name not in KEPT]
