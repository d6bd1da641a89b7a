"""Requests that no client should send, each with the codes that may answer it.

Every case comes of a seed: `hostile_case(Random(seed))` is the same one again.
"""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

import numpy as np
from google.protobuf.message import DecodeError
from grpc import StatusCode

from services.contracts.kserve.tensors import NUMPY_FROM_DATATYPE
from services.gateway.api.service import SERVICE
from services.pb import open_inference_v2_pb2 as pb
from tests.integration.replica.published import ids_of, request_of

INVALID, OK = frozenset({StatusCode.INVALID_ARGUMENT}), frozenset({StatusCode.OK})
NOT_FOUND = frozenset({StatusCode.NOT_FOUND})
# Of bytes that protobuf refuses, the gateway may already have read another model's name.
_BROKEN = INVALID | NOT_FOUND
_NOT_OFFERED = frozenset({StatusCode.UNIMPLEMENTED, StatusCode.INVALID_ARGUMENT})
# A parameter may ask for a deadline, and a changed byte may make it one.
_ANY_REFUSAL = _BROKEN | _NOT_OFFERED | {StatusCode.DEADLINE_EXCEEDED}
_EDGES = (0, -1, 1, 2**31 - 1, 2**31, 2**32, 2**62, 2**63 - 1, -(2**63), 3037000500)
Spoil = Callable[[Random, pb.ModelInferRequest], object]


@dataclass(frozen=True, kw_only=True)
class Case:
    """One request.

    Attributes:
        kind: what was done to it, for the table of results.
        codes: any of these is right; with OK the answer must be right too.
        method: the RPC that it is for.
    """

    kind: str
    body: bytes
    codes: frozenset[StatusCode]
    method: str = "ModelInfer"


def good_request(random: Random) -> pb.ModelInferRequest:
    """A request that is answered."""
    ids = ids_of(random.randint(1, 8), random.randint(1, 16), random.randrange(100))
    return pb.ModelInferRequest.FromString(request_of(ids, f"r{random.randrange(1000)}"))


def _shape(random: Random, request: pb.ModelInferRequest) -> object:
    """Dimensions of the edges of integers, never those of the bytes that come."""
    shape = [random.choice(_EDGES) for _ in range(random.choice((2, 2, 2, 1, 3, 31, 33, 200)))]
    if shape == list(request.inputs[0].shape):
        shape.append(0)
    tensor = random.choice(request.inputs)
    tensor.shape[:] = shape
    return None


def _overflow(random: Random, request: pb.ModelInferRequest) -> object:
    """Dimensions whose product is the right one in 32 or 64 bits."""
    low = random.choice((2**16, 2**32, 2**33))
    request.inputs[0].shape[:] = [low, low]
    request.inputs[1].shape[:] = [low, low]
    raw = b"" if random.random() < 0.5 else bytes(8)
    request.raw_input_contents[:] = [raw, raw]
    return None


def _dtype(random: Random, request: pb.ModelInferRequest) -> object:
    """Another datatype than the model's, known or not."""
    names = [*NUMPY_FROM_DATATYPE, "", "int64", "FP8", "BYTES", "STRING", "\0", "INT64 ", "Ж" * 300]
    name = random.choice([name for name in names if name != "INT64"])
    random.choice(request.inputs).datatype = name
    return None


def _data(random: Random, request: pb.ModelInferRequest) -> object:
    """More or fewer bytes than the shape says, or another number of contents."""
    index, raw = random.randrange(2), request.raw_input_contents
    spoilt = (raw[index][:-1], raw[index] + b"\0", raw[index] * 2, b"", raw[index][8:] or b"x")
    if random.random() < 0.5:
        raw[index] = random.choice(spoilt)
    elif random.random() < 0.5:
        raw.append(b"")
    else:
        raw.pop()
    return None


def _values(random: Random, request: pb.ModelInferRequest) -> object:
    """A token or a mask that no engine may look up."""
    index = random.randrange(2)
    values = np.frombuffer(request.raw_input_contents[index], np.int64).copy()
    values[random.randrange(values.size)] = random.choice((-1, 100, 2**62, -(2**63)))
    request.raw_input_contents[index] = values.tobytes()
    return None


def _names(random: Random, request: pb.ModelInferRequest) -> object:
    """Inputs or outputs that are unknown, double, too many, or of endless names."""
    name = random.choice(("", "x", "ids\0", "ids ", "Ж", "x" * 1025, "x" * 100_000))
    many = 1 if len(name) > 100 else random.choice((1, 300, 2000))
    return random.choice(
        (
            lambda: setattr(request.inputs[0], "name", name),
            lambda: setattr(request.inputs[0], "name", "mask"),
            lambda: [request.inputs.add(name=name) for _ in range(many)],
            lambda: request.inputs.pop(),
            lambda: [request.outputs.add(name=name) for _ in range(many)],
            lambda: [request.outputs.add(name="tokens") for _ in range(many + 1)],
        )
    )()


def _typed(random: Random, request: pb.ModelInferRequest) -> object:
    """Typed contents beside raw ones, in another type's field, or in a wrong number."""
    fields = ("int64_contents", "int_contents", "fp32_contents", "bytes_contents")
    field = random.choice(fields)
    values = [b""] if field == "bytes_contents" else [1]
    if random.random() < 0.7:
        del request.raw_input_contents[:]
        if field == "int64_contents" and random.random() < 0.5:
            values *= random.choice((1000, 100_000))
    getattr(request.inputs[0].contents, field).extend(values)
    return None


def _parameters(random: Random, request: pb.ModelInferRequest) -> object:
    """Reserved names, wrong types, too many, too long."""
    holder = random.choice((request, request.inputs[0]))
    many = range(257)
    return random.choice(
        (
            lambda: setattr(request.parameters["triton_x"], "bool_param", True),
            lambda: setattr(request.parameters["priority"], "string_param", "high"),
            lambda: setattr(request.parameters["timeout"], "int64_param", -1),
            lambda: [setattr(holder.parameters[str(n)], "bool_param", True) for n in many],
            lambda: setattr(holder.parameters["k" * 2000], "bool_param", True),
        )
    )()


def _sequence(random: Random, request: pb.ModelInferRequest) -> object:
    """What is not offered."""
    names = ("sequence_id", "sequence_start", "sequence_end")
    request.parameters[random.choice(names)].uint64_param = random.choice((1, 2**64 - 1))
    return None


def _model(random: Random, request: pb.ModelInferRequest) -> object:
    """A model or version that nobody has."""
    names = ("", "TOY", "toy ", "toy\0", "../toy", "%s", "Ж", "x" * 1024)
    if random.random() < 0.5:
        request.model_name = random.choice(names)
    else:
        request.model_version = "2"
    return None


def _version(random: Random, request: pb.ModelInferRequest) -> object:
    """What is no version."""
    versions = ("-1", "x", "01", "9" * 30, "1\n", "1.0", "1" * 1025)
    request.model_version = random.choice(versions)
    return None


SPOILS: dict[str, tuple[Spoil, frozenset[StatusCode]]] = {
    "shape": (_shape, INVALID),
    "overflow": (_overflow, INVALID),
    "datatype": (_dtype, INVALID),
    "data": (_data, INVALID),
    "values": (_values, INVALID),
    "names": (_names, INVALID),
    "typed contents": (_typed, INVALID),
    "parameters": (_parameters, INVALID),
    "sequence": (_sequence, _NOT_OFFERED),
    "model": (_model, NOT_FOUND),
    "version": (_version, INVALID),
}


def spoilt_case(random: Random) -> Case:
    """A well-formed message with something wrong in it, of which the code is known."""
    kind = random.choice(list(SPOILS))
    spoil, codes = SPOILS[kind]
    request = good_request(random)
    spoil(random, request)
    return Case(kind=kind, body=request.SerializeToString(), codes=codes)


def text_case(random: Random) -> Case:
    """A name, datatype, key or id that is not UTF-8."""
    request = good_request(random)
    request.parameters["key"].string_param = "val"
    body = request.SerializeToString()
    word = random.choice((b"toy", b"ids", b"mask", b"INT64", b"key", request.id.encode()))
    spoilt = random.choice((b"\xff", b"\xc0", b"\xed")) + word[1:]
    codes = INVALID if word != b"toy" else _BROKEN
    return Case(kind="not UTF-8", body=body.replace(word, spoilt, 1), codes=codes)


def bomb_case(random: Random) -> Case:
    """Few bytes of which a parser would make many: empty parts, in and out of an input."""
    part = bytes((random.choice((0x22, 0x2A, 0x32, 0x3A)), 0)) * random.choice((2_000, 40_000))
    if random.random() < 0.5:
        inner = bytes((random.choice((0x18, 0x22, 0x2A, 0x42)), 0)) * 12_000
        size = bytes((len(inner) & 0x7F | 0x80, len(inner) >> 7 & 0x7F | 0x80, len(inner) >> 14))
        part = b"\x2a" + size + inner
    unknown = random.choice((b"", b"\x78\x05", b"\x08\x01"))
    return Case(kind="bomb", body=unknown + b"\x0a\x03toy" + part, codes=INVALID)


def mutated_case(random: Random) -> Case:
    """A good request with bytes changed, cut out, doubled or joined to another one's."""
    good = good_request(random)
    body = bytearray(good.SerializeToString())
    for _ in range(random.choice((1, 1, 2, 8))):
        at = random.randrange(len(body) + 1)
        match random.randrange(5):
            case 0:
                body[at : at + 1] = bytes([random.randrange(256)])
            case 1:
                del body[at:]
            case 2:
                del body[at : at + random.randint(1, 9)]
            case 3:
                body[at:at] = body[: random.randrange(len(body) + 1)]
            case _:
                body[at:at] = random.randbytes(random.randint(1, 12))
    return Case(kind="changed bytes", body=bytes(body), codes=codes_of(bytes(body)))


def random_case(random: Random) -> Case:
    """Bytes of no meaning."""
    body = random.randbytes(random.choice((0, 1, 7, 64, 4096)))
    return Case(kind="random bytes", body=body, codes=codes_of(body))


def good_case(random: Random) -> Case:
    """One that must be answered: whoever refuses all refuses too much."""
    return Case(kind="good", body=good_request(random).SerializeToString(), codes=OK)


def codes_of(body: bytes) -> frozenset[StatusCode]:
    """What protobuf's own parser leaves possible."""
    try:
        request = pb.ModelInferRequest.FromString(body)
    except DecodeError:
        return _BROKEN
    if request.model_name != "toy":
        return _BROKEN
    return OK | _ANY_REFUSAL


def question_case(random: Random) -> Case:
    """Bytes for any other RPC that takes one message."""
    method = random.choice([m for m in SERVICE.methods if not m.client_streaming])
    if method.name == "ModelInfer":
        return mutated_case(random)
    body = bytearray(random.choice((b"\x0a\x03toy\x12\x011", b"", b"\x0a\x04\xff\xfe\0\0")))
    for _ in range(random.randrange(4)):
        body.insert(random.randrange(len(body) + 1), random.randrange(256))
    try:
        getattr(pb, method.input_type.name).FromString(bytes(body))
        codes = OK | _BROKEN | _NOT_OFFERED
    except DecodeError:
        codes = _NOT_OFFERED
    return Case(kind="question", body=bytes(body), codes=codes, method=method.name)


_MAKERS = (
    spoilt_case,
    spoilt_case,
    mutated_case,
    mutated_case,
    random_case,
    text_case,
    bomb_case,
    question_case,
    good_case,
)
INFER_MAKERS = (spoilt_case, mutated_case, random_case, text_case, good_case)


def hostile_case(random: Random) -> Case:
    """Any of them."""
    return random.choice(_MAKERS)(random)
