"""Requests to build and prove an engine of a tiny model, and the events that a child writes."""

import io
import json
from pathlib import Path
from typing import Any

from compiler_worker.builders.base import BuildResult
from compiler_worker.building.publish import engine_manifest
from compiler_worker.children.requests import (
    BuildRequest,
    ProofRequest,
)
from services.contracts.builds.build_key import BuildKey
from services.contracts.hardware.kinds import EngineKind, Precision
from services.contracts.model.recipe import Bucket, DimRange, InputRecipe, InputRole, Recipe
from services.engines.device.device_probe import probe_device
from services.engines.device.toolchain import installed_version
from tests.conformance.tiny_model import VOCABULARY, master_record, save_master, tiny_model

MASTER = master_record()

RECIPE = Recipe(
    inputs={"ids": InputRecipe(high=VOCABULARY), "mask": InputRecipe(role=InputRole.MASK)}
)

KEY = BuildKey(
    master_digest=MASTER.digest,
    kind=EngineKind.ONNXRUNTIME,
    precision=Precision.FP32,
    buckets=(
        Bucket(
            dims={
                "batch": DimRange(min=1, opt=2, max=2),
                "sequence": DimRange(min=1, opt=4, max=4),
            }
        ),
    ),
    generation=probe_device().generation,
    toolchain={"onnxruntime": installed_version("onnxruntime")},
)


def events_of(stream: io.StringIO) -> list[dict[str, Any]]:
    """What was written, one event a line."""
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def build_request(folder: Path, key: BuildKey = KEY) -> BuildRequest:
    """A request to build, with a workspace of its own."""
    workspace = folder / "workspace"
    workspace.mkdir()
    return BuildRequest(
        key=key,
        master=MASTER,
        master_path=save_master(tiny_model(), folder),
        workspace=workspace,
        cache_dir=folder / "cache",
        num_threads=0,
    )


def proof_request(folder: Path, key: BuildKey = KEY) -> ProofRequest:
    """A request to prove what needs no files of its own."""
    built = BuildResult(
        files={}, needs_master=True, findings=(), duration_s=0.0, peak_memory_bytes=0
    )
    return ProofRequest(
        manifest=engine_manifest(key, MASTER, built, 5),
        master=MASTER,
        master_path=save_master(tiny_model(), folder),
        recipe=RECIPE,
        engine_dir=folder,
        samples_path=None,
        device=probe_device(),
        cache_dir=folder / "cache",
        num_threads=0,
        benchmark_s=0.0,
        benchmark_iterations=3,
    )
