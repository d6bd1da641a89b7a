"""Which replicas may answer a request; which of them does is in `balancer.py`."""

import random
import re
import time
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from services.contracts.errors import InvalidRequestError, NotFoundError, NotReadyError
from services.gateway.routing.balancer import Choice, choice_of
from services.gateway.routing.endpoint_weights import ends_of_shares, weigh
from services.gateway.routing.fleet_view import DiscoveredFleet, ServedModel
from services.gateway.routing.sessions import share_of
from services.gateway.upstream.endpoint import Endpoint

# int() would also take signs, spaces, underscores and digits of other scripts.
_VERSION: Final = re.compile("[1-9][0-9]{0,17}")


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Pool:
    """The endpoints that may answer for one version of a model; never empty.

    Attributes:
        endpoints: all of them.
        choice: those that requests are sent to, without outliers; never empty either.
        split: how versions share what names none; only for the empty version, if at all.
    """

    model: str
    version: str
    endpoints: tuple[Endpoint, ...]
    choice: Choice
    split: "Split | None" = None

    def drawn(self, session: int) -> "Pool":
        """One version's pool, by the versions' weights; the same for all of a session."""
        if self.split is None:
            return self
        shares, pools = self.split
        at = share_of(session) if session else random.random()  # noqa: S311 - no secret
        return pools[bisect_right(shares, at)]


class Split(NamedTuple):
    """Pools of versions, and the upper ends of their shares of [0, 1)."""

    shares: tuple[float, ...]
    pools: tuple[Pool, ...]


@dataclass(frozen=True, kw_only=True)
class RoutingTable:
    """Everything that routing asks, made anew after each change of the fleet.

    Attributes:
        view: the controller's last snapshot.
        pools: by model name and version as text; version "" is the newest that is ready, or
            what versions with weights share.
    """

    view: DiscoveredFleet = field(default_factory=DiscoveredFleet)
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
        """Whether a request for it would be sent now; false for unknown models."""
        return (model, version) in self.pools

    def is_every_model_ready(self) -> bool:
        """Whether there is a model, and each one that is not unloaded can be asked."""
        models = self.view.models
        wanted = [m for m in models if not all(v.is_unloaded for v in models[m].values())]
        return bool(wanted) and all((model, "") in self.pools for model in wanted)

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
        fix = (
            f"; have it served again with: smelt models load {model}" if served.is_unloaded else ""
        )
        return f"model '{model}'{which} has no ready replica: {reason}{fix}"


def routing_table(
    view: DiscoveredFleet,
    endpoints: Iterable[Endpoint],
    *,
    now_s: float | None = None,
    slow_start_s: float = 0.0,
) -> RoutingTable:
    """Sort the endpoints of models that the controller serves into pools, and weigh them."""
    at_s = time.monotonic() if now_s is None else now_s
    by_version: dict[tuple[str, int], list[Endpoint]] = {}
    for endpoint in endpoints:
        name, number = endpoint.replica.model_name, endpoint.replica.model_version
        served = view.models.get(name, {}).get(number)
        if served is not None and not served.is_unloaded:
            by_version.setdefault((name, number), []).append(endpoint)
    pools: dict[tuple[str, str], Pool] = {}
    # Ascending, so that the newest version is the last to claim the empty name.
    for (name, number), members in sorted(by_version.items(), key=lambda item: item[0]):
        weigh(members, at_s, slow_start_s)
        # Somebody has to answer: where all are outliers, none is.
        chosen = [each for each in members if each.ejected_until_s <= at_s] or members
        pool = Pool(
            model=name, version=str(number), endpoints=tuple(members), choice=choice_of(chosen)
        )
        pools[name, str(number)] = pools[name, ""] = pool
    for name, versions in view.models.items():
        if shared := _shared(name, versions, pools):
            pools[name, ""] = shared
    return RoutingTable(view=view, pools=pools)


def _shared(
    name: str, versions: Mapping[int, ServedModel], pools: Mapping[tuple[str, str], Pool]
) -> Pool | None:
    """What answers for a model whose versions have weights: the heaviest, and how they share.

    Versions without a ready replica leave their shares to the others; None when none can be asked.
    """
    weights = {
        pool: served.weight
        for number, served in versions.items()
        if served.weight > 0 and (pool := pools.get((name, str(number))))
    }
    if not weights:
        return None
    ordered = sorted(weights, key=lambda pool: -weights[pool])
    split = Split(ends_of_shares([weights[pool] for pool in ordered]), tuple(ordered))
    return replace(ordered[0], split=split if len(ordered) > 1 else None)


def _listed(versions: Mapping[int, ServedModel]) -> str:
    return ", ".join(str(number) for number in sorted(versions))


def _no_word_yet() -> NotReadyError:
    return NotReadyError("this gateway has not heard from the controller yet; try again shortly")
