"""Readings of GPUs: NVIDIA's through NVML (`nvidia-ml-py`, of the extra `nvml`), AMD's through ROCm's `amdsmi`."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from typing import Any

from distprof.contract.conditions import named
from distprof.launch.watching.readings.processes import RankPids
from distprof.launch.watching.readings.rates import Rates, Values, put

REASONS = {"gpu_thermal": 0x20 | 0x40, "gpu_power": 0x04, "gpu_brake": 0x80, "gpu_slowdown": 0x08}
"""Bits of nvmlClocksEventReasons: thermal slowdown by software and by hardware, power cap, power brake, and hardware
slowdown, which is also set together with the bits of the hardware's reasons."""
SAID_WHY = 0x40 | 0x80
"""Bits of the hardware's reasons: thermal slowdown and power brake."""
LINK_ERRORS = range(4)
"""nvmlNvLinkErrorCounter_t: replays, recoveries, and CRC errors of flits and of data."""
MOST_LINKS = 18
"""Most NVLinks of a GPU."""


class _Gpu:
    """A GPU. What its driver does not support is tried only once."""

    _questions: list[Callable[[Values], None]]

    def __init__(self, number: int) -> None:
        self._number, self._rates = number, Rates()

    def read(self, into: Values) -> None:
        """Reads everything that the driver supports.

        Raises:
            OSError: The driver supports nothing, or the GPU is lost.
        """
        for question in list(self._questions):
            try:
                question(into)
            except Exception:  # noqa: BLE001 (not supported, not permitted, or the GPU is lost)
                self._questions.remove(question)
        if not self._questions:
            raise OSError("the GPU answers nothing")

    def _put(self, into: Values, name: str, value: object) -> None:
        # AMD's library returns "N/A" for unknown values
        put(into, named(name, self._number), float(value) if isinstance(value, int | float) else None)


def nvidia_readings(pids: RankPids, of_job: Callable[[], set[int]]) -> list[Callable[[Values], None]]:
    """Returns the readings of all NVIDIA GPUs; none without the library or the driver.

    Args:
        pids: Returns the process id of each rank on this host.
        of_job: Returns all process ids of the job.
    """
    try:
        nvml = import_module("pynvml")
        nvml.nvmlInit()
        handles = [nvml.nvmlDeviceGetHandleByIndex(number) for number in range(nvml.nvmlDeviceGetCount())]
    except Exception:  # noqa: BLE001 (no library, no driver, or one that is broken: there is nothing to read)
        return []
    return [_NvidiaGpu(nvml, handle, number, pids, of_job).read for number, handle in enumerate(handles)]


class _NvidiaGpu(_Gpu):
    def __init__(self, nvml: Any, handle: Any, number: int, pids: RankPids, of_job: Callable[[], set[int]]) -> None:
        super().__init__(number)
        self._nvml, self._handle, self._pids, self._of_job = nvml, handle, pids, of_job
        self._links = list(range(MOST_LINKS))
        self._asked_us = time.time_ns() // 1000
        self._told: set[int] = set()
        self._questions = [
            self._clock, self._power, self._heat, self._reasons, self._use, self._corrected, self._uncorrected,
            self._link_errors, self._bus, self._processes, self._others]

    def _clock(self, into: Values) -> None:
        self._put(into, "gpu_mhz", self._nvml.nvmlDeviceGetClockInfo(self._handle, self._nvml.NVML_CLOCK_SM))
        self._put(into, "gpu_most_mhz", self._nvml.nvmlDeviceGetMaxClockInfo(self._handle, self._nvml.NVML_CLOCK_SM))

    def _power(self, into: Values) -> None:
        self._put(into, "gpu_watts", self._nvml.nvmlDeviceGetPowerUsage(self._handle) / 1000)
        self._put(into, "gpu_most_watts", self._nvml.nvmlDeviceGetEnforcedPowerLimit(self._handle) / 1000)

    def _heat(self, into: Values) -> None:
        self._put(into, "gpu_celsius",
                  self._nvml.nvmlDeviceGetTemperature(self._handle, self._nvml.NVML_TEMPERATURE_GPU))

    def _reasons(self, into: Values) -> None:
        bits = self._nvml.nvmlDeviceGetCurrentClocksThrottleReasons(self._handle)
        for name, some in REASONS.items():
            self._put(into, name, float(bool(bits & some) and not (name == "gpu_slowdown" and bits & SAID_WHY)))

    def _use(self, into: Values) -> None:
        self._put(into, "gpu_busy", self._nvml.nvmlDeviceGetUtilizationRates(self._handle).gpu / 100)

    def _corrected(self, into: Values) -> None:
        self._put(into, "gpu_ecc_corrected", self._rates.per_second("corrected", self._errors(0)))

    def _uncorrected(self, into: Values) -> None:
        self._put(into, "gpu_ecc_uncorrected", self._errors(1))

    def _errors(self, kind: int) -> int:
        return int(self._nvml.nvmlDeviceGetTotalEccErrors(self._handle, kind, self._nvml.NVML_VOLATILE_ECC))

    def _link_errors(self, into: Values) -> None:
        total = 0
        for link in list(self._links):
            try:
                total += sum(self._nvml.nvmlDeviceGetNvLinkErrorCounter(self._handle, link, kind)
                             for kind in LINK_ERRORS)
            except self._nvml.NVMLError:
                self._links.remove(link)
        if not self._links:
            raise OSError("no NVLink")
        self._put(into, "gpu_link_errors", self._rates.per_second(f"links {self._links}", total))

    def _bus(self, into: Values) -> None:
        self._put(into, "gpu_lanes", self._nvml.nvmlDeviceGetCurrPcieLinkWidth(self._handle))
        replays = self._nvml.nvmlDeviceGetPcieReplayCounter(self._handle)
        self._put(into, "gpu_replays", self._rates.per_second("replays", replays))

    def _processes(self, into: Values) -> None:
        """Reads which ranks use this GPU; unknown if the driver reports process ids of another namespace."""
        here = {one.pid for one in self._nvml.nvmlDeviceGetComputeRunningProcesses(self._handle)}
        self._told |= here
        for rank, pid in self._pids().items():
            if pid in here:
                into[named("rank_gpu", rank)] = self._number

    def _others(self, into: Values) -> None:
        """Reads the use by processes outside of the job; unknown if the driver reports ids of another namespace."""
        job, samples = self._of_job(), []
        with suppress(self._nvml.NVMLError_NotFound):  # no process has used the GPU
            samples = self._nvml.nvmlDeviceGetProcessUtilization(self._handle, self._asked_us)
        self._asked_us = time.time_ns() // 1000 - 1_000_000
        if job & self._told:
            use: dict[int, int] = {}
            for one in samples:
                if one.pid not in job and one.pid:
                    use[one.pid] = max(use.get(one.pid, 0), one.smUtil)
            self._put(into, "gpu_others", min(sum(use.values()) / 100, 1.0))


ACTIVE = {"gpu_thermal": ("active_socket_thrm", "active_vr_thrm", "active_hbm_thrm"), "gpu_power": ("active_ppt_pwr",),
          "gpu_slowdown": ("active_prochot_thrm",)}
"""Fields of `amdsmi_get_violation_status` that show what limits the clock."""


def amd_readings(pids: RankPids) -> list[Callable[[Values], None]]:
    """Returns the readings of all AMD GPUs; none without the library or the driver."""
    try:
        smi = import_module("amdsmi")
        smi.amdsmi_init()
        handles = smi.amdsmi_get_processor_handles()
    except Exception:  # noqa: BLE001 (no library, no driver, or one that is broken: there is nothing to read)
        return []
    return [_AmdGpu(smi, handle, number, pids).read for number, handle in enumerate(handles)]


class _AmdGpu(_Gpu):
    def __init__(self, smi: Any, handle: Any, number: int, pids: RankPids) -> None:
        super().__init__(number)
        self._smi, self._handle, self._pids = smi, handle, pids
        self._bad = 0
        """How often the status of the links was one of errors."""
        self._questions = [
            self._clock, self._power, self._heat, self._reasons, self._use, self._errors, self._link_errors,
            self._processes]

    def _clock(self, into: Values) -> None:
        found = self._smi.amdsmi_get_clock_info(self._handle, self._smi.AmdSmiClkType.GFX)
        self._put(into, "gpu_mhz", found["clk"])
        self._put(into, "gpu_most_mhz", found["max_clk"])

    def _power(self, into: Values) -> None:
        found = self._smi.amdsmi_get_power_info(self._handle)
        now = [found.get(name) for name in ("current_socket_power", "average_socket_power")]
        self._put(into, "gpu_watts", next((value for value in now if isinstance(value, int | float)), None))
        most = self._smi.amdsmi_get_power_cap_info(self._handle)["power_cap"]
        self._put(into, "gpu_most_watts", most / 1e6 if isinstance(most, int | float) else None)

    def _heat(self, into: Values) -> None:
        kinds, now = self._smi.AmdSmiTemperatureType, self._smi.AmdSmiTemperatureMetric.CURRENT
        self._put(into, "gpu_celsius", self._smi.amdsmi_get_temp_metric(self._handle, kinds.HOTSPOT, now))

    def _reasons(self, into: Values) -> None:
        found = self._smi.amdsmi_get_violation_status(self._handle)
        for name, fields in ACTIVE.items():
            known = [found[field] for field in fields if isinstance(found.get(field), bool | int)]
            self._put(into, name, float(any(known)) if known else None)

    def _use(self, into: Values) -> None:
        busy = self._smi.amdsmi_get_gpu_activity(self._handle)["gfx_activity"]
        self._put(into, "gpu_busy", busy / 100 if isinstance(busy, int | float) else None)

    def _errors(self, into: Values) -> None:
        found = self._smi.amdsmi_get_gpu_total_ecc_count(self._handle)
        self._put(into, "gpu_ecc_corrected", self._rates.per_second("corrected", found["correctable_count"]))
        self._put(into, "gpu_ecc_uncorrected", found["uncorrectable_count"])

    def _link_errors(self, into: Values) -> None:
        # the status is of the time since it was read last: reading resets it
        self._bad += self._smi.amdsmi_gpu_xgmi_error_status(self._handle) != self._smi.AmdSmiXgmiStatus.NO_ERRORS
        self._put(into, "gpu_link_errors", self._rates.per_second("links", self._bad))

    def _processes(self, into: Values) -> None:
        here = {one["pid"] for one in self._smi.amdsmi_get_gpu_process_list(self._handle)}
        for rank, pid in self._pids().items():
            if pid in here:
                into[named("rank_gpu", rank)] = self._number
