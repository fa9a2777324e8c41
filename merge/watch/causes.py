"""The table of machine conditions that slow a job down: their thresholds, and the sentences that name them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

import numpy as np

from distprof.arrays import Flags, Floats
from distprof.contract.conditions import named
from distprof.merge.watch.coincidence import Change
from distprof.merge.watch.machines import HostConditions

Scope = Literal["host", "part", "rank", "gpu"]
"""What a condition belongs to: the host, one of its disks or network interfaces (`part`), a rank, or a GPU."""
HEAT = "thermal"
REASONS = {"gpu_thermal": HEAT, "gpu_brake": "power brake", "gpu_slowdown": "hardware slowdown",
           "gpu_power": "power limit"}
"""Readings that say why the clock of a GPU is limited -> the words for it."""
MUCH_BUSIER = 0.1
"""Increase of a host's CPU time, as a fraction, that may itself be why its CPUs are slower."""
BUSY = 0.5
"""The clock of a processor or GPU that is busy for less than this share of the time may be low for lack of work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A condition that changed, with its place and the moments in which it was worse."""

    host: HostConditions
    which: str
    """The disk, interface, rank or GPU; '' for the host."""
    change: Change
    during: Flags
    """Whether each moment of the host is during the finding; shape (moments,)."""

    @property
    def name(self) -> str:
        """The host name."""
        return self.host.host

    @property
    def gpu(self) -> str:
        """The GPU in words."""
        return f"GPU {self.which} of {self.name}"

    def median(self, reading: str) -> float:
        """Returns the median of another reading of the same disk, interface, rank or GPU during the finding, or NaN."""
        return self.middle(named(reading, self.which))

    def middle(self, column: str) -> float:
        """Returns the median of another column of the host during the finding; NaN if unknown."""
        values = self.host.column(column)[self.during]
        values = values[~np.isnan(values)]
        return float(np.median(values)) if len(values) else float("nan")

    def elsewhere(self, column: str) -> float:
        """Returns the median of another column of the host outside of the finding; NaN if unknown."""
        values = self.host.column(column)[~self.during]
        values = values[~np.isnan(values)]
        return float(np.median(values)) if len(values) else float("nan")

    def others(self) -> str:
        """Returns the process outside of the job that was most often among those that used most CPU time; '' for
        none."""
        names = [name for place in np.flatnonzero(self.during) for name in self.host.others[place].split(", ") if name]
        # of equally frequent ones, the first
        return max(dict.fromkeys(names), key=names.count, default="")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """A condition. Larger values are worse."""

    reading: str
    scope: Scope
    family: str
    """Of the conditions of one family that were found on a host or GPU, only the first in `CAUSES` is named."""
    bad: float
    """Smallest value that can slow a job down."""
    change: float
    """Smallest increase over the value before."""
    words: Callable[[Found], str]
    """Returns the sentence."""
    ratio: float = 0.0
    """Smallest ratio to the value before."""
    events: bool = False
    """Whether values are rates of single events, such as errors."""
    worse: Callable[[HostConditions, str], Floats] | None = None
    """Computes the values from a host and `which`; None: they are those of the column."""
    counts: Callable[[Found], bool] = lambda found: True
    """Returns False if the condition slows nobody down although its value is bad."""

    def values(self, host: HostConditions, which: str) -> Floats:
        """Returns the values at the moments of the host, larger is worse; shape (moments,)."""
        if self.worse is not None:
            return self.worse(host, which)
        return host.column(named(self.reading, which) if which else self.reading)


def _percent(ratio: float) -> str:
    return f"{100 * ratio:.0f} %"


def _rate(bytes_per_s: float) -> str:
    return f"{bytes_per_s / 1e9:.1f} GB/s" if bytes_per_s >= 1e9 else f"{bytes_per_s / 1e6:.0f} MB/s"


def _often(per_second: float) -> str:
    return f"{per_second:,.0f} per second" if per_second >= 2 else f"{60 * per_second:,.0f} per minute"


def _gpu_loss(host: HostConditions, which: str) -> Floats:
    with np.errstate(divide="ignore", invalid="ignore"):
        lost: Floats = 1 - host.column(named("gpu_mhz", which)) / host.column(named("gpu_most_mhz", which))
    return lost


def _cpu_loss(host: HostConditions, which: str) -> Floats:
    with np.errstate(divide="ignore", invalid="ignore"):
        lost: Floats = 1 - host.column("cpu_mhz") / host.column("cpu_most_mhz")
    return lost


def _slowness(host: HostConditions, which: str) -> Floats:
    """Returns how much longer than in the fastest tenth of the time a fixed piece of work takes, as a fraction."""
    spent = host.column("work_us")
    known = spent[~np.isnan(spent)]
    slower: Floats = spent / (np.percentile(known, 10) if len(known) else np.nan) - 1
    return slower


def _lanes_lost(host: HostConditions, which: str) -> Floats:
    lanes = host.column(named("gpu_lanes", which))
    known = lanes[~np.isnan(lanes)]
    lost: Floats = (known.max() if len(known) else np.nan) - lanes
    return lost


def _net_use(host: HostConditions, which: str) -> Floats:
    """Returns the load of an interface as a share of its speed; of 10 Gbit/s, the least that hosts have, if unknown."""
    most = host.column(named("net_most_bytes", which))
    use: Floats = host.column(named("net_bytes", which)) / np.where(np.isnan(most), 1.25e9, most)
    return use


def _reasons(found: Found) -> list[str]:
    return [words for reading, words in REASONS.items() if found.median(reading) >= 0.5]


def _is_slowed(found: Found) -> bool:
    """Returns whether a GPU reports a reason for a lower clock; if it reports nothing at all, whether it is busy."""
    silent = all(np.isnan(found.median(reading)) for reading in REASONS)
    return found.median("gpu_busy") >= BUSY if silent else bool(_reasons(found))


def _gpu_clock(found: Found) -> str:
    reasons = _reasons(found)
    now, most = found.median("gpu_mhz"), found.median("gpu_most_mhz")
    return (f"{found.gpu} runs at {now:,.0f} of {most:,.0f} MHz"
            + (f": {' and '.join(reasons[:2])}" if reasons else ""))


def _cpu_clock(found: Found) -> str:
    hot = found.middle("cpu_throttles") > 0
    return (f"{found.name}: CPUs run at {found.middle('cpu_mhz'):,.0f} of "
            f"{found.middle('cpu_most_mhz'):,.0f} MHz" + (f": {HEAT}" if hot else ""))


def _is_not_its_own_doing(found: Found) -> bool:
    """Returns whether the host is as busy as otherwise: cores that share a clock, or units, slow each other down."""
    return found.middle("busy") - found.elsewhere("busy") < MUCH_BUSIER


def _slow_work(found: Found) -> str:
    ratio = (1 + found.change.during) / (1 + found.change.before)
    return (f"{found.name}: the same work takes {ratio:.1f} times as much CPU time as before (a lower clock, or cores "
            "shared with other virtual machines)")


def _load(found: Found) -> str:
    since = datetime.fromtimestamp(found.change.since_s).strftime("%H:%M")
    names = found.others()
    return (f"{found.name}: {found.middle('runnable'):.1f} runnable processes per CPU since {since} "
            f"({names + ', ' if names else ''}not part of this job)")


def _pinned(found: Found) -> str:
    count, names = found.median("rank_processors"), found.others()
    return (f"rank {found.which} is limited to {count:.0f} CPU{'s' * (count != 1)} of {found.name}, and other "
            f"processes use {_percent(found.change.during)} of {'it' if count == 1 else 'them'}"
            f"{f': {names}' if names else ''}")


def _slow_disk(found: Found) -> str:
    return (f"{found.name}: requests to {found.which} take {found.change.during:,.0f} ms "
            f"({found.change.before:.1f} ms before)")


def _busy_net(found: Found) -> str:
    most = found.median("net_most_bytes")
    return (f"{found.name}: {found.which} carries {_rate(found.median('net_bytes'))}"
            + (f" of {_rate(most)}" if not np.isnan(most) else "")
            + f", {_times(found.change)}")


def _times(change: Change) -> str:
    return f"{change.during / change.before:.1f} times as much as before" if change.before > 0.01 \
        else "almost nothing before"


CAUSES = (
    Cause(reading="gpu_mhz", scope="gpu", family="clock", bad=0.04, change=0.04, worse=_gpu_loss, counts=_is_slowed,
          words=_gpu_clock),
    Cause(reading="gpu_ecc_uncorrected", scope="gpu", family="memory errors", bad=1, change=1,
          words=lambda found: f"{found.gpu}: {found.change.during - found.change.before:,.0f} "
                              "uncorrected memory errors"),
    Cause(reading="gpu_ecc_corrected", scope="gpu", family="memory errors", bad=0.03, change=0.03, events=True,
          words=lambda found: f"{found.gpu}: corrected memory errors, {_often(found.change.during)}"),
    Cause(reading="gpu_link_errors", scope="gpu", family="link", bad=0.05, change=0.05, events=True,
          words=lambda found: f"{found.gpu}: NVLink or xGMI errors, {_often(found.change.during)}"),
    Cause(reading="gpu_lanes", scope="gpu", family="bus", bad=1, change=1, worse=_lanes_lost,
          words=lambda found: f"{found.gpu} uses {found.median('gpu_lanes'):.0f} PCIe lanes, "
                              f"{found.median('gpu_lanes') + found.change.during - found.change.before:.0f} before"),
    Cause(reading="gpu_replays", scope="gpu", family="bus", bad=0.2, change=0.2, events=True,
          words=lambda found: f"{found.gpu}: repeated PCIe transfers, {_often(found.change.during)}"),
    Cause(reading="gpu_others", scope="gpu", family="others", bad=0.1, change=0.1,
          words=lambda found: f"{found.gpu} is busy {_percent(found.change.during)} of the time "
                              "with processes that are not part of this job"),
    Cause(reading="rank_stopped", scope="rank", family="processors", bad=0.05, change=0.05,
          words=lambda found: f"rank {found.which} on {found.name} is throttled by the CPU quota of its cgroup in "
                              f"{_percent(found.change.during)} of the periods"),
    Cause(reading="rank_others", scope="rank", family="processors", bad=0.2, change=0.15, words=_pinned,
          counts=lambda found: found.median("rank_processors") < found.host.num_processors
          and not found.median("rank_waits") < 0.05),
    Cause(reading="others", scope="host", family="processors", bad=0.25, change=0.2, words=_load,
          counts=lambda found: found.middle("runnable") >= 1),
    Cause(reading="steal", scope="host", family="processors", bad=0.05, change=0.05,
          words=lambda found: f"{found.name}: other virtual machines take {_percent(found.change.during)} "
                              "of the CPU time (steal)"),
    Cause(reading="rank_waits", scope="rank", family="processors", bad=0.1, change=0.08,
          words=lambda found: f"rank {found.which} on {found.name} waits for a CPU "
                              f"{_percent(found.change.during)} of the time"),
    Cause(reading="psi_cpu", scope="host", family="processors", bad=0.25, change=0.2,
          words=lambda found: f"{found.name}: tasks wait for a CPU {_percent(found.change.during)} of the time"),
    Cause(reading="cpu_mhz", scope="host", family="clock", bad=0.1, change=0.1, worse=_cpu_loss, words=_cpu_clock,
          counts=lambda found: found.middle("busy") >= BUSY or found.middle("cpu_throttles") > 0),
    Cause(reading="cpu_throttles", scope="host", family="clock", bad=0.1, change=0.1, events=True,
          words=lambda found: f"{found.name}: CPUs are throttled because of heat, {_often(found.change.during)}"),
    Cause(reading="work_us", scope="host", family="clock", bad=0.15, change=0.12, worse=_slowness,
          counts=_is_not_its_own_doing, words=_slow_work),
    Cause(reading="psi_memory", scope="host", family="memory", bad=0.05, change=0.05,
          words=lambda found: f"{found.name}: tasks wait for memory {_percent(found.change.during)} of the time"),
    Cause(reading="swap_bytes", scope="host", family="memory", bad=1e6, change=1e6,
          words=lambda found: f"{found.name}: {_rate(found.change.during)} to and from swap"),
    Cause(reading="disk_wait_ms", scope="part", family="disk", bad=10, change=5, ratio=2, words=_slow_disk,
          counts=lambda found: found.median("disk_busy") >= 0.2),
    Cause(reading="psi_io", scope="host", family="disk", bad=0.1, change=0.08,
          words=lambda found: f"{found.name}: tasks wait for I/O {_percent(found.change.during)} of the time"),
    Cause(reading="net_errors", scope="part", family="network", bad=0.1, change=0.1, events=True,
          words=lambda found: f"{found.name}: errors on {found.which}, {_often(found.change.during)}"),
    Cause(reading="resent", scope="host", family="network", bad=0.01, change=0.01,
          words=lambda found: f"{found.name}: {100 * found.change.during:.1f} % of TCP segments are retransmitted"),
    Cause(reading="net_drops", scope="part", family="network", bad=2, change=2, events=True,
          words=lambda found: f"{found.name}: {found.which} drops packets, {_often(found.change.during)}"),
    Cause(reading="net_bytes", scope="part", family="network", bad=0.25, change=0.15, ratio=1.3, worse=_net_use,
          words=_busy_net),
)
"""In the order in which they are named; only the first of a family is."""
