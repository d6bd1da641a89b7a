"""Inputs in shared memory beside others in the message: raw ones, or typed ones."""

import uuid
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import grpc
import numpy as np
import pytest
import tritonclient.utils.shared_memory as shm
from tritonclient.grpc import service_pb2, service_pb2_grpc

from services.pb import open_inference_v2_pb2 as pb

if TYPE_CHECKING:
    from tests.integration.gateway.conftest import Fleet

VALUES = np.arange(8, dtype=np.float32).reshape(2, 4)


@pytest.fixture
async def stub(echo_fleet: "Fleet") -> AsyncIterator[Any]:
    """Of a gateway that takes shared memory, with the values in the region `r`."""
    await echo_fleet.start_gateway(shared_memory=True)
    await echo_fleet.until_ready("r1", "r2")
    found = await echo_fleet.client()
    key = f"smelt-{uuid.uuid4().hex}"
    handle = shm.create_shared_memory_region("r", key, VALUES.nbytes)
    try:
        shm.set_shared_memory_region(handle, [VALUES])
        await found.register_system_shared_memory("r", key, VALUES.nbytes)
        async with grpc.aio.insecure_channel(echo_fleet.url) as channel:
            yield service_pb2_grpc.GRPCInferenceServiceStub(channel)
    finally:
        shm.destroy_shared_memory_region(handle)


def _request(*beside: tuple[str, str, dict[str, list[Any]]]) -> Any:
    """Input x from the region, with others of shape [2] after it: name, datatype, contents."""
    request = service_pb2.ModelInferRequest(model_name="echo")
    shared = request.inputs.add(name="x", datatype="FP32", shape=VALUES.shape)
    shared.parameters["shared_memory_region"].string_param = "r"
    shared.parameters["shared_memory_byte_size"].int64_param = VALUES.nbytes
    for name, datatype, contents in beside:
        tensor = request.inputs.add(name=name, datatype=datatype, shape=[2])
        for field, values in contents.items():
            getattr(tensor.contents, field).extend(values)
    return request


def _seen(fleet: "Fleet") -> pb.ModelInferRequest:
    """The one request that came to a replica."""
    (frame,) = (frame for replica in fleet.replicas.values() for frame in replica.frames)
    return pb.ModelInferRequest.FromString(bytes(frame.request))


@pytest.mark.parametrize(
    ("datatype", "contents", "dtype"),
    [
        ("INT64", {"int64_contents": [-1, 2]}, np.int64),
        ("INT8", {"int_contents": [-1, 2]}, np.int8),
        ("UINT16", {"uint_contents": [1, 65535]}, np.uint16),
        ("BOOL", {"bool_contents": [True, False]}, np.bool_),
        ("FP64", {"fp64_contents": [0.1, 2.0]}, np.float64),
    ],
)
async def test_typed_inputs_go_on_as_raw_ones(
    echo_fleet: "Fleet", stub: Any, datatype: str, contents: dict[str, list[Any]], dtype: type
) -> None:
    await stub.ModelInfer(_request(("t", datatype, contents)))
    seen, (values,) = _seen(echo_fleet), contents.values()
    assert list(seen.raw_input_contents) == [VALUES.tobytes(), np.array(values, dtype).tobytes()]
    assert not any(tensor.HasField("contents") for tensor in seen.inputs)
    assert [list(tensor.parameters) for tensor in seen.inputs] == [[], []]


async def test_strings_go_on_each_after_its_length(echo_fleet: "Fleet", stub: Any) -> None:
    strings = {"bytes_contents": [b"ab", b""]}
    await stub.ModelInfer(_request(("s", "BYTES", strings)))
    assert _seen(echo_fleet).raw_input_contents[1] == b"\2\0\0\0ab\0\0\0\0"


async def test_raw_inputs_have_entries_and_shared_ones_none(echo_fleet: "Fleet", stub: Any) -> None:
    request = _request(("t", "INT8", {}))
    request.raw_input_contents.append(b"\1\2")
    await stub.ModelInfer(request)
    assert list(_seen(echo_fleet).raw_input_contents) == [VALUES.tobytes(), b"\1\2"]


def _with(request: Any, *raw: bytes) -> Any:
    request.raw_input_contents.extend(raw)
    return request


def _shared_with_contents() -> Any:
    request = _request()
    request.inputs[0].contents.fp32_contents.append(1.0)
    return request


_INTS: Any = {"int_contents": [1, 2]}
_REFUSED = {
    "both of one input": (_shared_with_contents(), "unexpected contents of input 'x'"),
    "raw and typed": (
        _with(_request(("t", "INT8", _INTS), ("u", "INT8", {})), b"12"),
        "must not be specified when using raw_input_contents for 't'",
    ),
    "no data": (
        _request(("t", "INT8", _INTS), ("u", "INT8", {})),
        "unable to find data for input.* 'u'",
    ),
    "no data at all": (_request(("t", "INT8", {})), "expected 1 raw_input_contents.* got 0"),
    "one too many": (_with(_request(), b"1"), "expected 0 raw_input_contents.* got 1"),
    "out of range": (
        _request(("t", "INT8", {"int_contents": [1, 200]})),
        "'t'.*out of range for INT8",
    ),
    "too few": (_request(("t", "INT8", {"int_contents": [1]})), "'t'.*expected 2 elements.*got 1"),
}


@pytest.mark.parametrize("fault", _REFUSED)
async def test_what_triton_refuses_is_refused(stub: Any, fault: str) -> None:
    request, message = _REFUSED[fault]
    with pytest.raises(grpc.RpcError, match=message) as caught:
        await stub.ModelInfer(request)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_negative_shape_is_refused(stub: Any) -> None:
    request = _request(("t", "INT8", {"int_contents": [1, 2, 3, 4]}))
    request.inputs[1].shape[:] = [-1, -4]
    with pytest.raises(grpc.RpcError, match="negative dimension"):
        await stub.ModelInfer(request)
