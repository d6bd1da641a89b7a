"""Texts through a replica with a real tokenizer: accepted, they are answered, drained or not."""

import asyncio
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from services.contracts.errors import NotReadyError, OverloadedError
from services.contracts.hardware.facts import DeviceFacts
from services.contracts.kserve.tensors import Array, bytes_from_array
from services.contracts.model.batching import Batching
from services.contracts.model.text_recipe import TextRecipe
from services.pb import open_inference_v2_pb2 as pb
from services.replica.engine.loaded_engine import LoadedEngine
from services.replica.replica import Replica
from services.replica.request.tokeniser import Tokeniser
from services.telemetry.recorder import NullRecorder
from tests.unit.services.replica.text_models import token_model, write_tokenizer


class _Engine:
    def run(self, inputs: dict[str, Array]) -> dict[str, Array]:
        """Ids and masks."""
        sums = [inputs[name].sum(axis=1) for name in ("input_ids", "attention_mask")]
        return {"embedding": np.stack(sums, axis=1).astype(np.float32)}

    def close(self) -> None:
        """Nothing."""


def request(text: str) -> bytes:
    message = pb.ModelInferRequest(model_name="m")
    message.inputs.add(name="text", datatype="BYTES", shape=[1])
    message.raw_input_contents.append(bytes_from_array(np.array([text], np.object_)))
    return message.SerializeToString()


async def replica_of(folder: Path, batching: Batching) -> Replica:
    model = token_model(TextRecipe(tokenizer="tokenizer.json"))
    recipe = model.recipe.model_copy(update={"batching": batching})
    model = model.model_copy(update={"recipe": recipe})
    facts = {"kind": "toy", "precision": "fp32", "generation": "x", "buckets": recipe.buckets}
    host = SimpleNamespace(load=lambda: LoadedEngine(engine=_Engine(), **facts))  # type: ignore[arg-type]
    device = DeviceFacts(generation="cpu-x86_64-v3", name="cpu", memory_gib=1)
    tokeniser = Tokeniser(write_tokenizer(folder), model)
    replica = Replica(model, device, host, NullRecorder(), tokeniser=tokeniser)  # type: ignore[arg-type]
    await replica.load()
    return replica


async def test_accepted_texts_are_answered_though_the_replica_drains(tmp_path: Path) -> None:
    replica = await replica_of(tmp_path, Batching())
    answers = [replica.infer(request(text)) for text in ("a", "a b c")]
    assert replica.num_unanswered == 2
    await replica.drain()
    found = [pb.ModelInferResponse.FromString(await answer) for answer in answers]
    assert [each.parameters["num_tokens"].int64_param for each in found] == [3, 5]
    assert [np.frombuffer(each.raw_output_contents[0], np.float32)[1] for each in found] == [3, 5]
    await replica.close()


async def test_texts_beyond_the_bytes_that_may_wait_are_refused(tmp_path: Path) -> None:
    replica = await replica_of(tmp_path, Batching(max_queue_bytes=3000))
    answers = [replica.infer(request("a" * 400)) for _ in range(7)]
    with pytest.raises(OverloadedError, match=r"bytes wait in this replica, at most 3000 may"):
        replica.infer(request("a"))
    await replica.close()
    found = await asyncio.gather(*answers, return_exceptions=True)
    assert {type(each) for each in found} == {NotReadyError}
