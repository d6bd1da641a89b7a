"""The demo's model, exported once for all tests of this folder."""

from collections.abc import Callable

import numpy as np
import onnxruntime
import pytest
from numpy.typing import NDArray

from compiler_worker.master.opened import OpenedMaster, open_master
from compiler_worker.master.source import source_from_text

DEMO = "services.cli.demo.minilm:sentence_embedder"


@pytest.fixture(scope="session")
def messages() -> list[str]:
    """What the export of `minilm` reported."""
    return []


@pytest.fixture(scope="session")
def minilm(tmp_path_factory: pytest.TempPathFactory, messages: list[str]) -> OpenedMaster:
    folder = tmp_path_factory.mktemp("minilm")
    return open_master(source_from_text(DEMO), folder, messages.append)


@pytest.fixture(scope="session")
def embed() -> Callable[..., NDArray[np.float32]]:
    """Run a model of MiniLM's inputs in ONNX Runtime."""

    def run(model: str | bytes, inputs: dict[str, NDArray[np.int64]]) -> NDArray[np.float32]:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 2
        session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        found: NDArray[np.float32] = session.run(None, inputs)[0]
        return found

    return run
