"""What clients change of a gateway with several workers: kept by the process above them.

It makes each change itself first, as it decides whether the change can be made, and can send all
that was changed to a worker that comes later. Files of shared memory are opened by their names here
alone, and by workers as this process's open files, so that all have the same object under a name,
also when its name was given to another one meanwhile.
"""

from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Final

from google.protobuf.message import Message

from services.gateway.api.log_settings import log_settings
from services.gateway.api.service import request_class
from services.gateway.api.trace_settings import READ_ONLY, TraceSettings
from services.gateway.shared_memory.regions import SharedMemoryRegions
from services.gateway.shared_memory.rpcs import (
    REGISTER,
    UNREGISTER,
    region_changes,
)
from services.gateway.workers.change_channel import Change
from services.pb import open_inference_v2_pb2 as pb

_LOG = "LogSettings"
_TRACE = "TraceSetting"
# The RPCs that change a gateway itself; a model's state is the fleet's.
CHANGING: Final = (_LOG, _TRACE, REGISTER, UNREGISTER)
# Those that change the fleet, which comes to each worker from the controller: sooner or later.
FOLLOWED: Final = ("RepositoryModelLoad", "RepositoryModelUnload")


def is_reading(request: Any) -> bool:
    """Whether a request changes nothing, so that any worker can answer it."""
    return isinstance(request, pb.LogSettingsRequest | pb.TraceSettingRequest) and (
        not request.settings
    )


class CommonState:
    """The present state; changed from one event loop, one change at a time."""

    def __init__(self, trace_share: float, regions: SharedMemoryRegions | None = None) -> None:
        """As workers start.

        Args:
            trace_share: the share of requests that begin a trace then.
            regions: none are registered; by default those of this host.
        """
        self.regions = regions or SharedMemoryRegions()
        # By the RPC, what sets all that it can as it is now.
        self._settings = dict[str, Any]()
        self._answers: dict[str, Callable[[Any], Awaitable[Message]]] = {
            _LOG: log_settings,
            # Workers trace requests, not this process.
            _TRACE: TraceSettings(trace_share, lambda _: None).answer,
            **region_changes(self.regions),
        }

    async def make(self, change: Change) -> tuple[bytes, Change]:
        """Make a change that a client asked for; its answer, and what workers have to do.

        Raises:
            SmeltError: it cannot be made, and nothing was changed.
        """
        name = change.name
        request = request_class(name).FromString(change.body)
        answer = await self._answers[name](request)
        if name in (_LOG, _TRACE):
            # Not what was asked for: that can grow with each request.
            settings = request_class(name).FromString(answer.SerializeToString())
            for read_only in READ_ONLY:
                settings.settings.pop(read_only, None)
            self._settings[name] = settings
        fd = self.regions.region(request.name).fd if name == REGISTER else -1
        return answer.SerializeToString(), change._replace(fd=fd)

    def changes(self) -> Iterator[Change]:
        """What leads from a worker's first state to the present one."""
        for name, settings in self._settings.items():
            yield Change(name, settings.SerializeToString())
        for region in self.regions.all():
            body = region.request().SerializeToString()
            yield Change(REGISTER, body, region.owner, region.fd)

    def close(self) -> None:
        """Let go of every region."""
        self.regions.close()
