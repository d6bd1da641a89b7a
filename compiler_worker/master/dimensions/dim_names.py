"""Names for the dynamic dimensions that an exporter left unnamed, or numbered (`s31`, `unk__6`).

Recipes, errors and the sizes by default name dimensions, so names have to mean
something, and dimensions that are always equal need one name.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import onnx_ir as ir

from compiler_worker.children.child_jobs import TRIAL
from compiler_worker.children.deadline import run_check
from compiler_worker.children.requests import TrialRequest, TrialResult
from compiler_worker.master.dimensions.named_dim import NamedDim
from compiler_worker.master.dimensions.ties import Groups, names_of, renamed
from compiler_worker.master.input_values.categories import categories
from compiler_worker.master.interface import label_dynamic_dims, label_of, tensor_specs
from compiler_worker.settings import settings_from_environment
from services.contracts.kserve.tensor_spec import TensorSpec
from services.contracts.model.default_buckets import dynamic_dims, image_sides

# By output, as in `TrialResult`.
_Seen = Mapping[str, Sequence[str | int | None]]
BATCH = "batch"
_SEQUENCE = "sequence"
_SIDES = ("height", "width")
# Symbols of torch.export, of ONNX and TensorFlow, of torch's older exporter, and of Paddle.
_NUMBERED = re.compile(
    r"s\d+|unk__\d+|(?:dyn|dim)_?\d+|.+_dynamic_axes_\d+|.+_dim_\d+|"
    r"(?:p2o\.)?DynamicDimension\.\d+"
)
# A dimension may be an expression of others: `2*s31 + 1`.
_OPERAND = re.compile(r"[^\s()*/,+-]+")
_OPERATOR = re.compile(r"[()*/+-]")
_EQUAL = "equal at each of these, as ONNX Runtime failed wherever they were tried apart"
_APART = "of its own size, as ONNX Runtime computes different ones"
_PLACE = "a name by its place alone; what has one symbol in the file is equal"
_UNKNOWN = "not known to be equal to another: ONNX Runtime computed neither way"


def name_dims(
    model: ir.Model, path: Path, unconfirmed: Mapping[str, Sequence[int]] | None = None
) -> tuple[NamedDim, ...]:
    """Name all dynamic dimensions of inputs and outputs, in place; what was taken for what.

    Args:
        model: normalised.
        path: the file that it was read from, for runs that show which sizes are equal.
        unconfirmed: by output, axes whose fixed size may be that of the exporter's example.

    Raises:
        UnsupportedGraphError: the rank of an input or output is unknown.
        InvalidModelError: a run does not end within the deadline, or crashed.
    """
    labels = label_dynamic_dims(model)
    inputs = tensor_specs(model.graph.inputs)
    outputs = tensor_specs(model.graph.outputs)
    naming = _Naming(inputs, _unnamed(inputs, labels))
    naming.name_rows()
    of_outputs = _unnamed(outputs, labels) - set(dynamic_dims(inputs))
    computed = {dim for dim in dynamic_dims(outputs) if _OPERATOR.search(dim)}
    unconfirmed = unconfirmed if dynamic_dims(inputs) else None
    request = TrialRequest(
        path=path,
        num_bytes=_num_bytes(model),
        choices={value.name or "": categories(model, value) for value in model.graph.inputs},
        inputs=naming.specs,
        axes=naming.open_axes(),
        has_outputs=bool(of_outputs or computed or unconfirmed),
    )
    tried = _tried(request)
    naming.tie(tried.groups, request.axes)
    naming.name_places()
    seen = naming.renamed(tried.outputs)
    # Rows may be computed: `(batch*s + s - 1)//s` of a Reshape.
    rows = {spec.shape[0] for spec in naming.specs if spec.shape}
    names = dict.fromkeys(dynamic_dims(inputs), "") | naming.names
    names |= _names_of_outputs(outputs, of_outputs, seen)
    same = _names_of_outputs(outputs, computed, seen)
    names |= {dim: name for dim, name in same.items() if name in rows}
    _correct_sizes(model, unconfirmed or {}, seen)
    if renamed := {old: new for old, new in names.items() if new}:
        _rename(model, renamed)
    return naming.found()


def _tried(request: TrialRequest) -> TrialResult:
    """What runs of the file show; most files need none."""
    if not request.axes and not request.has_outputs:
        return TrialResult(groups=(), outputs={})
    return run_check(
        TRIAL,
        request,
        settings_from_environment(),
        f"{request.path}: cannot be run in ONNX Runtime, which shows which of its dimensions are "
        "equal",
        "a Loop that ends takes less, and a file that names all of its dimensions "
        "(torch.onnx.export: dynamic_shapes) needs no run",
    )


def _unnamed(specs: Sequence[TensorSpec], labels: Collection[str]) -> set[str]:
    return {dim for dim in dynamic_dims(specs) if dim in labels or _NUMBERED.fullmatch(dim)}


class _Naming:
    """The inputs, whose dimensions get their names one after the other.

    Attributes:
        specs: the inputs as their dimensions are called by now.
        names: by its first name, what each dimension that had none is called by now.
    """

    def __init__(self, inputs: Sequence[TensorSpec], unnamed: Collection[str]) -> None:
        self.specs = tuple(inputs)
        self.names = {dim: dim for dim in unnamed}
        self._open = set(unnamed)
        self._basis = dict[str, str]()

    def name_rows(self) -> None:
        """Axis 0 where it is dynamic in all inputs, by the owner's name where one has it."""
        firsts = {spec.shape[0] if spec.shape else 1 for spec in self.specs}
        others = {dim for spec in self.specs for dim in spec.shape[1:]}
        owned = firsts - self._open
        name = owned.pop() if len(owned) == 1 else BATCH
        if isinstance(name, str) and not owned and name not in others and not firsts & others:
            for dim in firsts & self._open:
                self._settle(str(dim), name, "axis 0 of every input")

    def open_axes(self) -> tuple[tuple[str, ...], ...]:
        """Of each axis behind the first, its dimensions without a name where there are several."""
        axis_of: dict[str, int] = {}
        for spec in self.specs:
            for axis, dim in enumerate(spec.shape[1:]):
                if dim in self._open:
                    axis_of.setdefault(str(dim), axis)
        axes = [[d for d in axis_of if axis_of[d] == axis] for axis in set(axis_of.values())]
        return tuple(tuple(dims) for dims in axes if dims[1:])

    def tie(self, groups: Groups | None, axes: Groups) -> None:
        """One name for dimensions of an axis that do not compute at different sizes."""
        for group in groups or axes:
            basis = _UNKNOWN if groups is None else _EQUAL if group[1:] else _APART
            self._basis |= dict.fromkeys(group, basis)
        ties = names_of(groups or ())
        self._replace(ties)
        self._open -= ties.keys()

    def name_places(self) -> None:
        """By what an axis mostly is, else by the first input that has it."""
        for spec in self.specs:
            usual = self._usual_names(spec)
            for axis, dim in enumerate(spec.shape):
                if dim in self._open:
                    label = label_of(spec.name, axis)
                    name = usual.get(axis, "")
                    is_free = name and name not in dynamic_dims(self.specs)
                    self._settle(str(dim), name if is_free else label, _PLACE)

    def _usual_names(self, spec: TensorSpec) -> dict[int, str]:
        """Sides of pictures; axis 1 of ids and of vectors where there is one such dimension."""
        if sides := image_sides(spec):
            return dict(zip(sides, _SIDES, strict=True))
        seconds = {each.shape[1] for each in self.specs if len(each.shape) in (2, 3)}
        is_text = len(spec.shape) == 3 or (len(spec.shape) == 2 and "INT" in spec.datatype)
        num_dynamic = sum(isinstance(dim, str) for dim in seconds)
        return {1: _SEQUENCE} if is_text and num_dynamic == 1 else {}

    def renamed(self, seen: _Seen) -> _Seen:
        """What was seen of outputs, with what the dimensions are called by now."""
        return {
            output: [self.names.get(str(dim), dim) for dim in dims] for output, dims in seen.items()
        }

    def found(self) -> tuple[NamedDim, ...]:
        """What was taken for what, in the order of the inputs."""
        places: dict[str, list[str]] = {name: [] for name in self._basis}
        for spec in self.specs:
            for axis, dim in enumerate(spec.shape):
                if dim in places:
                    places[str(dim)].append(f"{spec.name}[{axis}]")
        return tuple(
            NamedDim(name=name, places=tuple(where), basis=self._basis[name])
            for name, where in places.items()
            if where
        )

    def _settle(self, dim: str, name: str, basis: str) -> None:
        self._basis[name] = self._basis.pop(dim, basis)
        self._open.remove(dim)
        self._replace({dim: name})

    def _replace(self, names: Mapping[str, str]) -> None:
        self.specs = renamed(self.specs, names)
        self.names = {old: names.get(now, now) for old, now in self.names.items()}


def _num_bytes(model: ir.Model) -> int:
    """Of all weights, also of those in other files."""
    values = (value for graph in model.graphs() for value in graph.initializers.values())
    return sum(value.const_value.nbytes for value in values if value.const_value)


def _names_of_outputs(
    outputs: Sequence[TensorSpec], unnamed: Collection[str], found: _Seen
) -> dict[str, str]:
    """The dimension of the inputs that an output's axis was seen to be, else a label."""
    names: dict[str, str] = {}
    for spec in outputs:
        # What is computed may have fewer axes than the file declares.
        seen = [*found.get(spec.name, ()), *[None] * len(spec.shape)]
        for axis, dim in enumerate(spec.shape):
            if dim in unnamed:
                name = seen[axis]
                label = name if isinstance(name, str) else label_of(spec.name, axis)
                names.setdefault(str(dim), label)
    return names


def _correct_sizes(model: ir.Model, unconfirmed: Mapping[str, Sequence[int]], found: _Seen) -> None:
    """Name axes of outputs that the file fixes, and that were seen at other sizes."""
    for value in model.graph.outputs:
        seen = found.get(value.name or "", ())
        for axis in unconfirmed.get(value.name or "", ()):
            if axis < len(seen) and value.shape is not None and not isinstance(seen[axis], int):
                value.shape = value.shape.copy()
                value.shape[axis] = seen[axis] or label_of(value.name or "", axis)


def _rename(model: ir.Model, names: Mapping[str, str]) -> None:
    """Also in what was inferred of inner values: one symbol may not mean two dimensions."""
    for graph in model.graphs():
        for value in (*graph.inputs, *(v for node in graph for v in node.outputs)):
            if value.shape is not None and value.shape.is_dynamic():
                value.shape = ir.Shape([_name_of(dim, names) for dim in value.shape])


def _name_of(dim: int | ir.SymbolicDim, names: Mapping[str, str]) -> int | str | None:
    if isinstance(dim, int) or not dim.value:
        return dim if isinstance(dim, int) else None
    return names.get(dim.value) or _OPERAND.sub(lambda m: names.get(m[0], m[0]), dim.value)
