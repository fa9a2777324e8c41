"""What devices did, in `--json` of `comms` and `waits`; docs/devices.md describes the keys."""

from __future__ import annotations

from typing import Any

from distprof.merge.activity.device.mean_steps import (
    calls_meanwhile,
    host_meanwhile,
    lines_meanwhile,
    mean_device_steps,
    mean_streams,
)
from distprof.merge.activity.device.rank_device import DeviceSteps


def devices_data(devices: DeviceSteps) -> dict[str, Any]:
    """The mean step of each device, each step, its streams, and what hosts do while devices wait for them."""
    return {"steps": mean_device_steps(devices).to_dicts(), "by_step": devices.steps.to_dicts(),
            "streams": mean_streams(devices), "host_meanwhile": host_meanwhile(devices).to_dicts(),
            "calls_meanwhile": calls_meanwhile(devices).to_dicts(),
            "lines_meanwhile": lines_meanwhile(devices).to_dicts(),
            "in_no_step": devices.outside.to_dicts()}
