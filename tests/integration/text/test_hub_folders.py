"""A folder without an ONNX file becomes a proven engine that answers as transformers does.

`tests/benchmarks/hub_folders.py` does it with ten models and a whole fleet.
"""

import json
from contextlib import AsyncExitStack
from pathlib import Path

import numpy as np
import pytest
import transformers

from compiler_worker.building.pipeline import build_model
from compiler_worker.plans.build_keys import Wanted
from services.cli.models.add import AddOptions, add_model
from services.cli.output.progress import Steps
from services.contracts.builds.build_record import BuildOutcome
from services.contracts.hardware.kinds import EngineKind, Precision
from services.contracts.model.recipe import Recipe
from tests.hub_folders import MOODS, write_hub_folder
from tests.integration.gateway.http.conftest import run_curl, with_http
from tests.integration.served import serve
from tests.quick_worker import quick_worker

RECIPE = Recipe(kinds=(EngineKind.ONNXRUNTIME,), precisions=(Precision.FP32,))
TEXTS = ["A cat sits on the mat", "what is a dog", "the dog runs", "cat " * 40]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["DistilBERT", "DeBERTa-v2"])
async def test_texts_get_the_labels_that_transformers_gives(name: str, tmp_path: Path) -> None:
    folder = write_hub_folder(name, tmp_path / "folder")
    worker = quick_worker(tmp_path)
    options = AddOptions(recipe=RECIPE)
    version = add_model(worker.registry, "mood", str(folder), options, Steps(is_quiet=True))
    report = build_model(version, Wanted(), worker)
    assert [record.outcome for record in report.records] == [BuildOutcome.PROVEN]
    async with AsyncExitStack() as stack:
        fleet = await serve(stack, tmp_path, worker.settings.store_url, version)
        await with_http(fleet, "r1")
        asked = json.dumps({"model": "mood", "input": TEXTS}).encode()
        got = await run_curl(fleet, "-d", "@-", "/v1/classify", given=asked)
    assert got.status == 200, got.body
    answer = json.loads(got.body)
    assert answer["labels"] == list(MOODS.values())
    # Softmax of one label, the logistic function of several.
    pipe = transformers.pipeline("text-classification", str(folder), device="cpu", top_k=None)
    for found, row in zip(answer["data"], pipe(TEXTS), strict=True):
        wanted = {each["label"]: each["score"] for each in row}
        np.testing.assert_allclose(found["probs"], [wanted[each] for each in MOODS.values()], 1e-4)
        assert found["label"] == max(wanted, key=lambda label: wanted[label])
        assert found["score"] == max(found["probs"])
