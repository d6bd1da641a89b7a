"""A store, and a compiler that works on it with real children."""

from pathlib import Path

import numpy as np
import pytest

from compiler_worker.settings import CompilerSettings
from compiler_worker.workshop import Workshop
from services.contracts.object_store import open_store
from services.contracts.registry import Registry
from tests.integration.precision.small_nets import (
    attention_inputs,
    attention_net,
    conv_inputs,
    conv_net,
    save,
)


@pytest.fixture
def workshop(tmp_path: Path) -> Workshop:
    settings = CompilerSettings(
        store_url=str(tmp_path / "store"),
        cache_dir=tmp_path / "cache",
        num_threads=1,
        benchmark_s=0.01,
        benchmark_iterations=3,
    )
    registry = Registry(open_store(settings.store_url), settings.cache_dir)
    return Workshop(registry=registry, settings=settings)


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """A folder with both nets and a calibration set for each."""
    save(conv_net(), tmp_path / "conv.onnx")
    save(attention_net(), tmp_path / "attention.onnx")
    np.savez(tmp_path / "conv.npz", allow_pickle=False, **conv_inputs(48))
    np.savez(tmp_path / "attention.npz", allow_pickle=False, **attention_inputs(48))
    return tmp_path
