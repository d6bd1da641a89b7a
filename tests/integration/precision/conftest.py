"""A store, and a compiler that works on it with real children."""

from pathlib import Path

import numpy as np
import pytest

from compiler_worker.worker_context import WorkerContext
from tests.integration.precision.small_nets import (
    attention_inputs,
    attention_net,
    conv_inputs,
    conv_net,
    save,
)
from tests.process_server import forked_children
from tests.quick_worker import quick_worker

__all__ = ["forked_children"]  # a fixture


@pytest.fixture
def worker(tmp_path: Path) -> WorkerContext:
    return quick_worker(tmp_path)


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """A folder with both nets and a calibration set for each."""
    save(conv_net(), tmp_path / "conv.onnx")
    save(attention_net(), tmp_path / "attention.onnx")
    np.savez(tmp_path / "conv.npz", allow_pickle=False, **conv_inputs(48))
    np.savez(tmp_path / "attention.npz", allow_pickle=False, **attention_inputs(48))
    return tmp_path
