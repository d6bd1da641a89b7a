from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ReplicaState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    REPLICA_STATE_UNSPECIFIED: _ClassVar[ReplicaState]
    REPLICA_STATE_LOADING: _ClassVar[ReplicaState]
    REPLICA_STATE_READY: _ClassVar[ReplicaState]
    REPLICA_STATE_DRAINING: _ClassVar[ReplicaState]
    REPLICA_STATE_FAILED: _ClassVar[ReplicaState]
REPLICA_STATE_UNSPECIFIED: ReplicaState
REPLICA_STATE_LOADING: ReplicaState
REPLICA_STATE_READY: ReplicaState
REPLICA_STATE_DRAINING: ReplicaState
REPLICA_STATE_FAILED: ReplicaState

class ReplicaReport(_message.Message):
    __slots__ = ("replica_id", "model_name", "model_version", "state", "addresses", "host_id", "device_facts_json", "engine_digest", "engine_kind", "engine_precision", "engine_generation", "fallback_reason", "detail", "process_id", "data_token", "engine_speeds", "fallback_refuted", "lost_revision", "state_since", "is_fallback_interim", "fallback_name")
    REPLICA_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_NAME_FIELD_NUMBER: _ClassVar[int]
    MODEL_VERSION_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    HOST_ID_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FACTS_JSON_FIELD_NUMBER: _ClassVar[int]
    ENGINE_DIGEST_FIELD_NUMBER: _ClassVar[int]
    ENGINE_KIND_FIELD_NUMBER: _ClassVar[int]
    ENGINE_PRECISION_FIELD_NUMBER: _ClassVar[int]
    ENGINE_GENERATION_FIELD_NUMBER: _ClassVar[int]
    FALLBACK_REASON_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    PROCESS_ID_FIELD_NUMBER: _ClassVar[int]
    DATA_TOKEN_FIELD_NUMBER: _ClassVar[int]
    ENGINE_SPEEDS_FIELD_NUMBER: _ClassVar[int]
    FALLBACK_REFUTED_FIELD_NUMBER: _ClassVar[int]
    LOST_REVISION_FIELD_NUMBER: _ClassVar[int]
    STATE_SINCE_FIELD_NUMBER: _ClassVar[int]
    IS_FALLBACK_INTERIM_FIELD_NUMBER: _ClassVar[int]
    FALLBACK_NAME_FIELD_NUMBER: _ClassVar[int]
    replica_id: str
    model_name: str
    model_version: int
    state: ReplicaState
    addresses: _containers.RepeatedScalarFieldContainer[str]
    host_id: str
    device_facts_json: bytes
    engine_digest: str
    engine_kind: str
    engine_precision: str
    engine_generation: str
    fallback_reason: str
    detail: str
    process_id: int
    data_token: bytes
    engine_speeds: _containers.RepeatedCompositeFieldContainer[EngineSpeed]
    fallback_refuted: str
    lost_revision: int
    state_since: str
    is_fallback_interim: bool
    fallback_name: str
    def __init__(self, replica_id: _Optional[str] = ..., model_name: _Optional[str] = ..., model_version: _Optional[int] = ..., state: _Optional[_Union[ReplicaState, str]] = ..., addresses: _Optional[_Iterable[str]] = ..., host_id: _Optional[str] = ..., device_facts_json: _Optional[bytes] = ..., engine_digest: _Optional[str] = ..., engine_kind: _Optional[str] = ..., engine_precision: _Optional[str] = ..., engine_generation: _Optional[str] = ..., fallback_reason: _Optional[str] = ..., detail: _Optional[str] = ..., process_id: _Optional[int] = ..., data_token: _Optional[bytes] = ..., engine_speeds: _Optional[_Iterable[_Union[EngineSpeed, _Mapping]]] = ..., fallback_refuted: _Optional[str] = ..., lost_revision: _Optional[int] = ..., state_since: _Optional[str] = ..., is_fallback_interim: _Optional[bool] = ..., fallback_name: _Optional[str] = ...) -> None: ...

class EngineSpeed(_message.Message):
    __slots__ = ("shape", "samples_per_s")
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_PER_S_FIELD_NUMBER: _ClassVar[int]
    shape: str
    samples_per_s: float
    def __init__(self, shape: _Optional[str] = ..., samples_per_s: _Optional[float] = ...) -> None: ...

class ReplicaCommand(_message.Message):
    __slots__ = ("engines_changed",)
    ENGINES_CHANGED_FIELD_NUMBER: _ClassVar[int]
    engines_changed: EnginesChanged
    def __init__(self, engines_changed: _Optional[_Union[EnginesChanged, _Mapping]] = ...) -> None: ...

class EnginesChanged(_message.Message):
    __slots__ = ("master_digest", "document_keys")
    MASTER_DIGEST_FIELD_NUMBER: _ClassVar[int]
    DOCUMENT_KEYS_FIELD_NUMBER: _ClassVar[int]
    master_digest: str
    document_keys: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, master_digest: _Optional[str] = ..., document_keys: _Optional[_Iterable[str]] = ...) -> None: ...

class WatchEndpointsRequest(_message.Message):
    __slots__ = ("gateway_id",)
    GATEWAY_ID_FIELD_NUMBER: _ClassVar[int]
    gateway_id: str
    def __init__(self, gateway_id: _Optional[str] = ...) -> None: ...

class GetFleetRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ServedModel(_message.Message):
    __slots__ = ("name", "version", "model_version_json", "state", "reason", "num_replicas_wanted", "weight", "is_unloaded", "unplaced", "external_json")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    MODEL_VERSION_JSON_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    NUM_REPLICAS_WANTED_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    IS_UNLOADED_FIELD_NUMBER: _ClassVar[int]
    UNPLACED_FIELD_NUMBER: _ClassVar[int]
    EXTERNAL_JSON_FIELD_NUMBER: _ClassVar[int]
    name: str
    version: int
    model_version_json: bytes
    state: str
    reason: str
    num_replicas_wanted: int
    weight: float
    is_unloaded: bool
    unplaced: str
    external_json: bytes
    def __init__(self, name: _Optional[str] = ..., version: _Optional[int] = ..., model_version_json: _Optional[bytes] = ..., state: _Optional[str] = ..., reason: _Optional[str] = ..., num_replicas_wanted: _Optional[int] = ..., weight: _Optional[float] = ..., is_unloaded: _Optional[bool] = ..., unplaced: _Optional[str] = ..., external_json: _Optional[bytes] = ...) -> None: ...

class FleetSnapshot(_message.Message):
    __slots__ = ("revision", "models", "replicas", "store_url", "metrics_addresses", "builds", "epoch", "unseen", "fault", "standby")
    REVISION_FIELD_NUMBER: _ClassVar[int]
    MODELS_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    STORE_URL_FIELD_NUMBER: _ClassVar[int]
    METRICS_ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    BUILDS_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    UNSEEN_FIELD_NUMBER: _ClassVar[int]
    FAULT_FIELD_NUMBER: _ClassVar[int]
    STANDBY_FIELD_NUMBER: _ClassVar[int]
    revision: int
    models: _containers.RepeatedCompositeFieldContainer[ServedModel]
    replicas: _containers.RepeatedCompositeFieldContainer[ReplicaReport]
    store_url: str
    metrics_addresses: _containers.RepeatedScalarFieldContainer[str]
    builds: _containers.RepeatedCompositeFieldContainer[FleetBuild]
    epoch: int
    unseen: _containers.RepeatedCompositeFieldContainer[ReplicaReport]
    fault: str
    standby: Standby
    def __init__(self, revision: _Optional[int] = ..., models: _Optional[_Iterable[_Union[ServedModel, _Mapping]]] = ..., replicas: _Optional[_Iterable[_Union[ReplicaReport, _Mapping]]] = ..., store_url: _Optional[str] = ..., metrics_addresses: _Optional[_Iterable[str]] = ..., builds: _Optional[_Iterable[_Union[FleetBuild, _Mapping]]] = ..., epoch: _Optional[int] = ..., unseen: _Optional[_Iterable[_Union[ReplicaReport, _Mapping]]] = ..., fault: _Optional[str] = ..., standby: _Optional[_Union[Standby, _Mapping]] = ...) -> None: ...

class Standby(_message.Message):
    __slots__ = ("holder", "since", "reason")
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    holder: str
    since: str
    reason: str
    def __init__(self, holder: _Optional[str] = ..., since: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class FleetBuild(_message.Message):
    __slots__ = ("model_name", "model_version", "generation", "node_class", "is_anywhere", "reason", "started_at", "queued_at")
    MODEL_NAME_FIELD_NUMBER: _ClassVar[int]
    MODEL_VERSION_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    NODE_CLASS_FIELD_NUMBER: _ClassVar[int]
    IS_ANYWHERE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    STARTED_AT_FIELD_NUMBER: _ClassVar[int]
    QUEUED_AT_FIELD_NUMBER: _ClassVar[int]
    model_name: str
    model_version: int
    generation: str
    node_class: str
    is_anywhere: bool
    reason: str
    started_at: str
    queued_at: str
    def __init__(self, model_name: _Optional[str] = ..., model_version: _Optional[int] = ..., generation: _Optional[str] = ..., node_class: _Optional[str] = ..., is_anywhere: _Optional[bool] = ..., reason: _Optional[str] = ..., started_at: _Optional[str] = ..., queued_at: _Optional[str] = ...) -> None: ...

class ReconcileRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ReconcileReply(_message.Message):
    __slots__ = ("revision",)
    REVISION_FIELD_NUMBER: _ClassVar[int]
    revision: int
    def __init__(self, revision: _Optional[int] = ...) -> None: ...

class SetServedRequest(_message.Message):
    __slots__ = ("model_name", "is_served", "who")
    MODEL_NAME_FIELD_NUMBER: _ClassVar[int]
    IS_SERVED_FIELD_NUMBER: _ClassVar[int]
    WHO_FIELD_NUMBER: _ClassVar[int]
    model_name: str
    is_served: bool
    who: str
    def __init__(self, model_name: _Optional[str] = ..., is_served: _Optional[bool] = ..., who: _Optional[str] = ...) -> None: ...

class SetServedReply(_message.Message):
    __slots__ = ("is_ready", "reason")
    IS_READY_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    is_ready: bool
    reason: str
    def __init__(self, is_ready: _Optional[bool] = ..., reason: _Optional[str] = ...) -> None: ...

class UseReport(_message.Message):
    __slots__ = ("gateway_id", "models")
    GATEWAY_ID_FIELD_NUMBER: _ClassVar[int]
    MODELS_FIELD_NUMBER: _ClassVar[int]
    gateway_id: str
    models: _containers.RepeatedCompositeFieldContainer[ModelUse]
    def __init__(self, gateway_id: _Optional[str] = ..., models: _Optional[_Iterable[_Union[ModelUse, _Mapping]]] = ...) -> None: ...

class ModelUse(_message.Message):
    __slots__ = ("model_name", "seconds_ago")
    MODEL_NAME_FIELD_NUMBER: _ClassVar[int]
    SECONDS_AGO_FIELD_NUMBER: _ClassVar[int]
    model_name: str
    seconds_ago: float
    def __init__(self, model_name: _Optional[str] = ..., seconds_ago: _Optional[float] = ...) -> None: ...

class UseReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
