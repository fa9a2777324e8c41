"""AMD's GPUs, through the library of ROCm, `amdsmi`: the same columns as of NVIDIA's."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from distprof.contract.conditions import named
from distprof.launch.watching.readings.processes import RankPids
from distprof.launch.watching.readings.rates import Rates, Values, put

ACTIVE = {"gpu_thermal": ("active_socket_thrm", "active_vr_thrm", "active_hbm_thrm"), "gpu_power": ("active_ppt_pwr",),
          "gpu_slowdown": ("active_prochot_thrm",)}
"""Fields of `amdsmi_get_violation_status` that say what limits the clock."""


def readings(pids: RankPids) -> list[Callable[[Values], None]]:
    """What can be read about the GPUs; nothing without the library or the driver."""
    try:
        smi = import_module("amdsmi")
        smi.amdsmi_init()
        handles = smi.amdsmi_get_processor_handles()
    except Exception:  # noqa: BLE001 (no library, no driver, or one that is broken: there is nothing to read)
        return []
    return [_Gpu(smi, handle, number, pids).read for number, handle in enumerate(handles)]


class _Gpu:
    """One; what its driver does not support is asked for once."""

    def __init__(self, smi: Any, handle: Any, number: int, pids: RankPids) -> None:
        self._smi, self._handle, self._number, self._pids, self._rates = smi, handle, number, pids, Rates()
        self._questions: list[Callable[[Values], None]] = [
            self._clock, self._power, self._heat, self._reasons, self._use, self._errors, self._link_errors,
            self._processes]

    def read(self, into: Values) -> None:
        """Everything that it answers."""
        for question in list(self._questions):
            try:
                question(into)
            except Exception:  # noqa: BLE001 (not supported, not permitted, or the GPU is lost)
                self._questions.remove(question)
        if not self._questions:
            raise OSError("the GPU answers nothing")

    def _put(self, into: Values, name: str, value: object) -> None:
        # "N/A" is how the library says that it does not know
        put(into, named(name, self._number), float(value) if isinstance(value, int | float) else None)

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
        bad = int(self._smi.amdsmi_gpu_xgmi_error_status(self._handle) != self._smi.AmdSmiXgmiStatus.NO_ERRORS)
        self._put(into, "gpu_link_errors", bad)

    def _processes(self, into: Values) -> None:
        here = {one["pid"] for one in self._smi.amdsmi_get_gpu_process_list(self._handle)}
        for rank, pid in self._pids().items():
            if pid in here:
                into[named("rank_gpu", rank)] = self._number
