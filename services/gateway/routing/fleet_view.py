"""The controller's last snapshot of the fleet, as values of this process."""

import logging
import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache

from pydantic import ValidationError

from services.contracts.external.external_model import ExternalModel
from services.contracts.hardware.facts import generation_named
from services.contracts.model.manifest import ModelVersion
from services.contracts.transport.frames import NO_TOKEN
from services.pb import fleet_v1_pb2 as fleet

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class ServedModel:
    """A model version that is, or will be, served.

    Attributes:
        document: of a model with a master, or of an external one.
        state: READY, STANDBY or UNAVAILABLE, in the controller's eyes; the gateway's own
            connections decide what can be asked.
        reason: why it is not ready; "" when it is.
        weight: its share of requests that name no version, relative to other versions'; where
            all have 0 the newest gets them.
        is_unloaded: it gets no request until it is loaded.
    """

    document: ModelVersion | ExternalModel
    state: str
    reason: str
    weight: float = 0.0
    is_unloaded: bool = False

    @property
    def is_on_demand(self) -> bool:
        """Whether a request has it loaded, where it has no replica."""
        document = self.document
        is_own = isinstance(document, ModelVersion) and document.recipe.is_on_demand
        return is_own and not self.is_unloaded


@dataclass(frozen=True, kw_only=True)
class EngineInUse:
    """What a replica computes with; the fallback has a reason and no digest."""

    digest: str
    kind: str
    precision: str
    generation: str
    fallback_reason: str


@dataclass(frozen=True, kw_only=True)
class ReplicaInfo:
    """One replica, as it reported itself.

    Attributes:
        is_ready: whether it takes requests.
        addresses: `unix:/path` or `host:port`.
        token: that its data port requires.
        generation: of its device; "" until it is known.
        speeds: samples per second of its engine by shape, as proven; empty when not measured.
        is_interim: a stand-in serves until its fallback is compiled.
        is_stale: it was ready when its stream to the controller was lost; whether it serves on only
            those know that are connected to it.
        external: in place of a replica, the model that another server serves.
    """

    replica_id: str
    model_name: str
    model_version: int
    is_ready: bool
    addresses: tuple[str, ...]
    token: bytes
    host_id: str
    generation: str
    engine: EngineInUse
    speeds: Mapping[str, float] = field(default_factory=dict)
    is_interim: bool = False
    is_stale: bool = False
    external: ExternalModel | None = None


@dataclass(frozen=True, kw_only=True)
class DiscoveredFleet:
    """Models by name and version, replicas by id.

    Attributes:
        is_known: False until the controller has spoken for the first time.
        epoch: of the controller process, different for each.
    """

    is_known: bool = False
    epoch: int = 0
    models: Mapping[str, Mapping[int, ServedModel]] = field(default_factory=dict)
    replicas: Mapping[str, ReplicaInfo] = field(default_factory=dict)

    @cached_property
    def on_demand(self) -> Collection[str]:
        """Models of which a version is on demand."""
        models = self.models.items()
        return {name for name, each in models if any(v.is_on_demand for v in each.values())}

    def is_served(self, model: str, version: int) -> bool:
        """Whether the version is there and not unloaded."""
        served = self.models.get(model, {}).get(version)
        return served is not None and not served.is_unloaded


def fleet_view_from_snapshot(snapshot: fleet.FleetSnapshot) -> DiscoveredFleet:
    """Read a snapshot; a model or a replica that cannot be read is logged and left out."""
    models: dict[str, dict[int, ServedModel]] = {}
    for served in snapshot.models:
        if document := _document(served):
            entry = ServedModel(
                document=document,
                state=served.state,
                reason=served.reason,
                is_unloaded=served.is_unloaded,
                weight=served.weight if 0.0 < served.weight < math.inf else 0.0,
            )
            models.setdefault(served.name, {})[served.version] = entry
    unseen = (replace(replica, is_stale=True) for replica in _replicas(snapshot.unseen))
    seen = _replicas(snapshot.replicas)
    external = _externals(models)
    replicas = {replica.replica_id: replica for replica in (*unseen, *seen, *external)}
    return DiscoveredFleet(is_known=True, epoch=snapshot.epoch, models=models, replicas=replicas)


def _externals(models: Mapping[str, Mapping[int, ServedModel]]) -> Iterator[ReplicaInfo]:
    """A replica for each external version that the controller found ready: its server."""
    for served in (each for versions in models.values() for each in versions.values()):
        model = served.document
        if isinstance(model, ExternalModel) and served.state == "READY":
            yield ReplicaInfo(
                replica_id=f"external {model.name}/{model.version}",
                model_name=model.name,
                model_version=model.version,
                is_ready=True,
                addresses=(model.url,),
                token=NO_TOKEN,
                host_id="",
                generation="",
                engine=EngineInUse(
                    digest="",
                    kind=model.protocol.value,
                    precision="",
                    generation="",
                    fallback_reason="",
                ),
                external=model,
            )


def _document(served: fleet.ServedModel) -> ModelVersion | ExternalModel | None:
    # One model of a newer controller must not take the others down.
    try:
        if served.external_json:
            return ExternalModel.from_json(served.external_json)
        return _model_version(served.model_version_json)
    except (ValidationError, RecursionError) as error:
        logger.error("model '%s' version %d skipped: %s", served.name, served.version, error)
        return None


def _replicas(reports: Iterable[fleet.ReplicaReport]) -> Iterator[ReplicaInfo]:
    for report in reports:
        try:
            yield _replica(report)
        except Exception:  # whatever it is: a replica writes what it likes, and the others serve
            logger.exception("replica '%s' skipped", report.replica_id)


def _replica(report: fleet.ReplicaReport) -> ReplicaInfo:
    return ReplicaInfo(
        replica_id=report.replica_id,
        model_name=report.model_name,
        model_version=report.model_version,
        is_ready=report.state == fleet.REPLICA_STATE_READY,
        addresses=tuple(report.addresses),
        # Empty from a replica that takes anybody.
        token=report.data_token or NO_TOKEN,
        host_id=report.host_id,
        generation=generation_named(report.device_facts_json),
        engine=EngineInUse(
            digest=report.engine_digest,
            kind=report.engine_kind,
            precision=report.engine_precision,
            generation=report.engine_generation,
            fallback_reason=report.fallback_reason,
        ),
        speeds={
            speed.shape: speed.samples_per_s
            for speed in report.engine_speeds
            if 0.0 < speed.samples_per_s < math.inf
        },
        is_interim=report.is_fallback_interim,
    )


# Documents never change, and each snapshot repeats all of them.
@lru_cache(maxsize=1024)
def _model_version(data: bytes) -> ModelVersion:
    return ModelVersion.from_json(data)
