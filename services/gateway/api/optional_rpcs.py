"""What is off unless the settings switch it on: RPCs, and the extensions that announce them."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from google.protobuf.message import Message

from services.contracts.security.fleet_dialer import FleetDialer
from services.gateway.api.disabled_rpcs import disabled_reasons
from services.gateway.api.log_settings import log_settings
from services.gateway.api.metadata import EXTENSIONS
from services.gateway.api.model_control import ModelControl
from services.gateway.api.trace_settings import TraceSettings
from services.gateway.routing.endpoints import EndpointSet
from services.gateway.settings import GatewaySettings
from services.gateway.shared_memory.regions import SharedMemoryRegions
from services.gateway.shared_memory.rpcs import shared_memory_methods
from services.gateway.workers.keeper_link import KeeperLink
from services.telemetry.tracing import Tracing


class OptionalRpcs:
    """The RPCs beyond those that every gateway answers.

    Attributes:
        methods: what answers each of them, by the RPC's name.
        extensions: all that works with these settings, in the protocol's words.
        disabled: why others are not offered, see `disabled_rpcs.py`.
        regions: of shared memory; none can be registered where that is off.
    """

    def __init__(
        self,
        settings: GatewaySettings,
        endpoints: EndpointSet,
        dialer: FleetDialer,
        tracing: Tracing | None = None,
        keeper: KeeperLink | None = None,
    ) -> None:
        """Nothing is open yet; without `tracing` there is nothing to set of it.

        With `keeper`, that of several workers, changes are made in all of them.
        """
        self.regions = SharedMemoryRegions()
        self.methods: dict[str, Callable[[Any], Awaitable[Message]]] = {}
        self._followers: dict[str, Callable[[Any], Awaitable[None]]] = {}
        self.extensions = set(EXTENSIONS)
        self.disabled = disabled_reasons(is_admin=settings.admin, is_traced=tracing is not None)
        if settings.shared_memory:
            self._switch_on("system_shared_memory", shared_memory_methods(self.regions))
        if settings.admin:
            control = ModelControl(settings.controller, endpoints, dialer)
            self._switch_on("logging", {"LogSettings": log_settings})
            self._switch_on("model_repository", control.methods)
            self._followers |= control.followers
        if settings.admin and tracing:
            settings_of_traces = TraceSettings(tracing.share, tracing.set_share)
            self._switch_on("trace", {"TraceSetting": settings_of_traces.answer})
        if keeper:
            self.methods = keeper.shared(self.methods, self._followers, self.regions)

    def close(self) -> None:
        """Let go of every region."""
        self.regions.close()

    def _switch_on(
        self, extension: str, methods: Mapping[str, Callable[[Any], Awaitable[Message]]]
    ) -> None:
        self.extensions.add(extension)
        self.methods.update(methods)
