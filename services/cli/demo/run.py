"""The demo: real sentences through an unmodified Triton client, checked answer by answer."""

from dataclasses import dataclass

import numpy as np

from services.cli.demo.minilm import OUTPUT, tokenise
from services.cli.demo.reference import reference_embeddings
from services.cli.demo.sentences import CORPUS, QUERIES
from services.cli.requests.gateway_client import bearer_metadata, triton_options
from services.cli.settings import CliSettings
from services.contracts.errors import NotReadyError
from services.contracts.kserve.tensors import Array

MODEL = "all-minilm-l6-v2"
SOURCE = "services.cli.demo.minilm:sentence_embedder"
# Embeddings of unit length: 1 - cosine to what sentence-transformers computes.
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

    @property
    def verdict(self) -> str:
        """Whether it matched, for people."""
        return "yes" if self.is_matched else "NO"


def ask(settings: CliSettings, grpc_address: str) -> list[Answer]:
    """Embed corpus and queries over gRPC and find each query's nearest sentence.

    Raises:
        NotReadyError: the gateway did not answer; the message holds why.
    """
    sentences = CORPUS + QUERIES
    served_ND = embed(settings, grpc_address, sentences)
    reference_ND = reference_embeddings(sentences, settings.cache_dir / "demo")
    distances_N = 1.0 - (served_ND * reference_ND).sum(axis=1)
    served_QC = served_ND[len(CORPUS) :] @ served_ND[: len(CORPUS)].T
    reference_QC = reference_ND[len(CORPUS) :] @ reference_ND[: len(CORPUS)].T
    is_corpus_equal = bool((distances_N[: len(CORPUS)] <= MAX_COSINE_DISTANCE).all())
    return [
        Answer(
            query=query,
            nearest=CORPUS[int(served_QC[q].argmax())],
            cosine=float(served_QC[q].max()),
            cosine_distance=float(distances_N[len(CORPUS) + q]),
            is_matched=is_corpus_equal
            and bool(distances_N[len(CORPUS) + q] <= MAX_COSINE_DISTANCE)
            and int(served_QC[q].argmax()) == int(reference_QC[q].argmax()),
        )
        for q, query in enumerate(QUERIES)
    ]


def embed(settings: CliSettings, grpc_address: str, sentences: tuple[str, ...]) -> Array:
    """Embeddings of sentences, float32 [N, D], in two requests of different length.

    Raises:
        NotReadyError: the gateway did not answer.
    """
    import tritonclient.grpc as triton
    from tritonclient.utils import InferenceServerException

    # Of different length, so that the batch's padding takes part in what is compared.
    half = len(sentences) // 2
    headers = bearer_metadata(settings)
    with triton.InferenceServerClient(grpc_address, **triton_options(settings)) as client:
        try:
            parts = [
                _infer(client, tokenise(part), headers)
                for part in (sentences[:half], sentences[half:])
            ]
        except InferenceServerException as error:
            raise NotReadyError(f"gateway {grpc_address}: {error}") from error
    return np.concatenate(parts)


def _infer(client: object, arrays: dict[str, Array], headers: dict[str, str]) -> Array:
    import tritonclient.grpc as triton

    inputs = []
    for name, array in arrays.items():
        tensor = triton.InferInput(name, list(array.shape), "INT64")
        tensor.set_data_from_numpy(array)
        inputs.append(tensor)
    result = client.infer(  # type: ignore[attr-defined]
        MODEL, inputs, headers=headers, client_timeout=CLIENT_TIMEOUT_S
    )
    embeddings: Array = result.as_numpy(OUTPUT)
    return embeddings
