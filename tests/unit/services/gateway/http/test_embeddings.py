"""Embeddings of OpenAI's paths: several requests to a model for one of a client."""

import asyncio
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from services.contracts.errors import InvalidRequestError, OverloadedError
from services.gateway.http.embeddings import embed
from services.pb import open_inference_v2_pb2 as pb

CONFIG = pb.ModelConfig(
    name="m",
    max_batch_size=1,
    input=[pb.ModelInput(name="text", data_type=pb.TYPE_STRING, dims=[1])],
    output=[pb.ModelOutput(name="e", data_type=pb.TYPE_FP32, dims=[2])],
)


def vectors(*values: float) -> bytes:
    """An answer with one vector."""
    response = pb.ModelInferResponse(model_name="m", model_version="1")
    response.outputs.add(name="e", datatype="FP32", shape=[1, len(values)])
    response.raw_output_contents.append(np.array(values, np.float32).tobytes())
    return response.SerializeToString()


async def test_batches_behind_a_failed_one_do_not_go_on() -> None:
    ended: list[str] = []

    async def ask(rpc: str, _: Any) -> Any:
        if rpc == "ModelConfig":
            return SimpleNamespace(config=CONFIG)
        number = len(ended)
        ended.append("")
        if number == 2:
            raise OverloadedError("full")
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            ended[number] = "cancelled"
            raise

    with pytest.raises(OverloadedError):
        await embed({"model": "m", "input": ["a", "b", "c"]}, ask)
    await asyncio.sleep(0)
    assert ended == ["cancelled", "cancelled", ""]


async def test_floats_that_json_has_not_are_the_clients_to_ask_for_otherwise() -> None:
    async def ask(rpc: str, _: Any) -> Any:
        is_config = rpc == "ModelConfig"
        return SimpleNamespace(config=CONFIG) if is_config else vectors(float("nan"), 1.0)

    with pytest.raises(InvalidRequestError, match="cannot represent; ask for base64"):
        await embed({"model": "m", "input": "a"}, ask)
    answer = await embed({"model": "m", "input": "a", "encoding_format": "base64"}, ask)
    assert b'"embedding":"AADAfwAAgD8="' in answer.body


async def test_many_floats_are_not_written_as_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.gateway.http.embeddings.MAX_VALUES_BYTES", 15)

    async def ask(rpc: str, _: Any) -> Any:
        return SimpleNamespace(config=CONFIG) if rpc == "ModelConfig" else vectors(2.0, 1.0)

    with pytest.raises(InvalidRequestError, match="more than 15 bytes"):
        await embed({"model": "m", "input": ["a", "b"]}, ask)
    assert (await embed({"model": "m", "input": "a"}, ask)).status == 200
