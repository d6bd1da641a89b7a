"""Requests whose tensors are empty, by tritonclient over a gateway and a real engine."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

import numpy as np
import pytest
from tritonclient.grpc import InferInput
from tritonclient.grpc.aio import InferenceServerClient
from tritonclient.utils import InferenceServerException

from services.contracts.model.recipe import Bucket, DimRange
from tests.faults.fuzz.world import FUZZED_RECIPE, world
from tests.integration.replica.published import WIDTH, ids_of, table

NUM_REQUESTS, MAX_ROWS, MAX_LENGTH = 1000, 8, 16
_BUCKET = Bucket(
    dims={
        "batch": DimRange(min=1, opt=4, max=MAX_ROWS),
        "sequence": DimRange(min=0, opt=8, max=MAX_LENGTH),
    }
)


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[InferenceServerClient]:
    recipe = FUZZED_RECIPE.model_copy(update={"buckets": (_BUCKET,)})
    async with (
        world(tmp_path, recipe) as fleet,
        InferenceServerClient(f"127.0.0.1:{fleet.gateway.port}") as client,
    ):
        yield client


async def _asked(client: InferenceServerClient, rows: int, length: int, seed: int) -> None:
    """Asks for texts of random ids and compares each answer with arithmetic."""
    ids = ids_of(rows, length, seed)
    inputs = [InferInput(name, ids.shape, "INT64") for name in ("ids", "mask")]
    inputs[0].set_data_from_numpy(ids)
    inputs[1].set_data_from_numpy(np.ones_like(ids))
    answer = await client.infer("toy", inputs)
    tokens, pooled = answer.as_numpy("tokens"), answer.as_numpy("pooled")
    assert tokens.shape == (rows, length, WIDTH)
    np.testing.assert_array_equal(tokens, table()[ids])
    np.testing.assert_array_equal(pooled, table()[ids].sum(axis=1))


async def test_what_is_empty_is_answered_alone_and_beside_what_is_not(
    client: InferenceServerClient,
) -> None:
    await _asked(client, 1, 0, 0)
    await _asked(client, MAX_ROWS, 0, 0)
    random = Random(7)
    lengths = [random.choice((0, 0, 1, random.randint(0, MAX_LENGTH))) for _ in range(NUM_REQUESTS)]
    await asyncio.gather(
        *(_asked(client, random.randint(1, 2), n, seed) for seed, n in enumerate(lengths))
    )


async def test_a_batch_of_no_rows_is_refused(client: InferenceServerClient) -> None:
    with pytest.raises(InferenceServerException, match="'batch'.*expected at least 1, got 0"):
        await _asked(client, 0, 3, 0)
