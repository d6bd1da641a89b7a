"""Small models in ONNX's own text, and what the proof says of engines that are others."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
from onnx import numpy_helper, parser

from compiler_worker.master.input_values.known_values import input_values
from compiler_worker.proof.claim import Claim, ProofVerdict
from compiler_worker.proof.judge import judge
from compiler_worker.references.models import Model, OrtModel
from compiler_worker.references.reference import Reference, open_eager, open_reference
from services.contracts.hardware.kinds import EngineKind, Precision
from services.contracts.kserve.tensor_spec import TensorSpec
from services.contracts.kserve.tensors import DATATYPE_FROM_NUMPY, Array
from services.contracts.model.manifest import BlobRef, MasterRecord
from services.contracts.model.recipe import Bucket, DimRange, Recipe

BATCH = Bucket(dims={"batch": DimRange(min=1, opt=4, max=8)})
Answer = dict[str, Array]
Alter = Callable[[Answer, Mapping[str, Array]], None]


class Altered:
    """An engine whose answers are changed on their way out."""

    def __init__(self, engine: Model, alter: Alter) -> None:
        self._engine, self._alter = engine, alter

    def run(self, inputs: Mapping[str, Array]) -> Answer:
        """The engine's answer, altered in place."""
        answer = dict(self._engine.run(inputs))
        self._alter(answer, inputs)
        return answer


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A master with its reference, and ONNX Runtime as its engine."""

    folder: Path
    path: Path
    master: MasterRecord
    reference: Reference

    @classmethod
    def of(cls, folder: Path, graph: str, **weights: Array) -> "Subject":
        """Write the master of a graph in text."""
        path = written(folder, graph, **weights)
        return cls.opened(folder, path)

    @classmethod
    def opened(cls, folder: Path, path: Path, kind: EngineKind | None = None) -> "Subject":
        """A master's file, for engines of a kind."""
        master = record_of(onnx.load(path))
        eager = open_eager(path, master, "cpu")
        reference = open_reference(path, master, eager, folder / "cache", kind=kind, num_threads=1)
        return cls(folder=folder, path=path, master=master, reference=reference)

    @property
    def engine(self) -> Model:
        """A right engine."""
        return OrtModel.open(self.path, self.master, num_threads=1)

    def engine_of(self, graph: str, **weights: Array) -> Model:
        """The engine of another graph with the same inputs and outputs."""
        folder = self.folder / "other"
        folder.mkdir()
        return OrtModel.open(written(folder, graph, **weights), self.master, num_threads=1)

    def judged(
        self,
        engine: Model,
        recipe: Recipe | None = None,
        precision: Precision = Precision.FP32,
        buckets: tuple[Bucket, ...] = (BATCH,),
        samples: Mapping[str, Array] | None = None,
        held_out: Mapping[str, Array] | None = None,
    ) -> ProofVerdict:
        """What the proof says."""
        claim = Claim(
            master=self.master,
            recipe=recipe or Recipe(),
            precision=precision,
            buckets=buckets,
            samples=samples,
            held_out=held_out,
            master_path=self.path,
        )
        return judge(engine, self.reference, claim)


def written(folder: Path, graph: str, **weights: Array) -> Path:
    """A graph in text with its weights, as a file."""
    model = parser.parse_model(f'<ir_version: 10, opset_import: ["" : 20]>\n{graph}')
    tensors = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    model.graph.initializer.extend(tensors)
    onnx.checker.check_model(model, full_check=True)
    path = folder / "model.onnx"
    onnx.save(model, path)
    return path


def record_of(model: onnx.ModelProto) -> MasterRecord:
    """What is recorded of a master."""
    return MasterRecord(
        digest="a" * 64,
        files={"model.onnx": BlobRef(sha256="b" * 64, num_bytes=1)},
        inputs=tuple(_spec(entry) for entry in model.graph.input),
        outputs=tuple(_spec(entry) for entry in model.graph.output),
        opset=20,
        num_parameters=1,
        input_values=input_values(ir.from_proto(model)),
    )


def _spec(entry: onnx.ValueInfoProto) -> TensorSpec:
    tensor = entry.type.tensor_type
    dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
    shape = tuple(dim.dim_param or dim.dim_value for dim in tensor.shape.dim)
    return TensorSpec(name=entry.name, datatype=DATATYPE_FROM_NUMPY[dtype], shape=shape)


def normal(*shape: int, seed: int = 1) -> Array:
    """Weights."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


LINEAR = "g (float[batch, 8] x) => (float[batch, 4] y) { y = MatMul (x, w) }"
