"""The demo's model through the whole fleet: clients get what sentence-transformers gives."""

from collections.abc import Iterator

import numpy as np
import pytest
import yaml

from services.cli.demo.minilm import recipe
from services.cli.demo.reference import reference_embeddings
from services.cli.demo.run import MAX_COSINE_DISTANCE, MODEL, SOURCE, ask, embed
from services.cli.demo.sentences import sample_sentences
from services.cli.settings import CliSettings
from services.contracts.kinds import Precision
from services.contracts.recipe import Bucket, DimRange, Recipe
from tests.integration.fleet.local_fleet import LocalFleet, fleet_home

# One engine of one precision for one box of shapes: each kind has tests of its own.
KIND = "onnxruntime"


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalFleet]:
    path = tmp_path_factory.mktemp("recipe") / "recipe.yaml"
    path.write_text(yaml.safe_dump(_small_recipe().model_dump(mode="json")))
    with fleet_home() as fleet:
        fleet.smelt("models", "add", MODEL, SOURCE, "--recipe", str(path))
        fleet.build(MODEL, KIND)
        fleet.up()
        fleet.wait_ready(MODEL, 1)
        yield fleet


def _small_recipe() -> Recipe:
    """The demo's own, with its smaller box: what the first sentences need."""
    dims = {"batch": DimRange(min=1, opt=8, max=12), "sequence": DimRange(min=1, opt=16, max=32)}
    changes = {"buckets": (Bucket(dims=dims),), "precisions": (Precision.FP32,)}
    return recipe().model_copy(update=changes)


def test_the_demo_matches_on_every_answer(fleet: LocalFleet) -> None:
    answers = ask(CliSettings(home=fleet.home), fleet.address)
    assert [answer for answer in answers if not answer.is_matched] == []
    assert len(answers) == 4


def test_embeddings_equal_those_of_sentence_transformers(fleet: LocalFleet) -> None:
    sentences = sample_sentences()[:24]
    served_ND = embed(CliSettings(home=fleet.home), fleet.address, sentences)
    reference_ND = reference_embeddings(sentences, fleet.home / "cache" / "demo")
    assert served_ND.shape == reference_ND.shape == (24, 384)
    np.testing.assert_allclose(np.linalg.norm(served_ND, axis=1), 1.0, atol=1e-3)
    assert (1.0 - (served_ND * reference_ND).sum(axis=1)).max() <= MAX_COSINE_DISTANCE


def test_it_serves_with_the_proven_engine_and_says_so(fleet: LocalFleet) -> None:
    (replica,) = fleet.replicas(MODEL)
    [master] = fleet.smelt("engines", MODEL)["masters"]
    served = {engine["digest"]: engine for engine in master["engines"]}[replica["engine_digest"]]
    assert served["proof"]["outcome"] == "passed"
    assert served["manifest"]["key"]["kind"] == replica["engine_kind"] == KIND
    assert served["manifest"]["key"]["master_digest"] == master["digest"]
    assert [task["is_passed"] for task in served["proof"]["tasks"]] == [True]
