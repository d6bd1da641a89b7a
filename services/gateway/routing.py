"""Which replica answers a request: who may, and which of them is chosen."""

import random
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from services.contracts.errors import InvalidRequestError, NotFoundError, NotReadyError
from services.gateway.endpoint import Endpoint
from services.gateway.fleet_view import FleetView, ServedModel

# int() would also take signs, spaces, underscores and digits of other scripts.
_VERSION: Final = re.compile("[1-9][0-9]{0,17}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Pool:
    """The endpoints that may answer for one version of a model; never empty."""

    model: str
    version: str
    endpoints: tuple[Endpoint, ...]


@dataclass(frozen=True, kw_only=True)
class RoutingTable:
    """Everything that routing asks, made anew after each change of the fleet.

    Attributes:
        view: what the controller last said.
        pools: by model name and version as text; version "" is the newest that is ready.
    """

    view: FleetView = field(default_factory=FleetView)
    pools: Mapping[tuple[str, str], Pool] = field(default_factory=dict)

    def pool(self, model: str, version: str) -> Pool:
        """The endpoints for a request.

        Raises:
            NotFoundError: no such model or version.
            NotReadyError: it is known, and no replica can answer now.
            InvalidRequestError: the version is not a number.
        """
        if pool := self.pools.get((model, version)):
            return pool
        raise NotReadyError(self._why_not_ready(model, self.version_number(model, version)))

    def served(self, model: str, version: str) -> ServedModel:
        """The model version that a question without tensors is about.

        Version "" is the newest one that is ready, else the newest.

        Raises:
            NotFoundError, InvalidRequestError: as `pool`.
        """
        number = self.version_number(model, version)
        versions = self.view.models[model]
        if number is None:
            ready = self.pools.get((model, ""))
            number = int(ready.version) if ready else max(versions)
        return versions[number]

    def version_number(self, model: str, version: str) -> int | None:
        """The version asked for, None for the newest; raises as `pool` for unknown ones."""
        versions = self.view.models.get(model)
        if versions is None:
            raise self._unknown(f"Request for unknown model: '{model}' is not found")
        if version == "":
            return None
        if not _VERSION.fullmatch(version):
            raise InvalidRequestError(
                f"model '{model}': version '{version}' is not a number; known: {_listed(versions)}"
            )
        if int(version) not in versions:
            raise self._unknown(
                f"Request for unknown model: '{model}' version {version} is not found; "
                f"known versions: {_listed(versions)}"
            )
        return int(version)

    def is_ready(self, model: str, version: str) -> bool:
        """Whether a request for it would be sent now; false for what nobody knows."""
        return (model, version) in self.pools

    def is_every_model_ready(self) -> bool:
        """Whether each model of the fleet can be asked in some version, and there is one."""
        return bool(self.view.models) and all((m, "") in self.pools for m in self.view.models)

    def labels(self, model: str, version: str) -> tuple[str, str]:
        """Model and version as metric labels: "" for what the fleet does not know."""
        versions = self.view.models.get(model)
        if versions is None:
            return "", ""
        is_known = bool(_VERSION.fullmatch(version)) and int(version) in versions
        return model, version if is_known else ""

    def _unknown(self, message: str) -> NotFoundError | NotReadyError:
        # Before the controller's first word nothing can be called unknown.
        return NotFoundError(message) if self.view.is_known else _no_word_yet()

    def _why_not_ready(self, model: str, number: int | None) -> str:
        versions = self.view.models[model]
        served = versions[max(versions) if number is None else number]
        which = "" if number is None else f" version {number}"
        reason = served.reason or "its replicas are starting, or were just lost"
        return f"model '{model}'{which} has no ready replica: {reason}"


def routing_table(view: FleetView, endpoints: Iterable[Endpoint]) -> RoutingTable:
    """Sort the endpoints of models that the controller serves into pools."""
    by_version: dict[tuple[str, int], list[Endpoint]] = {}
    for endpoint in endpoints:
        name, number = endpoint.replica.model_name, endpoint.replica.model_version
        if number in view.models.get(name, {}):
            by_version.setdefault((name, number), []).append(endpoint)
    pools: dict[tuple[str, str], Pool] = {}
    # Ascending, so that the newest version is the last to claim the empty name.
    for (name, number), members in sorted(by_version.items(), key=lambda item: item[0]):
        pool = Pool(model=name, version=str(number), endpoints=tuple(members))
        pools[name, str(number)] = pools[name, ""] = pool
    return RoutingTable(view=view, pools=pools)


def choose(endpoints: tuple[Endpoint, ...], draw: Callable[[], float] = random.random) -> Endpoint:
    """The less loaded of two endpoints drawn at random; `draw` gives numbers in [0, 1).

    Two draws keep many gateways from all picking the same idle replica, which the least
    loaded of all would make them do.
    """
    num = len(endpoints)
    if num == 1:
        return endpoints[0]
    first = int(draw() * num)
    second = int(draw() * (num - 1))
    second += second >= first
    one, other = endpoints[first], endpoints[second]
    return other if other.num_outstanding < one.num_outstanding else one


def others_than(
    tried: Sequence[Endpoint], endpoints: tuple[Endpoint, ...], *, is_lost: bool
) -> tuple[Endpoint, ...]:
    """Whom else to ask; after a loss, the endpoints of other hosts if there are any.

    A host that goes down takes its replicas with it one by one, so that for some moments the
    neighbours of a lost one only look alive.
    """
    others = tuple(endpoint for endpoint in endpoints if endpoint not in tried)
    if not is_lost:
        return others
    host = tried[-1].replica.host_id
    return tuple(each for each in others if each.replica.host_id != host) or others


def _listed(versions: Mapping[int, ServedModel]) -> str:
    return ", ".join(str(number) for number in sorted(versions))


def _no_word_yet() -> NotReadyError:
    return NotReadyError("this gateway has not heard from the controller yet; try again shortly")
