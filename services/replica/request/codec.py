"""Request bytes to checked arrays; the way back is `response.py`.

The stages of a request: cut off the raw tensor bytes, parse the rest, check names, types,
shapes and byte counts, view the bytes as arrays, check the values that the recipe limits.
Every refusal has what was expected and what was found.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from google.protobuf.message import DecodeError

from services.contracts.errors import InvalidRequestError, NotFoundError
from services.contracts.kserve.byte_strings import BYTES, check_num_strings
from services.contracts.kserve.protobuf_wire import malformed
from services.contracts.kserve.request_limits import check_request_head
from services.contracts.kserve.request_wire import split_request
from services.contracts.kserve.tensor_spec import TensorSpec
from services.contracts.kserve.tensors import Array, array_from_bytes
from services.contracts.kserve.typed_contents import array_from_contents
from services.contracts.model.text_input import IDS, MASK, TEXT
from services.contracts.text.nearest import nearest
from services.pb import open_inference_v2_pb2 as pb
from services.replica.request.infer_call import InferCall
from services.replica.request.parameters import (
    check_tensor_parameters,
    priority_from_parameters,
    timeout_s_from_parameters,
)
from services.replica.request.requested_outputs import (
    output_rooms,
    requested_outputs,
    wanted_classes,
)
from services.replica.request.signature import Signature

# Different heads that are remembered, and how large one may be: some 4 MiB in all.
_MAX_KNOWN_HEADS = 1024
_MAX_KNOWN_HEAD_BYTES = 4096
# Of all texts of a request: they are decoded while other requests wait.
MAX_TEXT_BYTES = 16 * 2**20
_InputTensor = pb.ModelInferRequest.InferInputTensor


@dataclass(frozen=True, slots=True)
class _Tensor:
    """An input as a request declares it, once it was found right."""

    name: str
    datatype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Head:
    """All of a request beside its id and its tensors' bytes, checked."""

    tensors: tuple[_Tensor, ...]
    sizes: Mapping[str, int]
    outputs: tuple[str, ...]
    timeout_s: float | None
    priority: int
    classes: Mapping[str, int]
    rooms: Mapping[str, int]


def call_from_request(
    payload: bytes | bytearray | memoryview,
    signature: Signature,
    admit: Callable[[int], None] = lambda _: None,
) -> InferCall:
    """Decode and check a serialised ModelInferRequest.

    Args:
        payload: the request.
        signature: of the model.
        admit: is called with the request's priority before its tensors are decoded; refuses by
            raising.

    Raises:
        InvalidRequestError: anything in the request is wrong; with expected and got.
        UnsupportedFeatureError: the request asks for something that is not offered.
        NotFoundError: the request is for another model or version.
    """
    head_bytes, request_id, raw_contents = split_request(payload)
    if raw_contents:
        # A head with typed contents or many names is parsed each time: it could fill memory.
        is_small = len(head_bytes) <= _MAX_KNOWN_HEAD_BYTES
        check = _known_head if is_small else _head_from_bytes
        head = check(head_bytes, signature)
        admit(head.priority)
        inputs = _inputs_from_raw(head, raw_contents, signature)
    else:
        request = _parsed(head_bytes)
        head = _checked_head(request, signature)
        admit(head.priority)
        inputs = _inputs_from_contents(request, signature)
    if not _are_texts(inputs, signature):
        signature.check_values(inputs)
    return InferCall(
        inputs=inputs,
        sizes=head.sizes,
        outputs=head.outputs,
        request_id=_text(request_id),
        timeout_s=head.timeout_s,
        priority=head.priority,
        classes=head.classes,
        rooms=head.rooms,
    )


def call_from_tensors(
    call: InferCall, tensors: Mapping[str, Array], signature: Signature
) -> InferCall:
    """A call of texts with what they became, checked as if a client had sent that.

    Args:
        call: of texts.
        tensors: int [B, T] by input of the model.
        signature: of the model.

    Raises:
        InvalidRequestError: sizes or values that the model does not take.
    """
    sizes = _sizes({name: array.shape for name, array in tensors.items()}, signature)
    signature.check_sizes(sizes)
    signature.check_values(tensors)
    # Without a mask the model computes pads as tokens too.
    num_tokens = int(np.count_nonzero(tensors[MASK])) if MASK in tensors else tensors[IDS].size
    return call._replace(inputs=tensors, sizes=sizes, num_tokens=num_tokens)


def _are_texts(given: Collection[str], signature: Signature) -> bool:
    """Whether texts are given in place of the tensors that they become."""
    return signature.text is not None and list(given) == [TEXT]


def _head_from_bytes(head: bytes, signature: Signature) -> _Head:
    """Check the head of a request whose tensors all come as raw bytes."""
    request = _parsed(head)
    for tensor in request.inputs:
        if tensor.HasField("contents"):
            raise InvalidRequestError(
                "contents field must not be specified when using raw_input_contents for "
                f"'{tensor.name}' for model '{signature.name}'"
            )
    return _checked_head(request, signature)


# Clients repeat themselves: parsing and checking a head costs more than all else in here.
_known_head = lru_cache(maxsize=_MAX_KNOWN_HEADS)(_head_from_bytes)


def _parsed(head: bytes) -> pb.ModelInferRequest:
    check_request_head(head)
    try:
        return pb.ModelInferRequest.FromString(head)
    except DecodeError as error:
        raise malformed(str(error)) from error


def _text(request_id: bytes) -> str:
    try:
        return request_id.decode()
    except UnicodeDecodeError as error:
        raise malformed(f"its id: {error}") from error


def _checked_head(request: pb.ModelInferRequest, signature: Signature) -> _Head:
    _check_address(request, signature)
    timeout_s = timeout_s_from_parameters(request.parameters, signature.name)
    specs = signature.inputs
    if signature.text and _are_texts([tensor.name for tensor in request.inputs], signature):
        specs = {TEXT: signature.text}
    _check_names(request.inputs, specs, signature)
    for tensor in request.inputs:
        check_tensor_parameters(tensor.parameters, tensor.name, signature.name)
        _check_declared(tensor, specs[tensor.name], signature.name)
    tensors = tuple(_Tensor(t.name, t.datatype, tuple(t.shape)) for t in request.inputs)
    shapes = {tensor.name: tensor.shape for tensor in tensors}
    sizes = _sizes(shapes, signature) if specs is signature.inputs else _text_sizes(shapes, specs)
    signature.check_sizes(sizes)
    outputs = requested_outputs(request.outputs, signature)
    return _Head(
        tensors=tensors,
        sizes=sizes,
        outputs=outputs,
        timeout_s=timeout_s,
        priority=priority_from_parameters(request.parameters, signature.name),
        classes=wanted_classes(request.outputs, signature),
        rooms=output_rooms(request.outputs),
    )


def _inputs_from_raw(
    head: _Head, raw_contents: Sequence[memoryview], signature: Signature
) -> dict[str, Array]:
    # KServe v2 assigns raw contents to inputs by their position alone.
    if len(raw_contents) != len(head.tensors):
        raise InvalidRequestError(
            f"expected {len(head.tensors)} raw_input_contents, one for each input, for model "
            f"'{signature.name}', got {len(raw_contents)}"
        )
    inputs: dict[str, Array] = {}
    for tensor, raw in zip(head.tensors, raw_contents, strict=True):
        if tensor.name == TEXT and signature.text and len(raw) > MAX_TEXT_BYTES:
            raise InvalidRequestError(
                f"input '{TEXT}' for model '{signature.name}': {len(raw)} bytes, at most "
                f"{MAX_TEXT_BYTES} are accepted at once; send fewer or shorter texts"
            )
        try:
            inputs[tensor.name] = array_from_bytes(raw, tensor.datatype, tensor.shape)
        except InvalidRequestError as error:
            raise InvalidRequestError(
                f"input '{tensor.name}' for model '{signature.name}': {error}"
            ) from error
    return inputs


def _inputs_from_contents(request: pb.ModelInferRequest, signature: Signature) -> dict[str, Array]:
    for tensor in request.inputs:
        if not tensor.HasField("contents"):
            raise InvalidRequestError(
                f"unable to find data for input tensor '{tensor.name}' for model "
                f"'{signature.name}': expected raw_input_contents or contents, got neither"
            )
    return {tensor.name: array_from_contents(tensor, signature.name) for tensor in request.inputs}


def _check_address(request: pb.ModelInferRequest, signature: Signature) -> None:
    if request.model_name != signature.name:
        raise NotFoundError(
            f"request for unknown model: '{request.model_name}' is not found; this replica "
            f"serves '{signature.name}'"
        )
    if request.model_version not in ("", signature.version):
        raise NotFoundError(
            f"request for unknown model: '{signature.name}' version {request.model_version} is "
            f"not found; this replica serves version {signature.version}"
        )


def _check_names(
    tensors: Sequence[_InputTensor], specs: Mapping[str, TensorSpec], signature: Signature
) -> None:
    names = [tensor.name for tensor in tensors]
    for name in names:
        if name not in specs:
            raise InvalidRequestError(
                f"unexpected inference input '{name}' for model '{signature.name}'"
                f"{nearest(name, signature.inputs)}; expected {list(signature.inputs)}"
                f"{_text_hint(signature) if name == TEXT else ''}"
            )
    if len(set(names)) != len(names):
        raise InvalidRequestError(
            f"an input is given more than once for model '{signature.name}': expected "
            f"{list(signature.inputs)}, got {names}"
        )
    missing = [name for name in specs if name not in names]
    if missing:
        raise InvalidRequestError(
            f"expected {len(specs)} inputs but got {len(names)} inputs for model "
            f"'{signature.name}': got input(s) {names}, missing required input(s) {missing}"
        )


def _text_hint(signature: Signature) -> str:
    if signature.text:
        return f", or '{TEXT}' alone"
    return (
        f"; to have it take text, add it with its tokenizer: smelt models add {signature.name} "
        "MODEL.onnx --tokenizer tokenizer.json"
    )


def _check_declared(tensor: _InputTensor, spec: TensorSpec, model: str) -> None:
    """Compare the datatype and shape that a request declares with the model's."""
    if tensor.datatype != spec.datatype:
        raise InvalidRequestError(
            f"inference input '{tensor.name}' for model '{model}': expected datatype "
            f"{spec.datatype}, got {tensor.datatype or 'none'}"
        )
    wanted = spec.wire_shape
    found = tuple(tensor.shape)
    if _is_flat_text(found, spec):
        wanted = wanted[:1]
    is_positive = all(dim >= 0 for dim in found)
    fits = len(wanted) == len(found) and all(
        want in (-1, got) for want, got in zip(wanted, found, strict=True)
    )
    if not (fits and is_positive):
        why = "" if is_positive else "; a dimension is negative"
        raise InvalidRequestError(
            f"unexpected shape for input '{tensor.name}' for model '{model}'. Expected "
            f"{list(wanted)}, got {list(found)}{why}"
        )
    if spec.datatype == BYTES:
        check_num_strings(f"input '{tensor.name}' for model '{model}'", found)


def _is_flat_text(shape: tuple[int, ...], spec: TensorSpec) -> bool:
    """Whether texts come as [B] in place of [B, 1]."""
    return spec.name == TEXT and len(shape) == 1 and spec.shape[1:] == (1,)


def _text_sizes(
    shapes: Mapping[str, tuple[int, ...]], specs: Mapping[str, TensorSpec]
) -> dict[str, int]:
    rows = specs[TEXT].shape[0]
    return {rows: shapes[TEXT][0]} if isinstance(rows, str) else {}


def _sizes(shapes: Mapping[str, tuple[int, ...]], signature: Signature) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for name, spec in signature.inputs.items():
        for dim, size in zip(spec.shape, shapes[name], strict=True):
            if isinstance(dim, str) and sizes.setdefault(dim, size) != size:
                raise InvalidRequestError(
                    f"unexpected shape for input '{name}' for model '{signature.name}'. Expected "
                    f"{sizes[dim]} for dimension '{dim}' as in the inputs before, got {size}"
                )
    return sizes
