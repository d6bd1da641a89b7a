"""Ids that a graph looks up: bounds from its file to what a gateway refuses, without a recipe."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import pytest_asyncio
from tritonclient.grpc import InferInput
from tritonclient.utils import InferenceServerException

from compiler_worker.building.pipeline import build_model
from compiler_worker.inputs.sampling import proof_samples
from compiler_worker.master.opened import open_master
from compiler_worker.master.source import source_from_text
from compiler_worker.plans.build_keys import Wanted
from services.cli.bench.bench import BenchOptions, run_bench
from services.cli.fleet.fleet_file import RunningFleet, fleet_lock, write_fleet
from services.cli.models.add import AddOptions, add_model
from services.cli.output.progress import Steps
from services.cli.output.show import output_form
from services.cli.settings import CliSettings
from services.contracts.builds.build_record import BuildOutcome
from services.contracts.errors import InvalidModelError, InvalidRecipeError
from services.contracts.model.input_values import InputValues, IntegerSpan
from services.contracts.model.manifest import MasterRecord
from services.contracts.model.recipe import InputRecipe, InputRole, Recipe
from services.contracts.registry.registry import Registry
from services.contracts.store.object_store import open_store
from tests.integration.gateway.conftest import Fleet
from tests.integration.served import Built, serve
from tests.process_server import forked_children
from tests.quick_worker import quick_worker

from .recommender import FIELD_ROWS, FIRST_ITEM, NUM_ITEMS, NUM_KINDS

__all__ = ["forked_children"]  # a fixture

pytestmark = pytest.mark.asyncio(loop_scope="module")

SOURCE = "tests.integration.integers.recommender:recommender"
FIELDS = tuple(IntegerSpan(min=0, max=rows - 1) for rows in FIELD_ROWS)
# The item table has rows for more ids, and for some below 0; the kind table has fewer.
HISTORY = (IntegerSpan(min=0, max=min(NUM_ITEMS - FIRST_ITEM, NUM_KINDS) - 1),)


@pytest.fixture(scope="module")
def built(forked_children: None, tmp_path_factory: pytest.TempPathFactory) -> Built:
    """The model as torch exports it, added, built and proven."""
    folder = tmp_path_factory.mktemp("integers")
    worker = quick_worker(folder)
    version = add_model(worker.registry, "shop", SOURCE, AddOptions(), Steps(is_quiet=True))
    return Built(
        folder=folder,
        store_url=worker.settings.store_url,
        version=version,
        report=build_model(version, Wanted(), worker),
        registry=worker.registry,
    )


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def fleet(built: Built) -> AsyncIterator[Fleet]:
    """A gateway before one replica of the model."""
    async with AsyncExitStack() as stack:
        yield await serve(stack, built.folder, built.store_url, built.version)


async def test_the_version_says_what_its_inputs_take(built: Built) -> None:
    known = built.registry.model_version("shop").master.input_values
    assert known["fields"].allowed == known["fields"].drawn == FIELDS
    assert known["history"].allowed == known["history"].drawn == HISTORY
    assert known["history"].tables == ("items.weight", "kinds.weight")
    assert known["mask"] == InputValues(role=InputRole.MASK)


async def test_it_is_proven_over_all_rows_of_all_tables(built: Built) -> None:
    assert [record.outcome for record in built.report.records] == [BuildOutcome.PROVEN]
    samples = list(proof_samples(built.version.master, Recipe(), built.version.buckets))
    fields = np.concatenate([sample.inputs["fields"] for sample in samples])
    assert fields.min(axis=0).tolist() == [0, 0, 0]
    assert fields.max(axis=0).tolist() == [rows - 1 for rows in FIELD_ROWS]
    assert max(sample.inputs["history"].max() for sample in samples) == HISTORY[0].max
    assert {0, 1} == set(np.concatenate([s.inputs["mask"].ravel() for s in samples]).tolist())


def request(*, history: int = 0, fields: tuple[int, ...] = (0, 0, 0)) -> list[InferInput]:
    """Two rows of three positions, with the given ids in the last of them."""
    arrays = {
        "fields": np.array([[0, 0, 0], fields], np.int64),
        "history": np.array([[0, 0, 0], [0, 0, history]], np.int64),
        "mask": np.ones((2, 3), np.int64),
    }
    inputs = []
    for name, array in arrays.items():
        inputs.append(InferInput(name, list(array.shape), "INT64"))
        inputs[-1].set_data_from_numpy(array)
    return inputs


async def test_the_last_rows_are_answered(fleet: Fleet) -> None:
    client = await fleet.client()
    fields, history = tuple(rows - 1 for rows in FIELD_ROWS), HISTORY[0].max
    assert history is not None
    result = await client.infer("shop", request(fields=fields, history=history))
    assert np.isfinite(result.as_numpy("scores")).all()


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (request(fields=(10, 0, 0)), ("'fields'", "[1, 0]", "0 to 9", "got 10", "fields.0.weight")),
        (request(fields=(0, 0, 3000)), ("'fields'", "[1, 2]", "0 to 2999", "got 3000")),
        (request(fields=(0, -1, 0)), ("'fields'", "[1, 1]", "0 to 199", "got -1")),
        (request(history=400), ("'history'", "[1, 2]", "0 to 399", "got 400", "'kinds.weight'")),
        (request(history=-1), ("'history'", "[1, 2]", "0 to 399", "got -1")),
    ],
    ids=["first column", "last column", "negative column", "beyond", "negative"],
)
async def test_an_id_outside_of_its_table_is_an_invalid_argument(
    fleet: Fleet, wrong: list[InferInput], told: tuple[str, ...]
) -> None:
    client = await fleet.client()
    with pytest.raises(InferenceServerException) as refused:
        await client.infer("shop", wrong)
    assert refused.value.status() == "StatusCode.INVALID_ARGUMENT"
    for words in told:
        assert words in refused.value.message()


async def test_a_bench_asks_what_the_model_takes(
    built: Built, fleet: Fleet, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = CliSettings(home=tmp_path)
    running = RunningFleet(
        supervisor_pid=0,
        controller="127.0.0.1:1",
        grpc_address=fleet.url,
        metrics_address="127.0.0.1:1",
        store_url=built.store_url,
    )
    options = BenchOptions(
        version=0, address="", inputs=[], sizes=[], concurrency="2", seconds=0.2, html=None
    )
    with fleet_lock(settings.run_dir):
        write_fleet(settings.run_dir, running)
        with output_form(as_json=True):
            assert await asyncio.to_thread(run_bench, settings, "shop", options) == 0
    cells = json.loads(capsys.readouterr().out)["cells"]
    assert [(cell["size"], cell["rows"], cell["errors"]) for cell in cells] == [
        ("batch=1, sequence=8", 1, {}),
        ("batch=4, sequence=8", 4, {}),
        ("batch=8, sequence=16", 8, {}),
    ]
    assert all(cell["num_answered"] for cell in cells)


@pytest.fixture(scope="module")
def source(built: Built) -> str:
    """The master as a file, which takes less time than another export."""
    return str(built.registry.materialise_master(built.version.master) / "model.onnx")


async def test_a_recipe_that_takes_more_is_refused(built: Built, source: str) -> None:
    options = AddOptions(recipe=Recipe(inputs={"history": InputRecipe(max=400)}))
    told = "inputs.history: max is 400, but the model takes 0 to 399 .*: a recipe may only narrow"
    with pytest.raises(InvalidRecipeError, match=told):
        add_model(built.registry, "wider", source, options, Steps(is_quiet=True))
    assert "wider" not in built.registry.model_names()


async def test_samples_that_would_be_refused_are(built: Built, source: str, tmp_path: Path) -> None:
    arrays = {"fields": np.zeros((4, 3), np.int64), "mask": np.ones((4, 2), np.int64)}
    np.savez(tmp_path / "s.npz", history=np.array([[0, 1]] * 3 + [[0, 400]]), **arrays)
    options = AddOptions(samples=tmp_path / "s.npz")
    with pytest.raises(InvalidModelError, match=r"'history' at \[3, 1\] holds 400, .*0 to 399"):
        add_model(built.registry, "wider", source, options, Steps(is_quiet=True))


async def test_an_older_record_gains_what_its_graph_says(
    built: Built, source: str, tmp_path: Path
) -> None:
    """Stores of before have masters without it; adding such a model again is enough."""
    document = json.loads(built.version.master.canonical_json())
    assert document.pop("input_values")
    older = MasterRecord.model_validate(document)
    assert older.input_values == {}
    registry = Registry(open_store(str(tmp_path / "store")), tmp_path / "cache")
    opened = open_master(source_from_text(source), tmp_path / "master", lambda text: None)
    first = registry.publish_master(replace(opened, input_values={}))
    assert first.input_values == {}
    version = add_model(registry, "shop", source, AddOptions(), Steps(is_quiet=True))
    assert version.master.input_values == built.version.master.input_values
