"""Sources to add, and how tests add one."""

from pathlib import Path

import numpy as np

from services.cli.models.add import AddOptions, add_model
from services.cli.output.progress import Steps
from services.contracts.kserve.tensors import Array
from services.contracts.model.manifest import ModelVersion
from services.contracts.registry.registry import Registry
from tests.conformance.tiny_model import save_master, tiny_model


def source(folder: Path, seed: int = 7) -> str:
    folder.mkdir(exist_ok=True)
    return str(save_master(tiny_model(seed), folder))


def samples_file(path: Path, arrays: dict[str, Array]) -> Path:
    np.savez(path, allow_pickle=False, **arrays)
    return path


def add(registry: Registry, text: str, options: AddOptions | None = None) -> ModelVersion:
    return add_model(registry, "tiny", text, options or AddOptions(), Steps(is_quiet=True))
