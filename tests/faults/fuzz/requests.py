"""Sends hostile requests to a gateway and judges each answer."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from random import Random

import grpc
import numpy as np
from grpc import StatusCode

from services.pb import open_inference_v2_pb2 as pb
from tests.faults.fuzz.cases import INFER_MAKERS, OK, Case, good_case, hostile_case
from tests.integration.replica.published import table

_SERVICE = "/inference.GRPCInferenceService"
# One in so many cases is a stream of several.
_STREAM_EVERY = 20
# Nothing here takes a second; whatever takes this long hangs.
HANG_S = 60.0
_MAX_FAULTS = 20


@dataclass
class Findings:
    """What came of a run.

    Attributes:
        answers: how many were answered with a code, by kind of case.
        faults: what was wrong, with the seed that shows it again.
    """

    answers: Counter[tuple[str, str]] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)

    @property
    def num_answered(self) -> int:
        """Of all kinds."""
        return self.answers.total()


async def fuzz_requests(channel: grpc.aio.Channel, seeds: range, concurrency: int = 16) -> Findings:
    """Send one hostile request for each seed; a good one in the end must be answered."""
    findings, left = Findings(), iter(seeds)
    await asyncio.gather(*(_worker(channel, left, findings) for _ in range(concurrency)))
    await _ask(channel, good_case(Random(0)), "the last one", findings)
    return findings


async def _worker(channel: grpc.aio.Channel, seeds: Iterator[int], findings: Findings) -> None:
    for seed in seeds:
        if len(findings.faults) >= _MAX_FAULTS:
            return
        random = Random(seed)
        if seed % _STREAM_EVERY == 0:
            cases = [random.choice(INFER_MAKERS)(random) for _ in range(random.randint(1, 6))]
            await _stream(channel, cases, f"seed {seed}", findings)
        else:
            await _ask(channel, hostile_case(random), f"seed {seed}", findings)


async def _ask(channel: grpc.aio.Channel, case: Case, seed: str, findings: Findings) -> None:
    try:
        answer = await channel.unary_unary(f"{_SERVICE}/{case.method}")(case.body, timeout=HANG_S)
    except grpc.aio.AioRpcError as error:
        code, words = error.code(), error.details() or ""
    else:
        is_asked = case.method == "ModelInfer"
        code, words = StatusCode.OK, wrong_in_answer(case.body, answer) if is_asked else ""
        if words:
            findings.faults.append(f"{seed} ({case.kind}): wrong answer: {words}")
    findings.answers[case.kind, code.name] += 1
    if code not in case.codes:
        wanted = " or ".join(sorted(wanted.name for wanted in case.codes))
        findings.faults.append(f"{seed} ({case.kind}): {code.name}: {words}; wanted {wanted}")
    elif code is not StatusCode.OK and not words:
        findings.faults.append(f"{seed} ({case.kind}): {code.name} without a reason")


async def _stream(
    channel: grpc.aio.Channel, cases: list[Case], seed: str, findings: Findings
) -> None:
    """All on one stream, where each is answered once, or told why not, and none ends it."""

    async def bodies() -> AsyncIterator[bytes]:
        for case in cases:
            yield case.body

    call = channel.stream_stream(f"{_SERVICE}/ModelStreamInfer")(bodies(), timeout=HANG_S)
    try:
        found = [pb.ModelStreamInferResponse.FromString(message) async for message in call]
    except grpc.aio.AioRpcError as error:
        findings.faults.append(f"{seed} (stream): {error.code().name}: {error.details()}")
        return
    num_answers = sum(not message.error_message for message in found)
    num_good = sum(StatusCode.OK in case.codes for case in cases)
    num_certain = sum(case.codes == OK for case in cases)
    findings.answers["stream of several", "OK"] += 1
    if len(found) != len(cases) or not num_certain <= num_answers <= num_good:
        findings.faults.append(
            f"{seed} (stream): {num_answers} of {len(found)} messages are answers; wanted "
            f"{num_certain} to {num_good} of {len(cases)}"
        )


def wrong_in_answer(body: bytes, answer: bytes) -> str:
    """What is wrong in an answer, as the model would compute it; "" when it is right."""
    request = pb.ModelInferRequest.FromString(body)
    response = pb.ModelInferResponse.FromString(answer)
    arrays = {
        tensor.name: _array(request, index, tensor) for index, tensor in enumerate(request.inputs)
    }
    tokens = table()[arrays["ids"]] * arrays["mask"][..., None].astype(np.float32)
    wanted = {"tokens": tokens, "pooled": tokens.sum(axis=1)}
    names = [output.name for output in request.outputs] or list(wanted)
    if response.id != request.id or [output.name for output in response.outputs] != names:
        return f"id '{response.id}', outputs {[output.name for output in response.outputs]}"
    for output, raw in zip(response.outputs, response.raw_output_contents, strict=True):
        found = np.frombuffer(raw, np.float32).reshape(output.shape)
        if not np.allclose(found, wanted[output.name], rtol=1e-5):
            return f"output '{output.name}' has other values"
    return ""


def _array(
    request: pb.ModelInferRequest, index: int, tensor: pb.ModelInferRequest.InferInputTensor
) -> np.ndarray:
    if request.raw_input_contents:
        return np.frombuffer(request.raw_input_contents[index], np.int64).reshape(tensor.shape)
    return np.array(tensor.contents.int64_contents, np.int64).reshape(tensor.shape)
