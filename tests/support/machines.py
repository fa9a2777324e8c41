"""Simulates readings of hosts while a job runs, with noise, periodic load and planted faults."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from distprof.contract.watch_state import WatchFinding
from distprof.merge.watch.machines import Conditions

BEGIN_S = 1_800_000_000
PER_HOST = 4
"""Number of ranks, and of GPUs, per host."""
PROCESSORS = 64


@dataclass(slots=True, kw_only=True)
class Machines:
    """Readings of the hosts of a job as columns, one value per second."""

    rng: np.random.Generator
    num_hosts: int
    num_seconds: int
    columns: dict[str, dict[str, np.ndarray]] = field(default_factory=dict)
    others: dict[str, list[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for number in range(self.num_hosts):
            self.columns[f"host{number}"] = self._usual(number)
            self.others[f"host{number}"] = ["sshd"] * self.num_seconds

    @property
    def rank_host(self) -> dict[int, str]:
        return {rank: f"host{rank // PER_HOST}" for rank in range(self.num_hosts * PER_HOST)}

    @property
    def rank_device(self) -> dict[int, int]:
        return {rank: rank % PER_HOST for rank in self.rank_host}

    def wander(self, middle: float, spread: float, memory: float = 0.8) -> np.ndarray:
        """Returns an AR(1) process around a mean that drifts over a day."""
        kicks = self.rng.normal(0, spread * (1 - memory ** 2) ** 0.5, self.num_seconds)
        found, value = np.empty(self.num_seconds), 0.0
        for place, kick in enumerate(kicks):
            value = memory * value + kick
            found[place] = value
        phase, day = self.rng.uniform(0, 2 * np.pi), 2 * np.pi / 86_400
        drift = 0.3 * middle * np.sin(phase + day * np.arange(self.num_seconds))
        return np.maximum(middle + drift + found, 0)

    def bursts(self, every_s: float, long_s: float, size: tuple[float, float]) -> np.ndarray:
        """Returns random bursts: mean interval `every_s`, mean duration `long_s`, uniform size."""
        found = np.zeros(self.num_seconds)
        at = self.rng.exponential(every_s)
        while at < self.num_seconds:
            lasts = self.rng.exponential(long_s)
            found[int(at):int(at + lasts) + 1] = self.rng.uniform(*size)
            at += lasts + self.rng.exponential(every_s)
        return found

    def rare(self, every_s: float, size: int = 1) -> np.ndarray:
        return size * (self.rng.random(self.num_seconds) < 1 / every_s)

    def _usual(self, number: int) -> dict[str, np.ndarray]:
        disk, cron = self.bursts(240, 6, (0.3, 1)), self.bursts(600, 12, (0.05, 0.4))
        found = {
            "cpu_mhz": 3000 - self.wander(200, 60), "cpu_most_mhz": np.full(self.num_seconds, 3500.0),
            "work_us": 16 + self.wander(0.5, 0.4) + self.bursts(300, 5, (1, 9)),
            "cpu_throttles": self.rare(2000), "busy": np.clip(self.wander(0.3, 0.03) + cron, 0, 1),
            "runnable": self.rng.poisson(20 + 64 * cron) / PROCESSORS, "steal": self.rare(500) * 0.02,
            "others": self.wander(0.01, 0.005) + cron, "psi_cpu": self.wander(0.02, 0.02) + cron / 4,
            "psi_memory": self.bursts(1200, 4, (0, 0.1)), "psi_io": np.clip(self.wander(0.01, 0.02) + disk / 3, 0, 1),
            "memory_available": 0.6 + self.wander(0.1, 0.01, 0.99), "swap_bytes": self.bursts(1500, 4, (0, 5e6)),
            "disk_busy/nvme0n1": np.clip(self.wander(0.05, 0.03) + disk, 0, 1),
            "disk_wait_ms/nvme0n1": self.rng.lognormal(0, 0.8, self.num_seconds) + 40 * disk,
            "disk_bytes/nvme0n1": self.wander(2e7, 1e7) + 1e9 * disk,
            "net_bytes/eth0": np.clip(self.wander(0.15, 0.05) + self.bursts(400, 8, (0.1, 0.5)), 0, 1) * 1.25e9,
            "net_most_bytes/eth0": np.full(self.num_seconds, 1.25e9), "net_errors/eth0": self.rare(3000),
            "net_drops/eth0": self.rare(900, 3), "resent": self.rare(60) * self.rng.uniform(0, 0.02),
        }
        for gpu in range(PER_HOST):
            found |= self._gpu(gpu) | self._rank(number * PER_HOST + gpu)
        return found

    def _gpu(self, gpu: int) -> dict[str, np.ndarray]:
        capped = (self.wander(0.5, 0.3) > 0.7).astype(float)
        return {
            f"gpu_mhz/{gpu}": 1980 - 15 * self.rng.integers(0, 3, self.num_seconds) - 45 * capped,
            f"gpu_most_mhz/{gpu}": np.full(self.num_seconds, 1980.0), f"gpu_watts/{gpu}": self.wander(600, 30),
            f"gpu_celsius/{gpu}": self.wander(62, 2), f"gpu_busy/{gpu}": np.clip(self.wander(0.9, 0.1), 0, 1),
            f"gpu_thermal/{gpu}": self.rare(1500), f"gpu_power/{gpu}": capped,
            f"gpu_brake/{gpu}": np.zeros(self.num_seconds), f"gpu_slowdown/{gpu}": np.zeros(self.num_seconds),
            f"gpu_ecc_corrected/{gpu}": self.rare(1800), f"gpu_ecc_uncorrected/{gpu}": np.zeros(self.num_seconds),
            f"gpu_link_errors/{gpu}": self.rare(4000), f"gpu_replays/{gpu}": self.rare(1500),
            f"gpu_lanes/{gpu}": np.full(self.num_seconds, 16.0), f"gpu_others/{gpu}": np.zeros(self.num_seconds),
        }

    def _rank(self, rank: int) -> dict[str, np.ndarray]:
        cron = self.bursts(600, 6, (0.1, 0.6))
        return {f"rank_processors/{rank}": np.full(self.num_seconds, 1.0),
                f"rank_others/{rank}": np.clip(self.wander(0.03, 0.03) + cron, 0, 1),
                f"rank_waits/{rank}": np.clip(self.wander(0.01, 0.01) + cron / 2, 0, 1),
                f"rank_stopped/{rank}": self.rare(900) * 0.1}

    def conditions(self) -> Conditions:
        """Returns the `Conditions` after all readings."""
        told = Conditions()
        for host, columns in self.columns.items():
            late_s = self.rng.uniform(0, 1)
            for second in range(self.num_seconds):
                told.add(host, PROCESSORS, int((BEGIN_S + second + late_s) * 1e9),
                         {name: float(values[second]) for name, values in columns.items()}, self.others[host][second])
        return told


Plant = Callable[[Machines, int, slice], None]


def finding(machines: Machines, ranks: list[int], onset_s: float, kind: str = "slow_rank") -> WatchFinding:
    """Returns the finding that these ranks are slow from a second of the simulation on."""
    hosts = [machines.rank_host[rank] for rank in ranks]
    return WatchFinding(id="1", kind=kind, ranks=ranks, hosts=sorted(set(hosts)), onset_step=1000,
                        onset_ns=int((BEGIN_S + onset_s) * 1e9))


def pinned(machines: Machines, rank: int, when: slice) -> None:
    """A busy loop runs on the only processor that a rank may use."""
    columns, host = machines.columns[machines.rank_host[rank]], machines.rank_host[rank]
    share = machines.rng.uniform(0.35, 0.6)
    columns[f"rank_others/{rank}"][when] = np.clip(machines.wander(share, 0.05)[when], 0, 1)
    columns[f"rank_waits/{rank}"][when] = np.clip(machines.wander(share, 0.08)[when], 0, 1)
    machines.others[host][when] = ["python"] * len(machines.others[host][when])


def memory(machines: Machines, rank: int, when: slice) -> None:
    """Memory is short, so the host swaps."""
    columns, share = machines.columns[machines.rank_host[rank]], machines.rng.uniform(0.12, 0.6)
    columns["psi_memory"][when] = np.clip(machines.wander(share, share / 3)[when], 0, 1)
    columns["psi_io"][when] = np.clip(columns["psi_io"][when] + columns["psi_memory"][when] / 2, 0, 1)
    columns["swap_bytes"][when] = machines.wander(1e8, 5e7)[when]
    columns["memory_available"][when] = 0.02


def disk(machines: Machines, rank: int, when: slice) -> None:
    """A disk is slow."""
    columns, wait_ms = machines.columns[machines.rank_host[rank]], machines.rng.uniform(25, 200)
    count = len(columns["psi_io"][when])
    columns["disk_wait_ms/nvme0n1"][when] = wait_ms * machines.rng.lognormal(0, 0.5, count)
    columns["disk_busy/nvme0n1"][when] = np.clip(machines.wander(0.9, 0.1)[when], 0, 1)
    columns["psi_io"][when] = np.clip(machines.wander(0.35, 0.1)[when], 0, 1)


def network(machines: Machines, rank: int, when: slice) -> None:
    """Other programs use the network."""
    columns, use = machines.columns[machines.rank_host[rank]], machines.rng.uniform(0.6, 0.95)
    columns["net_bytes/eth0"][when] = np.clip(machines.wander(use, 0.06)[when], 0, 1) * 1.25e9
    columns["resent"][when] = np.maximum(machines.wander(machines.rng.uniform(0, 0.03), 0.005)[when], 0)


def throttling(machines: Machines, rank: int, when: slice) -> None:
    """A GPU throttles because it is too hot."""
    columns, gpu = machines.columns[machines.rank_host[rank]], machines.rank_device[rank]
    mhz = machines.rng.uniform(900, 1700)
    count = len(columns["psi_io"][when])
    columns[f"gpu_mhz/{gpu}"][when] = mhz + machines.rng.normal(0, 40, count)
    columns[f"gpu_thermal/{gpu}"][when] = machines.rng.random(count) < 0.9
    columns[f"gpu_celsius/{gpu}"][when] = 89


def ecc(machines: Machines, rank: int, when: slice) -> None:
    """A GPU repeatedly corrects memory errors."""
    columns, gpu = machines.columns[machines.rank_host[rank]], machines.rank_device[rank]
    count = len(columns["psi_io"][when])
    columns[f"gpu_ecc_corrected/{gpu}"][when] = machines.rng.poisson(machines.rng.uniform(0.2, 5), count)


def slow_cores(machines: Machines, rank: int, when: slice) -> None:
    """The processors of a virtual machine do less per second."""
    work = machines.columns[machines.rank_host[rank]]["work_us"]
    work[when] = machines.rng.uniform(1.25, 1.7) * 16 + machines.wander(0.5, 1.5)[when]


PLANTS: dict[str, tuple[Plant, tuple[str, ...]]] = {
    "pinned": (pinned, ("is limited to 1 CPU",)), "memory": (memory, ("wait for memory", "swap")),
    "disk": (disk, ("requests to", "wait for I/O")),
    "network": (network, ("eth0 carries", "TCP segments")), "throttling": (throttling, ("MHz: thermal",)),
    "ecc": (ecc, ("corrected memory errors",)), "slow cores": (slow_cores, ("times as much CPU time",)),
}
"""Name -> plant, and phrases of which the named cause must contain one."""
