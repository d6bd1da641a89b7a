"""Models and fleets that the gateway's tests are about."""

from collections.abc import Callable
from typing import Any

import pytest

from services.contracts.kserve.tensor_spec import TensorSpec
from services.contracts.model.batching import Batching
from services.contracts.model.manifest import MasterRecord, ModelVersion
from services.contracts.model.recipe import Bucket, DimRange, Recipe
from services.gateway.routing.fleet_view import (
    DiscoveredFleet,
    EngineInUse,
    ReplicaInfo,
    ServedModel,
)
from services.gateway.upstream.endpoint import Endpoint

INPUTS = (
    TensorSpec(name="ids", datatype="INT64", shape=("batch", "sequence")),
    TensorSpec(name="mask", datatype="INT64", shape=("batch", "sequence")),
)
OUTPUTS = (TensorSpec(name="embedding", datatype="FP32", shape=("batch", 384)),)
BUCKETS = (
    Bucket(dims={"batch": DimRange(min=1, opt=1, max=1)}),
    Bucket(dims={"batch": DimRange(min=1, opt=8, max=32)}),
)


def build_model(
    name: str = "minilm",
    version: int = 1,
    *,
    inputs: tuple[TensorSpec, ...] = INPUTS,
    outputs: tuple[TensorSpec, ...] = OUTPUTS,
    buckets: tuple[Bucket, ...] = BUCKETS,
    batching: Batching | None = None,
) -> ModelVersion:
    """A model version with nothing in the store."""
    master = MasterRecord(
        digest="d" * 64, files={}, inputs=inputs, outputs=outputs, opset=23, num_parameters=1
    )
    return ModelVersion(
        name=name,
        version=version,
        master=master,
        recipe=Recipe(buckets=buckets, batching=batching or Batching()),
        source="test",
        source_fingerprint="f",
        created_at="2025-01-01T00:00:00Z",
    )


def build_replica(replica_id: str = "r1", **changes: Any) -> ReplicaInfo:
    """A ready replica of minilm version 1."""
    facts: dict[str, Any] = {
        "replica_id": replica_id,
        "model_name": "minilm",
        "model_version": 1,
        "is_ready": True,
        "addresses": ("unix:/run/r1", "127.0.0.1:7"),
        "token": bytes(range(32)),
        "host_id": "here",
        "generation": "cpu-x86_64-v3",
        "engine": EngineInUse(
            digest="e", kind="openvino", precision="fp32", generation="g", fallback_reason=""
        ),
    }
    return ReplicaInfo(**facts | changes)


def build_endpoint(replica_id: str = "r1", num_outstanding: int = 0, **changes: Any) -> Endpoint:
    """An endpoint that is only looked at: nothing is sent through it."""
    replica = build_replica(replica_id, **changes)
    return Endpoint(replica=replica, connection=None, num_outstanding=num_outstanding)  # type: ignore[arg-type]


def build_view(*models: ModelVersion, reason: str = "") -> DiscoveredFleet:
    """What the controller says when it serves these models."""
    by_name: dict[str, dict[int, ServedModel]] = {}
    for model in models:
        served = ServedModel(document=model, state="READY", reason=reason)
        by_name.setdefault(model.name, {})[model.version] = served
    return DiscoveredFleet(is_known=True, models=by_name)


@pytest.fixture(scope="session")
def new_model() -> Callable[..., ModelVersion]:
    return build_model


@pytest.fixture(scope="session")
def new_replica() -> Callable[..., ReplicaInfo]:
    return build_replica


@pytest.fixture(scope="session")
def new_endpoint() -> Callable[..., Endpoint]:
    return build_endpoint


@pytest.fixture(scope="session")
def new_view() -> Callable[..., DiscoveredFleet]:
    return build_view
