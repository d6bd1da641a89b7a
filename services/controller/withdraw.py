"""Withdraws a fleet from a Ray cluster that goes on: `python -m services.controller.withdraw`.

Run by `smelt down`, also when the controller is away: build tasks are ended, replicas drained and
their applications deleted; Serve ends too where no other application is left. Settings are the
controller's.
"""

import logging
import sys
import time
from typing import Final

from services.contracts.errors import SmeltError
from services.contracts.process.settings import read_settings
from services.controller.platform.ray.ray_tasks import end_all_tasks
from services.controller.platform.ray.replica_fleet import (
    RayServeFleet,
    key_from_application,
    retried,
)
from services.controller.platform.ray.serve_apps import RayServeApps
from services.controller.settings import ControllerSettings
from services.telemetry.logs import configure_logging

logger = logging.getLogger(__name__)

# Longer than a replica's own drain.
_TIMEOUT_S: Final = 60.0
_POLL_S: Final = 0.1


def withdraw(settings: ControllerSettings) -> None:
    """Remove what this host's fleet has on the cluster; blocks.

    Raises:
        InvalidRequestError: the cluster does not answer, or has another fleet.
    """
    from ray import serve

    fleet = RayServeFleet(settings.ray_address, settings.replica_app, settings.store_url)
    fleet.start()
    num_tasks = end_all_tasks()
    keys = fleet.deployed()
    for key in keys:
        fleet.remove(key)
    apps = RayServeApps(settings.replica_host)
    ends_s = time.monotonic() + _TIMEOUT_S
    while (has_apps := apps.apply([])) or fleet.deployed():
        if time.monotonic() > ends_s:
            break
        time.sleep(_POLL_S)  # Serve has no event of a deleted application
    apps.end_proxy()
    if (left := fleet.deployed()) or has_apps:
        words = ", and external models'" if has_apps else ""
        logger.warning("%d applications%s still end after %g s", len(left), words, _TIMEOUT_S)
    others = [a for a in retried(serve.status).applications if key_from_application(a) is None]
    if not others:
        serve.shutdown()
    fleet.stop()
    logger.info("withdrew %d applications and %d build tasks", len(keys), num_tasks)


def main() -> int:
    """Withdraw; the process's exit status."""
    configure_logging("withdraw")
    try:
        withdraw(read_settings(ControllerSettings))
    except SmeltError as error:
        logger.error("the fleet is not withdrawn: %s", error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
