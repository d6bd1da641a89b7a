"""The generated protocol: equal to tritonclient's, at peace with it, and up to date."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from google.protobuf import descriptor_pool
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection, reflection_pb2
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)
from tritonclient.grpc import model_config_pb2, service_pb2

from services.pb import open_inference_v2_pb2 as pb

ROOT = Path(__file__).resolve().parents[4]
SERVICE = "inference.GRPCInferenceService"
# Parts of Triton's model configuration that Smelt leaves out, by message.
OMITTED_FIELDS = {
    "inference.ModelInstanceGroup": {"rate_limiter", "secondary_devices"},
    "inference.ModelConfig": {
        "optimization",
        "model_operations",
        "batch_input",
        "batch_output",
        "model_repository_agents",
        "model_metrics",
    },
}
OMITTED_MESSAGES = {
    "ModelRateLimiter",
    "BatchInput",
    "BatchOutput",
    "ModelOptimizationPolicy",
    "ModelOperations",
    "ModelRepositoryAgents",
    "ModelMetrics",
}


def _messages(descriptors: dict[str, Descriptor]) -> Iterator[Descriptor]:
    for descriptor in descriptors.values():
        yield descriptor
        yield from _messages(descriptor.nested_types_by_name)


THEIRS = {**service_pb2.DESCRIPTOR.message_types_by_name}
THEIRS.update(model_config_pb2.DESCRIPTOR.message_types_by_name)
THEIR_MESSAGES = {d.full_name: d for d in _messages(THEIRS)}
OUR_MESSAGES = {d.full_name: d for d in _messages(pb.DESCRIPTOR.message_types_by_name)}


def _facts(field: FieldDescriptor) -> tuple[object, ...]:
    kind = field.message_type or field.enum_type
    oneof = field.containing_oneof
    return (
        field.number,
        field.type,
        field.is_repeated,
        field.has_presence,
        kind.full_name if kind else None,
        oneof.full_name if oneof else None,
    )


@pytest.mark.parametrize("name", sorted(OUR_MESSAGES))
def test_fields_equal_those_of_tritonclient(name: str) -> None:
    """Name, number, type, repetition and oneof of each field; only listed fields are absent."""
    ours = {f.name: _facts(f) for f in OUR_MESSAGES[name].fields}
    theirs = {f.name: _facts(f) for f in THEIR_MESSAGES[name].fields}
    omitted = OMITTED_FIELDS.get(name, set())
    assert ours == {key: value for key, value in theirs.items() if key not in omitted}
    assert theirs.keys() - ours.keys() == omitted


def test_every_message_of_tritonclient_is_ours_or_listed() -> None:
    assert THEIRS.keys() - pb.DESCRIPTOR.message_types_by_name.keys() == OMITTED_MESSAGES


@pytest.mark.parametrize("name", sorted(OMITTED_FIELDS))
def test_numbers_of_omitted_fields_are_reserved(name: str) -> None:
    from google.protobuf.descriptor_pb2 import DescriptorProto

    proto = DescriptorProto()
    OUR_MESSAGES[name].CopyToProto(proto)
    reserved = {number for span in proto.reserved_range for number in range(span.start, span.end)}
    theirs = THEIR_MESSAGES[name].fields_by_name
    assert reserved == {theirs[field].number for field in OMITTED_FIELDS[name]}
    assert set(proto.reserved_name) == OMITTED_FIELDS[name]


def test_enums_equal_those_of_tritonclient() -> None:
    ours = {e.full_name: e.values_by_name for m in OUR_MESSAGES.values() for e in m.enum_types}
    theirs = {e.full_name: e.values_by_name for m in THEIR_MESSAGES.values() for e in m.enum_types}
    for name, values in {**ours, "DataType": pb.DataType.DESCRIPTOR.values_by_name}.items():
        wanted = theirs.get(name, model_config_pb2.DataType.DESCRIPTOR.values_by_name)
        assert {k: v.number for k, v in values.items()} == {k: v.number for k, v in wanted.items()}
    assert len(ours) == 4


def test_the_twenty_rpcs_equal_those_of_tritonclient() -> None:
    def signature(module: object) -> dict[str, tuple[object, ...]]:
        service = module.DESCRIPTOR.services_by_name["GRPCInferenceService"]  # type: ignore[attr-defined]
        return {
            m.name: (
                m.input_type.full_name,
                m.output_type.full_name,
                m.client_streaming,
                m.server_streaming,
            )
            for m in service.methods
        }

    assert signature(pb) == signature(service_pb2)
    assert len(signature(pb)) == 20


def _filled(module: object, config_module: object) -> list[Message]:
    """The same values in either family of messages."""
    request = module.ModelInferRequest(model_name="m", id="7", raw_input_contents=[b"\x00\x01"])  # type: ignore[attr-defined]
    request.inputs.add(name="x", datatype="UINT8", shape=[1, -1, 2])
    request.inputs[0].contents.fp32_contents.extend([1.5, float("inf")])
    request.parameters["priority"].uint64_param = 2**64 - 1
    config = config_module.ModelConfig(name="m", max_batch_size=8)  # type: ignore[attr-defined]
    config.input.add(name="x", data_type=config_module.TYPE_BF16, dims=[-1])  # type: ignore[attr-defined]
    config.dynamic_batching.priority_queue_policy[3].max_queue_size = 5
    config.model_transaction_policy.decoupled = True
    config.parameters["engine"].string_value = "inductor"
    stats = module.ModelStatistics(name="m", inference_count=3)  # type: ignore[attr-defined]
    stats.inference_stats.success.ns = 10**12
    stats.response_stats["0"].cancel.count = 1
    return [request, config, stats]


def test_bytes_are_interchangeable_with_tritonclient() -> None:
    for ours, theirs in zip(_filled(pb, pb), _filled(service_pb2, model_config_pb2), strict=True):
        wire = ours.SerializeToString(deterministic=True)
        assert wire == theirs.SerializeToString(deterministic=True)
        assert type(theirs).FromString(wire) == theirs
        assert type(ours).FromString(wire) == ours


@pytest.mark.parametrize("first", ["services.pb", "tritonclient.grpc"])
def test_both_import_in_one_process_in_either_order(first: str) -> None:
    ours = "import services.pb.open_inference_v2_pb2"
    theirs = "import tritonclient.grpc, tritonclient.grpc.aio"
    lines = [ours, theirs] if first == "services.pb" else [theirs, ours]
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", "\n".join(lines)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_our_symbols_stay_out_of_the_process_wide_pool() -> None:
    assert pb.DESCRIPTOR.pool is not descriptor_pool.Default()
    with pytest.raises(KeyError):
        descriptor_pool.Default().FindFileByName(pb.DESCRIPTOR.name)


async def test_reflection_describes_private_and_public_services() -> None:
    """One pool serves reflection for our service and for health, which lives in the default one."""
    pool = pb.DESCRIPTOR.pool
    for module in (health_pb2, reflection_pb2):
        pool.AddSerializedFile(module.DESCRIPTOR.serialized_pb)
    names = [SERVICE, "grpc.health.v1.Health", reflection.SERVICE_NAME]
    server = grpc.aio.server()
    reflection.enable_server_reflection(names, server, pool=pool)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        found = await _reflect(port)
    finally:
        await server.stop(None)
    assert found == dict.fromkeys(names, True)


async def _reflect(port: int) -> dict[str, bool]:
    """Asks from a thread, as the reflection client is a blocking one."""
    import asyncio

    def ask() -> dict[str, bool]:
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            database = ProtoReflectionDescriptorDatabase(channel)
            pool = descriptor_pool.DescriptorPool(database)
            names = list(database.get_services())
            return {name: bool(pool.FindServiceByName(name).methods) for name in names}

    return await asyncio.to_thread(ask)


def test_committed_code_is_what_the_protos_generate(tmp_path: Path) -> None:
    subprocess.run(
        [ROOT / ".ci" / "generate", tmp_path],
        env={**os.environ, "PYTHON": sys.executable},
        check=True,
        capture_output=True,
    )
    fresh = {p.name: p.read_text() for p in (tmp_path / "services/pb").iterdir()}
    committed = {p.name: p.read_text() for p in (ROOT / "services/pb").glob("*_pb2*.py*")}
    assert committed.keys() == fresh.keys()
    for name, text in fresh.items():
        assert committed[name] == text, f"{name} is stale: run .ci/generate"
    assert "from services.pb import" in fresh["fleet_v1_pb2_grpc.py"]
