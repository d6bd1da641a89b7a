"""The real MiniLM, added from a folder, built, and served by one replica behind a gateway."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest
import pytest_asyncio
from sentence_transformers import SentenceTransformer

from compiler_worker.building.pipeline import build_model
from compiler_worker.plans.build_keys import Wanted
from services.cli.models.add import AddOptions, add_model
from services.cli.output.progress import Steps
from services.contracts.hardware.kinds import EngineKind, Precision
from services.contracts.model.recipe import Bucket, DimRange, Recipe
from tests.integration.gateway.conftest import Fleet
from tests.integration.served import Built, serve
from tests.minilm_folder import MODEL_DIR, write_minilm_folder
from tests.process_server import forked_children
from tests.quick_worker import quick_worker

__all__ = ["forked_children"]  # a fixture

MAX_TOKENS = 64
RECIPE = Recipe(
    kinds=(EngineKind.ONNXRUNTIME,),
    precisions=(Precision.FP32,),
    buckets=(
        Bucket(
            dims={
                "batch": DimRange(min=1, opt=4, max=8),
                "sequence": DimRange(min=1, opt=16, max=MAX_TOKENS),
            }
        ),
    ),
)


@pytest.fixture(scope="session")
def original() -> SentenceTransformer:
    """Cuts texts where the recipe's largest bucket ends."""
    model = SentenceTransformer(str(MODEL_DIR), device="cpu")
    model.max_seq_length = MAX_TOKENS
    return model


@pytest.fixture(scope="module")
def built(forked_children: None, tmp_path_factory: pytest.TempPathFactory) -> Built:
    folder = tmp_path_factory.mktemp("text")
    worker = quick_worker(folder)
    source = str(write_minilm_folder(folder / "all-MiniLM-L6-v2"))
    options = AddOptions(recipe=RECIPE)
    version = add_model(worker.registry, "minilm", source, options, Steps(is_quiet=True))
    report = build_model(version, Wanted(), worker)
    return Built(
        folder=folder,
        store_url=worker.settings.store_url,
        version=version,
        report=report,
        registry=worker.registry,
    )


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def fleet(built: Built) -> AsyncIterator[Fleet]:
    async with AsyncExitStack() as stack:
        yield await serve(stack, built.folder, built.store_url, built.version)
