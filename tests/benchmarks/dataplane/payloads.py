"""The two requests that are measured, and what every server answers to them.

Legend: B = batch, N = values of a row.
    tok: x_BN int64 [1, 256], 2 KB; a text model's request
    big: x_BN float32 [1, 150528], 602 KB; an image model's request (3 * 224 * 224)
    huge: x_BN float32 [1, 2621440], 10 MB; a volume's request, measured by `memory` alone
    y_B10: the first ten values of each row; nothing is computed, yet a wrong row shows
"""

from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper, parser

from services.contracts.kserve.tensors import Array, array_from_bytes
from services.pb.open_inference_v2_pb2 import ModelInferRequest, ModelInferResponse

NUM_ANSWERED = 10
PAYLOADS = ("tok", "big")
HUGE = "huge"
# Rows that an engine may be given at once, as an owner of such a model would choose.
MAX_BATCH = {"tok": 32, "big": 8, "huge": 1}
_ELEMENT = {"tok": "int64", "big": "float", "huge": "float"}
_DATATYPE = {"tok": "INT64", "big": "FP32", "huge": "FP32"}
_ROWS: dict[str, Array] = {
    "tok": np.arange(256)[None],
    "big": np.linspace(0, 1, 3 * 224 * 224, dtype=np.float32)[None],
    "huge": np.linspace(0, 1, 10 << 18, dtype=np.float32)[None],
}


def write_model(path: Path, payload: str) -> Path:
    """The no-op model of a payload as an ONNX file."""
    element, width = _ELEMENT[payload], _ROWS[payload].shape[1]
    model = parser.parse_model(f"""
        <ir_version: 10, opset_import: ["" : 20]>
        noop ({element}[batch, {width}] x) => ({element}[batch, {NUM_ANSWERED}] y)
        {{ y = Slice (x, starts, ends, axes) }}
    """)
    bounds = {"starts": 0, "ends": NUM_ANSWERED, "axes": 1}
    tensors = [numpy_helper.from_array(np.array([v]), name) for name, v in bounds.items()]
    model.graph.initializer.extend(tensors)
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, path)
    return path


def columns_of(payload: str) -> dict[str, str | int]:
    """What a server that cannot read this module must know of a payload's model."""
    row = _ROWS[payload]
    return {"dtype": row.dtype.name, "width": row.shape[1], "max_batch": MAX_BATCH[payload]}


def request_of(payload: str) -> bytes:
    """A serialised request."""
    row = _ROWS[payload]
    request = ModelInferRequest(model_name=payload, id="7")
    request.inputs.add(name="x", datatype=_DATATYPE[payload], shape=row.shape)
    request.raw_input_contents.append(row.tobytes())
    return request.SerializeToString()


def check_answer(payload: str, data: bytes) -> None:
    """Raise ValueError when a server's answer is not the right one."""
    response = ModelInferResponse.FromString(data)
    (output,), (raw,) = response.outputs, response.raw_output_contents
    y_B10 = array_from_bytes(raw, output.datatype, output.shape)
    if not np.array_equal(y_B10, _ROWS[payload][:, :NUM_ANSWERED]):
        raise ValueError(f"{payload}: wrong answer {y_B10}")


def response_of(request: ModelInferRequest) -> ModelInferResponse:
    """What a server without Smelt does: views the tensor and answers its first values."""
    tensor = request.inputs[0]
    x_BN = array_from_bytes(request.raw_input_contents[0], tensor.datatype, tensor.shape)
    y_B10 = np.ascontiguousarray(x_BN[:, :NUM_ANSWERED])
    response = ModelInferResponse(model_name=request.model_name, id=request.id)
    response.outputs.add(name="y", datatype=tensor.datatype, shape=y_B10.shape)
    response.raw_output_contents.append(y_B10.tobytes())
    return response


async def answer(data: bytes | bytearray) -> bytes:
    """`response_of` on bytes."""
    return response_of(ModelInferRequest.FromString(bytes(data))).SerializeToString()
