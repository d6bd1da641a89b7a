"""`smelt infer`: one KServe v2 request from .npy files, strings as JSON, or texts.

Inputs and outputs are of any shape.
"""

import io
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import numpy as np

from services.cli.fleet.control_client import CALL_TIMEOUT_S, Metadata, get_fleet, lacks_models
from services.cli.fleet.fleet_file import RunningFleet, require_fleet
from services.cli.output.show import show, text_width
from services.cli.requests.gateway_client import bearer_metadata, gateway_channel, gateway_error
from services.cli.requests.json_values import array_from_json, typed_arrays
from services.cli.requests.starting_model import wait_until_started
from services.cli.settings import CliSettings
from services.contracts.errors import InvalidRequestError, NotReadyError, SmeltError
from services.contracts.kserve.byte_strings import STRING_DTYPE, strings_from_array
from services.contracts.kserve.tensors import (
    DATATYPE_FROM_NUMPY,
    Array,
    array_from_bytes,
    bytes_from_array,
)
from services.contracts.model.text_input import TEXT
from services.contracts.text.text_table import Table
from services.pb import open_inference_v2_pb2 as pb

if TYPE_CHECKING:  # a request needs no store
    from services.contracts.model.manifest import ModelVersion

MAX_MESSAGE_BYTES = 2**31 - 1
ANSWER_TIMEOUT_S = 300.0
# The path of its RPCs, before their names.
INFERENCE = f"/{pb.DESCRIPTOR.services_by_name['GRPCInferenceService'].full_name}"
_OUTPUT = ("name", "datatype", "shape")
# Characters of a line; of longer names the table folds the values.
_LEAST_VALUES = 24
_NOT_FOUND = grpc.StatusCode.NOT_FOUND
CHANNEL_OPTIONS = (
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
)


def run_infer(
    settings: CliSettings,
    name: str,
    inputs: list[str],
    version: str,
    address: str,
    *,
    texts: Sequence[str] = (),
) -> None:
    """Send the request and print each output.

    Args:
        settings: TLS and token for the gateway.
        name: of the model.
        inputs: `NAME=@FILE.npy` or `NAME=[...]`, JSON, each; empty for a model without inputs.
        version: "" leaves it to the gateway.
        address: `host:port` of the gateway; "" is this host's fleet.
        texts: in place of inputs, for a model that has a tokenizer; of pairs two for each.

    Raises:
        InvalidRequestError: an --input is malformed, or missing; or the server refused the request.
        NotReadyError: no gateway answers.
        SmeltError: the gateway's answer, in the class that its status means.
    """
    if inputs and texts:
        raise InvalidRequestError("--text comes in place of --input; give one of them")
    arrays = read_inputs(inputs)
    # A .npy file has a datatype; what is typed as JSON gets the model's.
    typed = typed_names(inputs)
    running = None if address else require_fleet(settings.run_dir)
    target = running.grpc_address if running else address
    metadata = tuple(bearer_metadata(settings).items())
    with gateway_channel(settings, target, CHANNEL_OPTIONS) as channel:
        try:
            if not inputs or typed:
                model = _described(channel, name, version, metadata)
                datatypes = {each.name: each.datatype for each in model.inputs}
                arrays = typed_arrays(arrays, typed, datatypes)
                if texts:
                    arrays = {TEXT: array_from_texts(texts, model)}
                elif model.inputs and not inputs:
                    known = _of_store(settings, running, model, version)
                    raise _missing_inputs(model, version, address, known)
            request = request_from_arrays(name, version, arrays)
            response = _answered(channel, request, metadata)
        except grpc.RpcError as error:
            hint = known_models(settings, running, name) if error.code() is _NOT_FOUND else ""
            raise gateway_error(target, error, hint) from error
    outputs = arrays_from_response(response)
    text = f"{response.model_name} version {response.model_version}", outputs_table(outputs)
    show(answer_document(response, outputs), text)


def _answered(
    channel: grpc.Channel, request: pb.ModelInferRequest, metadata: Metadata
) -> pb.ModelInferResponse:
    """The answer; to a model whose replicas are starting it is sent again once they have."""
    ask = partial(gateway_rpc(channel, "ModelInfer"), request, ANSWER_TIMEOUT_S, metadata)
    of_all = pb.RepositoryIndexRequest(), CALL_TIMEOUT_S, metadata
    index = partial(gateway_rpc(channel, "RepositoryIndex"), *of_all)
    name = request.model_name
    try:
        answer: pb.ModelInferResponse = ask()
    except grpc.RpcError as error:
        is_away = error.code() is grpc.StatusCode.UNAVAILABLE
        if is_away and wait_until_started(index, name, request.model_version, ANSWER_TIMEOUT_S):
            answer = ask()
        else:
            raise
    return answer


def _described(
    channel: grpc.Channel, name: str, version: str, metadata: Metadata
) -> pb.ModelMetadataResponse:
    request = pb.ModelMetadataRequest(name=name, version=version)
    described: pb.ModelMetadataResponse = gateway_rpc(channel, "ModelMetadata")(
        request, timeout=CALL_TIMEOUT_S, metadata=metadata
    )
    return described


def _missing_inputs(
    model: pb.ModelMetadataResponse, version: str, address: str, known: "ModelVersion | None"
) -> InvalidRequestError:
    from services.cli.requests.needed_inputs import needed_inputs_words

    given = {"--version": version, "--address": address}
    options = [word for option, text in given.items() if text for word in (option, text)]
    return InvalidRequestError(needed_inputs_words(model, options, known))


def _of_store(
    settings: CliSettings, running: RunningFleet | None, model: pb.ModelMetadataResponse, text: str
) -> "ModelVersion | None":
    """The model as this host's fleet has it in its store; None where that is not known."""
    from services.cli.registry import open_registry

    number = int(text or max(model.versions, key=int, default="0")) or None
    # Without it there are inputs to show all the same; an external model is in no store.
    with suppress(SmeltError):
        store = settings.model_copy(update={"store_url": running.store_url}) if running else None
        return open_registry(store).model_version(model.name, number) if store else None
    return None


def gateway_rpc(channel: "grpc.Channel | grpc.aio.Channel", name: str) -> Any:
    """An RPC of the gateway by its name, as a stub of the protocol has it."""
    return channel.unary_unary(
        f"{INFERENCE}/{name}",
        request_serializer=getattr(pb, f"{name}Request").SerializeToString,
        response_deserializer=getattr(pb, f"{name}Response").FromString,
    )


def request_from_arrays(name: str, version: str, arrays: dict[str, Array]) -> pb.ModelInferRequest:
    """A request with raw contents.

    Args:
        name: of the model.
        version: "" leaves it to the gateway.
        arrays: inputs by name.

    Raises:
        InvalidRequestError: a dtype has no datatype.
    """
    request = pb.ModelInferRequest(model_name=name, model_version=version)
    for input_name, array in arrays.items():
        datatype = DATATYPE_FROM_NUMPY.get(array.dtype)
        if datatype is None:
            raise InvalidRequestError(f"input '{input_name}': dtype {array.dtype} has no datatype")
        request.inputs.add(name=input_name, datatype=datatype, shape=array.shape)
        request.raw_input_contents.append(bytes_from_array(array))
    return request


def arrays_from_response(response: pb.ModelInferResponse) -> dict[str, Array]:
    """Outputs by name; views of the response's bytes."""
    raw = zip(response.outputs, response.raw_output_contents, strict=True)
    return {o.name: array_from_bytes(data, o.datatype, tuple(o.shape)) for o, data in raw}


def read_inputs(texts: list[str]) -> dict[str, Array]:
    """Arrays by name from `NAME=...`; raises InvalidRequestError for what is no such text."""
    arrays: dict[str, Array] = {}
    for name, array in map(_read_input, texts):
        if name in arrays:
            raise InvalidRequestError(f"--input {name}: expected once, got more than one")
        arrays[name] = array
    return arrays


def typed_names(texts: list[str]) -> list[str]:
    """Names of the inputs whose numbers are JSON, which has no datatypes."""
    parts = [text.partition("=") for text in texts]
    return [name for name, _, value in parts if value.startswith("[") or value.endswith(".json")]


def _read_input(text: str) -> tuple[str, Array]:
    name, is_given, value = text.partition("=")
    if not is_given or not value.startswith(("@", "[")):
        raise InvalidRequestError(
            f"--input '{text}': expected NAME=@FILE.npy, or JSON as NAME=@FILE.json, "
            "NAME='[[1, 2]]' or NAME='[\"one\", \"two\"]'"
        )
    try:
        array = _array(Path(value[1:])) if value.startswith("@") else array_from_json(value)
        return name, strings_from_array(array)
    except InvalidRequestError as error:
        raise InvalidRequestError(f"--input {name}: {error}") from error


def _array(path: Path) -> Array:
    is_json = path.suffix == ".json"
    try:
        data = path.read_bytes()
        if is_json:
            return array_from_json(data.decode())
        array: Array = np.lib.format.read_array(io.BytesIO(data), allow_pickle=False)
    except OSError as error:
        raise InvalidRequestError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        kind = "JSON" if is_json else ".npy"
        raise InvalidRequestError(f"{path} is no {kind} file: {error}") from error
    return array


def known_models(settings: CliSettings, running: RunningFleet | None, name: str) -> str:
    """The models that a fleet has, for an error; only its controller lists them.

    Args:
        settings: for the controller.
        running: this host's fleet; None tells of none.
        name: of a model; "" is given for one that the fleet has.
    """
    if running is None:
        return ""
    # The answer to the request is the news; without a controller it comes without the list.
    with suppress(NotReadyError):
        snapshot = get_fleet(running.controller, settings)
        known = sorted({model.name for model in snapshot.models})
        if name not in known and not lacks_models(snapshot):
            return f"; there are: {', '.join(known) or 'none'}"
    return ""


def outputs_table(outputs: Mapping[str, Array]) -> Table:
    """The outputs by name; of many values the first and the last, in lines that fit beside them."""
    described = [(n, DATATYPE_FROM_NUMPY[a.dtype], str(list(a.shape))) for n, a in outputs.items()]
    columns = zip(_OUTPUT, *described, strict=True)
    taken = sum(max(map(len, column)) + len("  ") for column in columns)
    room = max(text_width() - taken, _LEAST_VALUES)
    values = (np.array2string(a, max_line_width=room, threshold=8) for a in outputs.values())
    rows = [(*each, shown) for each, shown in zip(described, values, strict=True)]
    return Table("Outputs", (*_OUTPUT, "values"), rows)


def answer_document(
    response: pb.ModelInferResponse, outputs: dict[str, Array]
) -> dict[str, object]:
    """An answer as JSON, its arrays flat beside their shapes."""
    return {
        "model_name": response.model_name,
        "model_version": response.model_version,
        "outputs": [
            {
                "name": n,
                "datatype": DATATYPE_FROM_NUMPY[a.dtype],
                "shape": list(a.shape),
                "data": _plain(a).ravel().tolist(),
            }
            for n, a in outputs.items()
        ],
    }


def _plain(array: Array) -> Array:
    """Strings and integers as they are, as float64 cannot hold all; all else as float64."""
    return array if array.dtype.kind in "biuO" else array.astype(float)


def array_from_texts(texts: Sequence[str], model: pb.ModelMetadataResponse) -> Array:
    """BYTES [B, 1], or [B, 2] of pairs, each being two texts that follow each other.

    A model that takes none gets [B, 1] too: its replica refuses it, and says what to do.

    Raises:
        InvalidRequestError: half of a pair is missing.
    """
    shapes = [tuple(each.shape) for each in model.inputs if each.name == TEXT]
    width = 2 if shapes and shapes[0][1:] == (2,) else 1
    if len(texts) % width:
        raise InvalidRequestError(
            f"--text: model '{model.name}' takes pairs; give two for each, got {len(texts)}"
        )
    array = np.array(list(texts), dtype=STRING_DTYPE)
    flat = bool(shapes) and len(shapes[0]) == 1
    return array if flat else array.reshape(-1, width)
