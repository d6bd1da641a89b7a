"""The tiny model: scaled table rows where a mask is 1; its master, engines and requests."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from services.contracts.builds.build_key import BuildKey
from services.contracts.errors import EngineError
from services.contracts.hardware.facts import DeviceFacts
from services.contracts.hardware.kinds import EngineKind, Precision
from services.contracts.kserve.tensors import TensorSpec, bytes_from_array
from services.contracts.model.batching import Batching
from services.contracts.model.default_buckets import default_buckets
from services.contracts.model.input_values import InputValues
from services.contracts.model.manifest import (
    BlobRef,
    EngineManifest,
    ModelVersion,
    Proof,
    ProofOutcome,
    PublishedEngine,
    SideTiming,
    Timing,
)
from services.contracts.model.recipe import Bucket, DimRange, InputRecipe, InputRole, Recipe
from services.contracts.registry.registry import Registry
from services.contracts.store.object_store import open_store
from services.contracts.terms import proof_terms
from services.engines.base import LoadSpec
from services.engines.device.device_probe import probe_device
from services.pb import open_inference_v2_pb2 as pb
from services.replica.engine.checker import EngineChecker
from services.replica.engine.failure_notes import FailureNotes
from services.replica.engine.loaded_engine import FallbackLoader, RunningEngine
from services.replica.engine.manager import EngineManager

NUM_ROWS = 100  # of the table: a larger id is an error that ONNX Runtime raises itself
WIDTH = 4
BUCKET = Bucket(
    dims={
        "batch": DimRange(min=1, opt=4, max=8),
        "sequence": DimRange(min=1, opt=8, max=16),
    }
)
CREATED_AT = "2026-01-01T00:00:00.000+00:00"


def table() -> np.ndarray:
    """table_NW: float32 [N rows, W width], each element another."""
    return np.arange(NUM_ROWS * WIDTH, dtype=np.float32).reshape(NUM_ROWS, WIDTH)


def onnx_model(scale: float = 1.0) -> onnx.ModelProto:
    """Outputs: tokens = table[ids] * mask * scale: [B, S, W]; pooled = sum over S: [B, W]."""
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["rows"]),
        helper.make_node("Cast", ["mask"], ["mask_f"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["mask_f", "last"], ["mask_3d"]),
        helper.make_node("Mul", ["rows", "mask_3d"], ["tokens"]),
        helper.make_node("ReduceSum", ["tokens", "one"], ["pooled"], keepdims=0),
    ]
    weights = {
        "table": table() * np.float32(scale),
        "last": np.array([2], np.int64),
        "one": np.array([1], np.int64),
    }
    graph = helper.make_graph(
        nodes,
        "toy",
        [
            helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "sequence"])
            for name in ("ids", "mask")
        ],
        [
            helper.make_tensor_value_info(
                "tokens", TensorProto.FLOAT, ["batch", "sequence", WIDTH]
            ),
            helper.make_tensor_value_info("pooled", TensorProto.FLOAT, ["batch", WIDTH]),
        ],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])
    model.ir_version = 10
    onnx.checker.check_model(model)
    return model


@dataclass(frozen=True, kw_only=True)
class Master:
    """An opened master, as the compiler would give it."""

    digest: str
    files: Mapping[str, Path]
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    opset: int = 20
    num_parameters: int = NUM_ROWS * WIDTH
    input_values: Mapping[str, InputValues] = field(default_factory=dict)


def write_master(folder: Path) -> Master:
    """The model on disk."""
    folder.mkdir()
    path = folder / "model.onnx"
    onnx.save(onnx_model(), path)
    return Master(
        digest="ab" * 32,
        files={"model.onnx": path},
        inputs=tuple(
            TensorSpec(name=name, datatype="INT64", shape=("batch", "sequence"))
            for name in ("ids", "mask")
        ),
        outputs=(
            TensorSpec(name="tokens", datatype="FP32", shape=("batch", "sequence", WIDTH)),
            TensorSpec(name="pooled", datatype="FP32", shape=("batch", WIDTH)),
        ),
    )


RECIPE = Recipe(
    buckets=(BUCKET,),
    inputs={
        "ids": InputRecipe(role=InputRole.VALUES, high=NUM_ROWS),
        "mask": InputRecipe(role=InputRole.MASK),
    },
)


class Shelf:
    """Publishes versions and engines of the tiny model, in a folder's `store`."""

    def __init__(self, folder: Path, recipe: Recipe = RECIPE) -> None:
        self.store_url = str(folder / "store")
        self._recipe = recipe
        self.registry = Registry(open_store(self.store_url), folder / "cache")
        self._master = write_master(folder / "master")
        self.device: DeviceFacts = probe_device()

    def publish_model(
        self, *, max_queue: int = 64, max_queue_bytes: int | None = None
    ) -> ModelVersion:
        """A version of model `toy`."""
        batching = Batching(max_queue=max_queue, max_queue_bytes=max_queue_bytes)
        recipe = self._recipe.model_copy(update={"batching": batching})
        return self.registry.add_model_version(
            name="toy",
            master=self.registry.publish_master(self._master),
            recipe=recipe,
            source="test",
            source_fingerprint="test",
        )

    def manifest(self, name: str = "plain") -> EngineManifest:
        """An engine for this device that reads the master; `name` makes its key another."""
        key = BuildKey(
            master_digest=self._master.digest,
            kind=EngineKind.ONNXRUNTIME,
            precision=Precision.FP32,
            buckets=self._recipe.buckets or default_buckets(self._master.inputs, "batch"),
            proof_terms=proof_terms(self._recipe, Precision.FP32, None),
            builder_options={"name": name},
            generation=self.device.generation,
            toolchain={"onnxruntime": self.device.toolchain["onnxruntime"]},
        )
        return EngineManifest(
            key=key,
            files={},
            inputs=self._master.inputs,
            outputs=self._master.outputs,
            needs_master=True,
            build_duration_s=0.0,
            created_at=CREATED_AT,
        )

    def publish_engine(
        self,
        name: str = "plain",
        *,
        speedup: float = 1.0,
        speed_over_fallback: float = 0.0,
        outcome: ProofOutcome = ProofOutcome.PASSED,
        files: Mapping[str, Path] | None = None,
    ) -> PublishedEngine:
        """That engine with a proof; its own file, if any, is read in place of the master.

        A `speed_over_fallback` of 0 stands for a fallback that was not timed.
        """
        took_s = speed_over_fallback
        timing = Timing(
            bucket="b",
            sizes={},
            p50_s=1.0,
            p95_s=1.0,
            throughput=1.0,
            eager_p50_s=speedup,
            fallback=SideTiming(p50_s=took_s, p95_s=took_s, throughput=1.0, peak_memory_bytes=0)
            if took_s
            else None,
        )
        proof = Proof(
            outcome=outcome,
            reason="" if outcome is ProofOutcome.PASSED else "on purpose",
            device=self.device,
            timings=(timing,),
            created_at=CREATED_AT,
        )
        return self.registry.publish_engine(self.manifest(name), files or {}, proof)


def ids_of(rows: int, length: int, first: int = 0) -> np.ndarray:
    """ids_BS: int64 [B rows, S length], valid ones."""
    return ((first + np.arange(rows * length)) % NUM_ROWS).reshape(rows, length)


def request_of(ids: np.ndarray, request_id: str = "") -> bytes:
    """A serialised request with an open mask."""
    request = pb.ModelInferRequest(model_name="toy", id=request_id)
    for name, array in (("ids", ids), ("mask", np.ones_like(ids))):
        request.inputs.add(name=name, datatype="INT64", shape=array.shape)
        request.raw_input_contents.append(bytes_from_array(array))
    return request.SerializeToString()


def assert_answers(response: bytes, ids: np.ndarray, request_id: str = "") -> None:
    """The response is exactly the model's answer to these ids."""
    answer = pb.ModelInferResponse.FromString(response)
    assert answer.id == request_id
    tokens, pooled = (
        np.frombuffer(raw, np.float32).reshape(output.shape)
        for raw, output in zip(answer.raw_output_contents, answer.outputs, strict=True)
    )
    np.testing.assert_array_equal(tokens, table()[ids])
    np.testing.assert_allclose(pooled, table()[ids].sum(axis=1), rtol=1e-6)


def no_fallback(model: ModelVersion) -> RunningEngine:
    """A host that must not need the fallback."""
    raise EngineError("no fallback in this test")


def host_of(
    shelf: Shelf,
    model: ModelVersion,
    notes: FailureNotes | None = None,
    clock: Callable[[], float] = time.monotonic,
    fallback: FallbackLoader = no_fallback,
) -> EngineManager:
    return EngineManager(
        shelf.registry,
        model,
        shelf.device,
        fallback,
        EngineChecker(Path("unused")),
        num_threads=1,
        notes=notes,
        clock=clock,
    )


def blob_of(shelf: Shelf, engine: PublishedEngine, root: Path) -> Path:
    """The file in the store behind an engine's only blob."""
    (ref,) = engine.manifest.files.values()
    return root / "store" / "blobs" / "sha256" / ref.sha256


def typed(path: Path, data: bytes) -> dict[str, Path]:
    """The own file of an ONNX Runtime engine."""
    path.write_bytes(data)
    return {"typed.onnx": path}


def load_spec(shelf: Shelf, model: ModelVersion, folder: Path | None = None) -> LoadSpec:
    """How a host would load an engine that reads the master, or `typed.onnx` of a folder."""
    master = shelf.registry.materialise_master(model.master)
    manifest = shelf.manifest()
    if folder:
        ref = BlobRef(sha256="0" * 64, num_bytes=0)
        manifest = manifest.model_copy(update={"files": {"typed.onnx": ref}})
    return LoadSpec(
        manifest=manifest,
        master=model.master,
        directory=folder or master,
        master_path=master / "model.onnx",
        device=shelf.device,
        num_threads=1,
    )
