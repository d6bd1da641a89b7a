"""Times the pure steps of a request's way in gateway and replica, one by one in one process.

    python -m tests.benchmarks.dataplane.stations

No loop, no thread, no library of an engine: what the processes cost beyond these steps is gRPC,
the event loop, system calls and the engine.
"""

import socket
import timeit
from collections.abc import Callable

import grpc
import numpy as np
from prometheus_client import CollectorRegistry

from services.contracts.kserve.tensor_spec import TensorSpec
from services.contracts.transport.frame_decoder import FrameDecoder
from services.contracts.transport.frames import (
    MAX_PAYLOAD_BYTES,
    Frame,
    InferFrame,
    Kind,
    decode_infer,
    encode_infer,
    header,
)
from services.gateway.allocator import keep_freed_memory
from services.gateway.observability.request_metrics import RequestMetrics
from services.gateway.pipeline.inference import InferenceCall, RequestOutcome
from services.gateway.pipeline.request_head import request_head_from_bytes
from services.replica.batching.batch_report import BatchReport
from services.replica.batching.collate import JoinRules
from services.replica.engine.worker import BatchTimes
from services.replica.reporting.statistics import Statistics
from services.replica.request.codec import call_from_request
from services.replica.request.response import response_from_outputs
from services.replica.request.signature import Signature
from services.telemetry.catalog import GATEWAY_METRICS
from services.telemetry.prometheus_recorder import PrometheusRecorder
from tests.benchmarks.dataplane.payloads import NUM_ANSWERED, PAYLOADS, columns_of, request_of

_LOOPS, _REPEATS = 500, 7
_DATATYPES = {"int64": "INT64", "float32": "FP32"}
_SEND_BYTES = 2 << 20
_TIMES = BatchTimes(compute_input_s=1e-6, compute_infer_s=1e-5, compute_output_s=1e-6)
Steps = dict[str, Callable[[], object]]


def stations_table() -> str:
    """Microseconds of each step, the quickest of some repeats."""
    keep_freed_memory()
    lines = ["| step | " + " | ".join(f"{p} us" for p in PAYLOADS) + " |", "|---|---:|---:|"]
    columns = [{**_gateway(payload), **_replica(payload)} for payload in PAYLOADS]
    for name in columns[0]:
        took = " | ".join(f"{_us(steps[name]):.1f}" for steps in columns)
        lines.append(f"| {name} | {took} |")
    return "\n".join(lines) + "\n"


def _us(step: Callable[[], object]) -> float:
    return min(timeit.repeat(step, number=_LOOPS, repeat=_REPEATS)) / _LOOPS * 1e6


def _gateway(payload: str) -> Steps:
    body = request_of(payload)
    frame = InferFrame(body, 5.0, "7")
    metrics = RequestMetrics(PrometheusRecorder(GATEWAY_METRICS, CollectorRegistry()))

    def write_frame() -> bytes:
        meta = encode_infer(frame)
        return header(Kind.INFER, 1, len(meta), len(body)) + meta

    call = InferenceCall(body, model="m", version="1", waited_s=0.0005)

    def record() -> None:
        metrics.end(call, RequestOutcome(grpc.StatusCode.OK, duration_s=0.001))

    return {
        "gateway: read model, version and id": lambda: request_head_from_bytes(body),
        "gateway: head of a frame": write_frame,
        "gateway: counter and histograms": record,
        "both: a request over a unix socket, written and read": _over_socket(body),
    }


def _over_socket(body: bytes) -> Callable[[], None]:
    one, other = socket.socketpair()
    one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BYTES)
    buffer = memoryview(bytearray(len(body)))

    def pass_on() -> None:
        one.sendall(body)
        num_read = 0
        while num_read < len(body):
            num_read += other.recv_into(buffer[num_read:])

    return pass_on


def _replica(payload: str) -> Steps:
    body, signature = request_of(payload), _signature(payload)
    rules = JoinRules(
        inputs=signature.inputs,
        outputs=signature.outputs,
        batch_dim="batch",
        rows_dim="batch",
        paddable=frozenset(),
        pads={},
    )
    meta = encode_infer(InferFrame(body, 5.0, "7"))
    frame = Frame(Kind.INFER, 1, meta, body)
    decoder = FrameDecoder(MAX_PAYLOAD_BYTES)
    wire = header(frame.kind, 1, len(meta), len(body)) + meta + body
    call = call_from_request(body, signature)
    outputs = {"y": call.inputs["x"][:, :NUM_ANSWERED].copy()}
    statistics = Statistics("m", "1")
    report = BatchReport(rows=(1,), queued_s=(1e-5,), times=_TIMES, calls=(call,))
    return {
        "replica: cut out a frame, its bytes copied in": lambda: _cut(decoder, wire),
        "replica: read a frame's head": lambda: decode_infer(frame),
        "replica: request to arrays, checked": lambda: call_from_request(body, signature),
        "replica: inputs of one request": lambda: rules.join([call]),
        "replica: inputs of two requests": lambda: rules.join([call, call]),
        "replica: arrays to an answer": lambda: response_from_outputs(call, outputs, signature),
        "replica: statistics of a batch": lambda: statistics.record_batch(report),
    }


def _cut(decoder: FrameDecoder, wire: bytes) -> list[Frame]:
    frames: list[Frame] = []
    num_fed = 0
    while num_fed < len(wire):
        buffer = decoder.get_buffer()
        piece = wire[num_fed : num_fed + len(buffer)]
        buffer[: len(piece)] = piece
        num_fed += len(piece)
        frames += decoder.advance(len(piece))
    return frames


def _signature(payload: str) -> Signature:
    columns = columns_of(payload)
    datatype = _DATATYPES[str(np.dtype(str(columns["dtype"])))]
    shapes = {"x": ("batch", int(columns["width"])), "y": ("batch", NUM_ANSWERED)}
    specs = {n: TensorSpec(name=n, datatype=datatype, shape=s) for n, s in shapes.items()}
    return Signature(
        name=payload,
        version="1",
        inputs={"x": specs["x"]},
        outputs={"y": specs["y"]},
        batch_dim="batch",
        growing=frozenset({"batch"}),
        buckets=(),
        limits={},
    )


if __name__ == "__main__":
    print(stations_table())
