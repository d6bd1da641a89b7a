"""Artifacts of earlier builds as a cache of this one: what was compiled once is taken over.

An artifact holds what torch's own caches hold for its graph: code, kernels, tuned launch
configurations. Weights are arguments of it, so that a sibling with other weights finds the same.
"""

import logging
import shutil
from functools import partial
from pathlib import Path

import torch

from services.contracts.store.kept_files import keep

logger = logging.getLogger(__name__)

_SUFFIX = ".bin"


def load_artifacts(folder: Path | None) -> int:
    """Give torch's caches what is in the folder; the number of artifacts. Bad ones are ignored."""
    if folder is None:
        return 0
    return sum(_load(path) for path in sorted(folder.glob(f"*{_SUFFIX}")))


def keep_artifact(folder: Path | None, saved: Path) -> None:
    """Keep a saved artifact for the builds to come, under the key that torch gives its graph."""
    if folder is None:
        return
    try:
        key, _ = _parts(saved.read_bytes())
        target = folder / f"{key}{_SUFFIX}"
        if not target.exists():
            keep(target, partial(shutil.copyfile, saved))
    except Exception as error:  # the engine is made; the next build compiles again
        logger.warning("%s is not kept: %s: %s", saved.name, type(error).__name__, error)


def _load(path: Path) -> bool:
    try:
        _, data = _parts(path.read_bytes())
        torch.compiler.load_cache_artifacts(data)
    except Exception as error:  # torch raises many types where it cannot read something
        logger.warning("%s is not used: %s: %s", path.name, type(error).__name__, error)
        return False
    return True


def _parts(saved: bytes) -> tuple[str, bytes]:
    """Key and cache entries of an artifact; raises ValueError for one of another torch."""
    from torch._inductor.codecache import torch_key

    # Private to torch, which has no public way to read an artifact without loading it.
    from torch.utils._appending_byte_serializer import BytesReader

    reader = BytesReader(saved)
    reader.read_bytes()  # what kind of artifact it is
    if reader.read_bytes() != torch_key():
        raise ValueError("it is of another build of torch")
    return reader.read_str(), reader.read_bytes()
