"""The devices of this machine, by platform: the CPU always, CUDA where there is one."""

from contextlib import suppress

from services.contracts.errors import NotFoundError
from services.contracts.hardware.facts import DeviceFacts, Generation, Platform
from services.engines.device.device_probe import probe_device

Devices = dict[Platform, DeviceFacts]


def local_devices(override: str = "") -> Devices:
    """Facts of the CPU and of the first CUDA device.

    Args:
        override: a generation that this machine reports (a simulation); "" detects.

    Raises:
        InvalidRequestError: the override is no generation.
    """
    if override:
        simulated = probe_device(override=override)
        # What else is here would be built for too, and is no part of what is simulated.
        host = {Platform.CPU: probe_device(Platform.CPU)}
        return host | {simulated.parsed_generation.platform: simulated}
    devices = {Platform.CPU: probe_device(Platform.CPU)}
    with suppress(NotFoundError):
        devices[Platform.CUDA] = probe_device(Platform.CUDA)
    return devices


def main_device(devices: Devices) -> DeviceFacts:
    """The device that a replica of this machine would serve on."""
    return devices.get(Platform.CUDA) or devices[Platform.CPU]


def device_that_runs(generation: Generation, devices: Devices) -> DeviceFacts | None:
    """The local device that runs code of a generation; None when another machine must."""
    device = devices.get(generation.platform)
    if device is None or not generation.runs_on(device.parsed_generation):
        return None
    return device
