"""The demo's model through the whole fleet: clients get what sentence-transformers gives."""

import numpy as np
import pytest

from services.cli.demo.reference import reference_embeddings
from services.cli.demo.run import MAX_COSINE_DISTANCE, MODEL, ask, embed
from services.cli.demo.sentences import sample_sentences
from services.cli.settings import CliSettings
from tests.integration.fleet.local_fleet import LocalFleet

pytestmark = pytest.mark.slow


@pytest.fixture
def demo(fleet: LocalFleet) -> LocalFleet:
    """The fleet; that a test asks for it makes the fleet serve the demo's model too."""
    return fleet


def test_the_demo_matches_on_every_answer(demo: LocalFleet) -> None:
    answers = ask(CliSettings(home=demo.home), demo.address)
    assert [answer for answer in answers if not answer.is_matched] == []
    assert len(answers) == 4


def test_embeddings_equal_those_of_sentence_transformers(demo: LocalFleet) -> None:
    sentences = sample_sentences()[:24]
    served_ND = embed(CliSettings(home=demo.home), demo.address, sentences)
    reference_ND = reference_embeddings(sentences, demo.home / "cache" / "demo")
    assert served_ND.shape == reference_ND.shape == (24, 384)
    np.testing.assert_allclose(np.linalg.norm(served_ND, axis=1), 1.0, atol=1e-3)
    assert (1.0 - (served_ND * reference_ND).sum(axis=1)).max() <= MAX_COSINE_DISTANCE


def test_it_serves_with_the_proven_engine_and_says_so(demo: LocalFleet) -> None:
    (replica,) = demo.replicas(MODEL)
    [master] = demo.smelt("engines", MODEL)["masters"]
    served = {engine["digest"]: engine for engine in master["engines"]}[replica["engine_digest"]]
    assert served["proof"]["outcome"] == "passed"
    assert served["manifest"]["key"]["kind"] == replica["engine_kind"] == "onnxruntime"
    assert served["manifest"]["key"]["master_digest"] == master["digest"]
    assert [task["is_passed"] for task in served["proof"]["tasks"]] == [True]
