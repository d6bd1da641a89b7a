"""The canonical digest: equal for equal computations, different for any other."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from compiler_worker.master.stored import store_onnx

Save = Callable[..., Path]
Change = Callable[[onnx.ModelProto], None]


@pytest.fixture
def digest(save: Save, tmp_path: Path) -> Callable[..., str]:
    def compute(model: onnx.ModelProto, folder: str = "a", *, is_external: bool = False) -> str:
        path = save(model, folder, external=is_external)
        return store_onnx(path, tmp_path / f"{folder}_stored").digest

    return compute


def changed(model: onnx.ModelProto, change: Change) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    change(copy)
    return copy


def test_same_in_another_folder_and_with_external_data(
    linear: onnx.ModelProto, digest: Callable[..., str]
) -> None:
    first = digest(linear, "first")
    assert digest(linear, "second/deeper") == first
    assert digest(linear, "third", is_external=True) == first


def test_same_in_another_process(
    linear: onnx.ModelProto, digest: Callable[..., str], tmp_path: Path
) -> None:
    code = (
        "import sys; from pathlib import Path\n"
        "from compiler_worker.master.stored import store_onnx\n"
        "print(store_onnx(Path(sys.argv[1]), Path(sys.argv[2])).digest)"
    )
    first = digest(linear, "first")
    command = [sys.executable, "-c", code, tmp_path / "first" / "m.onnx", tmp_path / "other"]
    found = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    assert found.stdout.strip() == first
    for name in ("model.onnx", "weights.bin"):
        ours = (tmp_path / "first_stored" / name).read_bytes()
        assert (tmp_path / "other" / name).read_bytes() == ours


def rename_everything_inside(model: onnx.ModelProto) -> None:
    names = {"h": "hidden", "s": "t", "w": "weight", "b": "bias"}
    for node in model.graph.node:
        node.name = f"renamed_{node.name}"
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]
    for tensor in model.graph.initializer:
        tensor.name = names[tensor.name]


def rename_dims(model: onnx.ModelProto) -> None:
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "rows"


def document(model: onnx.ModelProto) -> None:
    model.producer_name, model.doc_string = "someone", "text"
    model.metadata_props.add(key="path", value="/home/someone")
    model.graph.node[0].doc_string = "trace"
    model.graph.node[0].metadata_props.add(key="stack", value="/home/someone/model.py")


def reorder_weights(model: onnx.ModelProto) -> None:
    weights = list(model.graph.initializer)
    del model.graph.initializer[:]
    model.graph.initializer.extend(reversed(weights))


def add_dead_node(model: onnx.ModelProto) -> None:
    model.graph.node.add(op_type="Exp", input=["h"], output=["unused"])


@pytest.mark.parametrize(
    "change", [rename_everything_inside, document, reorder_weights, add_dead_node]
)
def test_same_computation(
    linear: onnx.ModelProto, digest: Callable[..., str], change: Change
) -> None:
    assert digest(changed(linear, change), "b") == digest(linear, "a")


def flip_one_bit(model: onnx.ModelProto) -> None:
    weight = model.graph.initializer[0]
    data = bytearray(weight.raw_data)
    data[-1] ^= 1
    weight.raw_data = bytes(data)


def flip_small_weight(model: onnx.ModelProto) -> None:
    bias = numpy_helper.to_array(model.graph.initializer[1]).copy()
    bias[0] = np.nextafter(bias[0], np.float32(9))
    model.graph.initializer[1].CopyFrom(numpy_helper.from_array(bias, "b"))


def change_attribute(model: onnx.ModelProto) -> None:
    model.graph.node[2].attribute[0].f = 0.2500001


def drop_attribute(model: onnx.ModelProto) -> None:
    del model.graph.node[2].attribute[:]


def change_op(model: onnx.ModelProto) -> None:
    model.graph.node[2].op_type = "Elu"


def swap_inputs(model: onnx.ModelProto) -> None:
    model.graph.node[1].input[:] = ["b", "h"]


def change_opset(model: onnx.ModelProto) -> None:
    model.opset_import[0].version = 21


def rename_input(model: onnx.ModelProto) -> None:
    model.graph.input[0].name = "z"
    model.graph.node[0].input[0] = "z"


def rename_output(model: onnx.ModelProto) -> None:
    model.graph.output[0].name = "z"
    model.graph.node[2].output[0] = "z"


def change_types(model: onnx.ModelProto) -> None:
    for value in (model.graph.input[0], model.graph.output[0]):
        value.type.tensor_type.elem_type = onnx.TensorProto.DOUBLE
    for tensor in model.graph.initializer:
        array = numpy_helper.to_array(tensor).astype(np.float64)
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))


def make_dim_static(model: onnx.ModelProto) -> None:
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = 3


@pytest.mark.parametrize(
    "change",
    [
        flip_one_bit,
        flip_small_weight,
        change_attribute,
        drop_attribute,
        change_op,
        swap_inputs,
        change_opset,
        rename_input,
        rename_output,
        change_types,
        make_dim_static,
        rename_dims,
    ],
)
def test_other_computation(
    linear: onnx.ModelProto, digest: Callable[..., str], change: Change
) -> None:
    assert digest(changed(linear, change), "b") != digest(linear, "a")


def branching(
    make_model: Callable[..., onnx.ModelProto], op: str = "Relu", inner: str = "z"
) -> onnx.ModelProto:
    """A branch on data that cannot be folded; `op` stands inside it, on an outer value."""
    value = helper.make_tensor_value_info(inner, onnx.TensorProto.FLOAT, None)
    graphs = [
        helper.make_graph([helper.make_node(name, ["x"], [inner])], inner, [], [value])
        for name in (op, "Neg")
    ]
    return make_model(
        [
            helper.make_node("ReduceMax", ["x"], ["top"], keepdims=0),
            helper.make_node("Cast", ["top"], ["c"], to=onnx.TensorProto.BOOL),
            helper.make_node("If", ["c"], ["y"], then_branch=graphs[0], else_branch=graphs[1]),
        ]
    )


def test_subgraphs_count(
    make_model: Callable[..., onnx.ModelProto], digest: Callable[..., str]
) -> None:
    first = digest(branching(make_model), "a")
    assert digest(branching(make_model, inner="other"), "b") == first
    assert digest(branching(make_model, op="Tanh"), "c") != first


@pytest.mark.parametrize(("fill", "is_same"), [(2.0, True), (3.0, False)])
def test_tensor_attributes_count(
    make_model: Callable[..., onnx.ModelProto],
    digest: Callable[..., str],
    fill: float,
    is_same: bool,
) -> None:
    def filled(value: float) -> onnx.ModelProto:
        tensor = numpy_helper.from_array(np.array([value], np.float32))
        return make_model(
            [
                helper.make_node("Shape", ["x"], ["shape"]),
                helper.make_node("ConstantOfShape", ["shape"], ["y"], value=tensor),
            ]
        )

    assert (digest(filled(fill), "b") == digest(filled(2.0), "a")) is is_same


def test_both_spellings_of_the_default_domain_are_one(
    linear: onnx.ModelProto, digest: Callable[..., str]
) -> None:
    def spell_out(model: onnx.ModelProto) -> None:
        model.opset_import[0].domain = "ai.onnx"

    assert digest(changed(linear, spell_out), "b") == digest(linear, "a")
