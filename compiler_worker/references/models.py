"""Runnable forms of a master that engines are compared with: fx, ONNX Runtime, ONNX's own.

Inputs and outputs are of any shape that fits the master's specs.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from compiler_worker.master.zipmaps import Classes, class_table
from services.contracts.errors import ProofError
from services.contracts.kserve.byte_strings import strings_from_array
from services.contracts.kserve.tensor_spec import TensorSpec
from services.contracts.kserve.tensors import Array
from services.contracts.model.manifest import MasterRecord
from services.engines.device.toolchain import missing_reason
from services.engines.onnxruntime_engine import has_bfloat16, run_as_values

if TYPE_CHECKING:
    import onnx
    import torch

_NUMBERS = (np.ndarray, np.generic)


class Model(Protocol):
    """Anything that computes all outputs from all inputs, by name; engines are models too."""

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Compute all outputs."""
        ...


class FxModel:
    """The master as an uncompiled torch.fx graph: eager PyTorch, and the float64 reference."""

    def __init__(
        self, module: "torch.nn.Module", master: MasterRecord, *, device: str, is_double: bool
    ) -> None:
        """Move the graph to a device.

        Args:
            module: the imported graph, with its weights.
            master: names inputs and outputs.
            device: of torch, `cpu` or `cuda`.
            is_double: the graph computes in float64 what is float32 in the master.
        """
        self._module = module.to(device)
        self._master = master
        self._device = device
        self._is_double = is_double

    @classmethod
    def open(
        cls, master_path: Path, master: MasterRecord, *, device: str, is_double: bool = False
    ) -> "FxModel":
        """Import the master in float32, or with everything that is float32 in float64.

        Args:
            master_path: the master's `model.onnx`.
            master: names inputs and outputs.
            device: of torch, `cpu` or `cuda`.
            is_double: compute in float64 what is float32 in the master.

        Raises:
            UnsupportedGraphError: the importer has no exact translation of the graph.
        """
        import onnx
        import torch

        from compiler_worker.onnx_to_fx import graph_module_from_onnx

        dtype = torch.float64 if is_double else torch.float32
        module = graph_module_from_onnx(onnx.load(master_path), float_dtype=dtype)
        return cls(module, master, device=device, is_double=is_double)

    @classmethod
    def of_values(cls, master_path: Path, master: MasterRecord, names: Sequence[str]) -> "FxModel":
        """The master in float64 with values of its graph as outputs, in place of its own.

        Args:
            master_path: the master's `model.onnx`.
            master: names the inputs.
            names: of values in its graph, the outputs of this model in order.

        Raises:
            UnsupportedGraphError: the importer has no exact translation of the graph.
        """
        import onnx
        import torch

        from compiler_worker.onnx_to_fx import graph_module_from_onnx

        proto = onnx.load(master_path)
        del proto.graph.output[:]
        proto.graph.output.extend(onnx.helper.make_empty_tensor_value_info(n) for n in names)
        module = graph_module_from_onnx(proto, float_dtype=torch.float64)
        # Only the names count: `run` puts them to what the graph gives.
        specs = tuple(TensorSpec(name=name, datatype="FP32", shape=()) for name in names)
        given = master.model_copy(update={"outputs": specs})
        return cls(module, given, device="cpu", is_double=True)

    @property
    def quantises_values(self) -> bool:
        """Whether the master itself rounds values to a quantised type."""
        from compiler_worker.precision.shifted_roundings import quantises_values

        return quantises_values(self._module)

    def shifted(self, shift: float) -> "FxModel":
        """With the same weights; what the master rounds to a quantised type is shifted."""
        from compiler_worker.precision.shifted_roundings import with_shifted_roundings

        module = with_shifted_roundings(self._module, shift)
        return FxModel(module, self._master, device=self._device, is_double=self._is_double)

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Compute all outputs; float32 ones come as float64 from a float64 import.

        Raises:
            ProofError: PyTorch failed; its message is included.
        """
        import torch

        from services.engines.torch_runtime.torch_arrays import array_from_tensor

        specs = self._master.inputs
        with torch.inference_mode():
            arguments = [self._tensor(inputs[spec.name]) for spec in specs]
            try:
                outputs = self._module(*arguments)
            except (RuntimeError, IndexError, ValueError, TypeError) as error:
                shapes = {spec.name: list(inputs[spec.name].shape) for spec in specs}
                has_empty = any(0 in shape for shape in shapes.values())
                advice = "; begin the bucket at 1 where a size is 0" if has_empty else ""
                raise ProofError(
                    f"eager run of the master at {shapes} failed: {error}{advice}"
                ) from error
            names = (spec.name for spec in self._master.outputs)
            return dict(zip(names, map(array_from_tensor, outputs), strict=True))

    def _tensor(self, array: Array) -> "torch.Tensor":
        from services.engines.torch_runtime.torch_arrays import tensor_from_array

        if self._is_double and array.dtype == np.float32:
            array = array.astype(np.float64)
        return tensor_from_array(array).to(self._device)


class OrtModel:
    """The master in ONNX Runtime on the CPU, without graph optimisations."""

    def __init__(self, session: Any, master: MasterRecord, classes: Classes | None = None) -> None:
        """Take what `open` has opened.

        Args:
            session: of ONNX Runtime.
            master: names inputs and outputs.
            classes: as `open` has them.
        """
        self._session = session
        self._master = master
        self._classes = classes or {}

    @classmethod
    def open(
        cls,
        master_path: Path,
        master: MasterRecord,
        *,
        num_threads: int = 0,
        is_double: bool = False,
        classes: Classes | None = None,
    ) -> "OrtModel":
        """Load the master, in its own types or in float64.

        Args:
            master_path: the master's `model.onnx`.
            master: names inputs and outputs.
            num_threads: of one run; 0 leaves it to ONNX Runtime.
            is_double: compute in float64 what is float32 in the master.
            classes: by output that is maps in the file, the columns of the master's table.

        Raises:
            ProofError: ONNX Runtime is not installed or refuses the graph.
        """
        if reason := missing_reason("onnxruntime"):
            raise ProofError(reason)
        import onnxruntime

        options = onnxruntime.SessionOptions()
        # As plain as it gets: its optimised graph may be the very engine under proof.
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.intra_op_num_threads = num_threads
        # What it logs would end up on a terminal, and all that matters is raised as well.
        options.log_severity_level = 4
        try:
            # A graph of more than 2 GiB in float64 does not serialise, protobuf's limit: a refusal
            # too.
            source = _doubled(master_path).SerializeToString() if is_double else str(master_path)
            session = onnxruntime.InferenceSession(
                source, options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # its exceptions share no base below Exception
            raise ProofError(f"ONNX Runtime refuses the master: {error}") from error
        return cls(session, master, classes)

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Compute all outputs.

        Raises:
            ProofError: ONNX Runtime failed; its message is included.
        """
        names = [spec.name for spec in self._master.outputs]
        is_special = has_bfloat16(self._master.inputs, self._master.outputs)
        try:
            outputs = (
                run_as_values(self._session, names, inputs)
                if is_special
                else self._session.run(names, dict(inputs))
            )
        except Exception as error:  # its exceptions share no base below Exception
            raise ProofError(f"ONNX Runtime run of the master failed: {error}") from error
        named = zip(names, outputs, strict=True)
        columns = self._classes
        return _plain(names, [class_table(o, columns[n]) if n in columns else o for n, o in named])


class EvaluatorModel:
    """The master in ONNX's own reference implementation: numpy, slow, and no library's engine."""

    def __init__(self, evaluator: Any, master: MasterRecord) -> None:
        self._evaluator = evaluator
        self._master = master

    @classmethod
    def open(
        cls, master_path: Path, master: MasterRecord, *, is_double: bool = False
    ) -> "EvaluatorModel":
        """Load the master, in its own types or in float64.

        Args:
            master_path: the master's `model.onnx`.
            master: names inputs and outputs.
            is_double: compute in float64 what is float32 in the master.

        Raises:
            ProofError: it holds an op that the reference implementation does not have.
        """
        from onnx.reference import ReferenceEvaluator

        from compiler_worker.references.reference_ops import OPS

        try:
            source = _doubled(master_path) if is_double else str(master_path)
            evaluator = ReferenceEvaluator(source, new_ops=list(OPS))
        except Exception as error:  # its exceptions share no base below Exception
            raise ProofError(f"onnx.reference refuses the master: {error}") from error
        return cls(evaluator, master)

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Compute all outputs.

        Raises:
            ProofError: the reference implementation failed; its message is included.
        """
        names = [spec.name for spec in self._master.outputs]
        outputs = self._computed(names, inputs)
        return _plain(names, map(np.asarray, outputs))

    def values(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Compute all tensors of the graph that are no strings, by name; raises as `run` does."""
        values: dict[str, Any] = self._computed(None, inputs, intermediate=True)
        arrays = {n: np.asarray(v) for n, v in values.items() if isinstance(v, _NUMBERS)}
        return {name: array for name, array in arrays.items() if array.dtype.kind in "fiub"}

    def _computed(
        self, names: Sequence[str] | None, inputs: Mapping[str, Array], **options: bool
    ) -> Any:
        try:
            # It computes infinities and overflows without a word, as engines do.
            with np.errstate(all="ignore"):
                return self._evaluator.run(names, dict(inputs), **options)
        except Exception as error:  # its exceptions share no base below Exception
            raise ProofError(f"onnx.reference run of the master failed: {error}") from error


def _doubled(master_path: Path) -> "onnx.ModelProto":
    import onnx

    from compiler_worker.precision.doubled import doubled_model

    return doubled_model(onnx.load(master_path))


def _plain(names: Sequence[str], outputs: Iterable[Array]) -> dict[str, Array]:
    """Outputs by name, texts in the one form that engines give them in."""
    return dict(zip(names, map(strings_from_array, outputs), strict=True))
