"""Which replicas may answer a request; which of them does is in `balancer.py`."""

import re
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from services.contracts.errors import InvalidRequestError, NotFoundError, NotReadyError
from services.contracts.external.external_model import ExternalModel, ServerProtocol
from services.contracts.text.nearest import nearest
from services.gateway.access.caller import CALLER_NAME
from services.gateway.routing.balancer import choice_of
from services.gateway.routing.endpoint_weights import weigh
from services.gateway.routing.fleet_view import DiscoveredFleet, ServedModel
from services.gateway.routing.pool import Pool, shared_pool
from services.gateway.upstream.endpoint import Endpoint

# Letters of a name, and names, that an unknown one is compared with.
_MOST_COMPARED: Final = 200
# int() would also take signs, spaces, underscores and digits of other scripts.
_VERSION: Final = re.compile("[1-9][0-9]{0,17}")


@dataclass(frozen=True, kw_only=True)
class RoutingTable:
    """Everything that routing reads, made anew after each change of the fleet.

    Attributes:
        view: the controller's last snapshot.
        pools: by model name and version as text; version "" is the newest that is ready, or
            what versions with weights share.
        were_ready: keys of pools, in this table or in one before, whose versions are served: of
            version "" any of the model's.
        has_external: whether there is an endpoint of an external model.
    """

    view: DiscoveredFleet = field(default_factory=DiscoveredFleet)
    pools: Mapping[tuple[str, str], Pool] = field(default_factory=dict)
    were_ready: Collection[tuple[str, str]] = frozenset()
    has_external: bool = False

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
        """The model version that a metadata request is about.

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
            raise self._unknown(
                f"Request for unknown model: '{model}' is not found{self._nearest(model)}; "
                "RepositoryIndex and smelt models list show those that are"
            )
        if version == "":
            return None
        if not _VERSION.fullmatch(version):
            raise InvalidRequestError(
                f"model '{model}': version '{version}' is not a number; known: {_listed(versions)}"
            )
        if int(version) not in versions:
            raise self._unknown(
                f"Request for unknown model: '{model}' version {version} is not found; "
                f"known versions: {_listed(versions)}; leave the version empty for the newest"
            )
        return int(version)

    def is_ready(self, model: str, version: str) -> bool:
        """Whether a request for it would be sent now; false for unknown models."""
        return (model, version) in self.pools

    def would_answer(self, model: str, version: str) -> bool:
        """Whether it is ready, or on demand: then a request has it loaded, and waits for it."""
        if self.is_ready(model, version):
            return True
        return model in self.view.on_demand and self.returning(model, version) is not None

    def returning(self, model: str, version: str) -> int | None:
        """The version asked for if it served before and the controller has it served again.

        Of several, as version "" is any, the newest that served, else one that is about to, in
        the place of another; None for one that never served and is not on demand, or whose
        replicas the controller cannot start.
        """
        has_served = (model, version) in self.were_ready
        if not has_served and model not in self.view.on_demand:
            return None
        known = self.view.models.get(model, {})
        found = (
            number
            for number in known
            if version in ("", str(number))
            and (has_served or known[number].is_on_demand)
            and self.view.is_served(model, number)
            and known[number].state != "UNAVAILABLE"
            # The fleet has no state of an external server.
            and not isinstance(known[number].document, ExternalModel)
        )
        # No pass over all models' keys: everything that waits asks at each change of the table.
        served = self.were_ready
        return max(found, key=lambda n: ((model, str(n)) in served, n), default=None)

    def speaks(self, model: str, protocol: ServerProtocol) -> bool:
        """Whether it is an external model of that protocol."""
        documents = (each.document for each in self.view.models.get(model, {}).values())
        return any(isinstance(d, ExternalModel) and d.protocol is protocol for d in documents)

    def is_every_model_ready(self) -> bool:
        """Whether there is a model, and each one that is not unloaded would answer."""
        models = self.view.models
        wanted = [m for m in models if not all(v.is_unloaded for v in models[m].values())]
        return bool(wanted) and all(self.would_answer(model, "") for model in wanted)

    def labels(self, model: str, version: str) -> tuple[str, str]:
        """Model and version as metric labels: "" for what the fleet does not know."""
        versions = self.view.models.get(model)
        if versions is None:
            return "", ""
        is_known = bool(_VERSION.fullmatch(version)) and int(version) in versions
        return model, version if is_known else ""

    def _unknown(self, message: str) -> NotFoundError | NotReadyError:
        # Before the controller's first word nothing can be called unknown.
        return NotFoundError(message) if self.view.is_known else _no_snapshot_yet()

    def _nearest(self, model: str) -> str:
        """The known name nearest to one; "" where a caller with a token may not know of it."""
        if CALLER_NAME.get() or len(model) > _MOST_COMPARED:
            return ""
        # On the event loop: bounded.
        return nearest(model, islice(self.view.models, _MOST_COMPARED))

    def _why_not_ready(self, model: str, number: int | None) -> str:
        versions = self.view.models[model]
        served = versions[max(versions) if number is None else number]
        which = "" if number is None else f" version {number}"
        reason = served.reason or "its replicas are starting, or were just lost"
        fix = f"; to serve it again: smelt models load {model}" if served.is_unloaded else ""
        return f"model '{model}'{which} has no ready replica: {reason}{fix}"


def routing_table(
    view: DiscoveredFleet,
    endpoints: Iterable[Endpoint],
    *,
    now_s: float | None = None,
    slow_start_s: float = 0.0,
    former: RoutingTable | None = None,
) -> RoutingTable:
    """Sort the endpoints of models that the controller serves into pools, and weigh them.

    Args:
        view: models, versions and their weights, as the controller sent them last.
        endpoints: with an open connection; those of versions that are not served are left out.
        now_s: `time.monotonic()`; None reads it.
        slow_start_s: seconds in which a new replica's share rises to its whole; 0 gives it at once.
        former: the table before; None for the first.
    """
    at_s = time.monotonic() if now_s is None else now_s
    by_version: dict[tuple[str, int], list[Endpoint]] = {}
    has_external = False
    for endpoint in endpoints:
        name = endpoint.replica.model_name
        number = endpoint.replica.model_version
        if view.is_served(name, number):
            by_version.setdefault((name, number), []).append(endpoint)
            has_external |= endpoint.replica.external is not None
    pools: dict[tuple[str, str], Pool] = {}
    by_model: dict[str, dict[int, Pool]] = {}
    # Sorted, so that a session's share is of the same version in every gateway.
    for (name, number), members in sorted(by_version.items(), key=lambda item: item[0]):
        weigh(members, at_s, slow_start_s)
        # A pool must not be empty: where all are outliers, none is.
        chosen = [each for each in members if each.ejected_until_s <= at_s] or members
        pool = Pool(
            model=name, version=str(number), endpoints=tuple(members), choice=choice_of(chosen)
        )
        pools[name, str(number)] = by_model.setdefault(name, {})[number] = pool
    for name, versions in by_model.items():
        weights = {number: served.weight for number, served in view.models[name].items()}
        pools[name, ""] = shared_pool(versions, weights)
    kept = {key for key in (former.were_ready if former else ()) if _is_served(view, *key)}
    return RoutingTable(
        view=view, pools=pools, were_ready=pools.keys() | kept, has_external=has_external
    )


def _is_served(view: DiscoveredFleet, model: str, version: str) -> bool:
    numbers = [int(version)] if version else view.models.get(model, {})
    return any(view.is_served(model, number) for number in numbers)


def _listed(versions: Mapping[int, ServedModel]) -> str:
    return ", ".join(str(number) for number in sorted(versions))


def _no_snapshot_yet() -> NotReadyError:
    return NotReadyError("this gateway has no snapshot of the controller yet; try again shortly")
