"""A replica whose recipe samples: rows of what it answered are in the store, sealed."""

from pathlib import Path

import numpy as np
import pytest

from services.contracts.errors import InputRefusedError
from services.contracts.model.sampling_recipe import Sampling
from services.contracts.registry.registry import Registry
from services.contracts.store.object_store import open_store
from services.replica.server import ReplicaServer
from services.replica.settings import ReplicaSettings
from services.telemetry.recorder import NullRecorder

from .conftest import connected
from .published import NUM_ROWS, RECIPE, Shelf, ids_of, request_of


async def test_rows_that_were_answered_are_kept_and_no_others(
    tmp_path: Path, settings: ReplicaSettings
) -> None:
    shelf = Shelf(tmp_path, RECIPE.model_copy(update={"sampling": Sampling(drop=("mask",))}))
    shelf.publish_model()
    shelf.publish_engine()
    key = tmp_path / "samples.key"
    key.write_text("0f" * 32)
    server = ReplicaServer(settings.model_copy(update={"sample_key": key}), NullRecorder())
    await server.start()
    async with connected(server.addresses[0], server.token) as connection:
        await connection.infer(request_of(ids_of(2, 3)))
        await connection.infer(request_of(ids_of(1, 5)))
        with pytest.raises(InputRefusedError):
            await connection.infer(request_of(np.full((1, 2), NUM_ROWS + 1)))
    await server.stop()
    registry = Registry(open_store(shelf.store_url), tmp_path / "cache", key)
    rows = registry.sampled_rows(registry.sample_windows("toy"))
    assert [row.arrays["ids"].tolist() for row in rows] == [[0, 1, 2], [3, 4, 5], [0, 1, 2, 3, 4]]
    assert all(list(row.arrays) == ["ids"] for row in rows)
    (file,) = (tmp_path / "store" / "samples" / "toy").glob("*.npz")
    assert file.read_bytes().startswith(b"smelt-sealed-1\n")
