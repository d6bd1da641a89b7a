"""The store form: normalised, deterministic, weights apart, equal in value to the source."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from compiler_worker.master.opened import StoredMaster
from compiler_worker.master.stored import store_onnx
from services.contracts.errors import InvalidModelError
from services.contracts.kserve.tensor_spec import TensorSpec

Save = Callable[..., Path]


@pytest.fixture
def store(save: Save, tmp_path: Path) -> Callable[..., StoredMaster]:
    def run(model: onnx.ModelProto, folder: str = "model") -> StoredMaster:
        return store_onnx(save(model, folder), tmp_path / f"{folder}_stored")

    return run


def outputs_of(model: str | bytes, **feeds: np.ndarray) -> list[np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return list(session.run(None, feeds))


def op_counts(stored: StoredMaster) -> Counter[str]:
    model = onnx.load(str(stored.files["model.onnx"]), load_external_data=False)
    return Counter(node.op_type for node in model.graph.node)


def test_facts(linear: onnx.ModelProto, store: Callable[..., StoredMaster]) -> None:
    stored = store(linear)
    assert stored.inputs == (TensorSpec(name="x", datatype="FP32", shape=("N", 32)),)
    assert stored.outputs == (TensorSpec(name="y", datatype="FP32", shape=("N", 16)),)
    assert stored.opset == 20
    assert stored.num_parameters == 32 * 16 + 16
    assert sorted(stored.files) == ["model.onnx", "weights.bin"]


def test_only_large_weights_lie_apart(
    linear: onnx.ModelProto, store: Callable[..., StoredMaster]
) -> None:
    model = onnx.load(str(store(linear).files["model.onnx"]), load_external_data=False)
    places = {t.name: t.data_location for t in model.graph.initializer}
    assert places == {"w": TensorProto.EXTERNAL, "b": TensorProto.DEFAULT}
    weight = next(t for t in model.graph.initializer if t.name == "w")
    entries = {entry.key: entry.value for entry in weight.external_data}
    assert entries["location"] == "weights.bin"
    assert int(entries["offset"]) % 4096 == 0


def test_no_weights_file_without_large_weights(make_model: Any, save: Save, tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "weights.bin").write_bytes(b"of an older master")
    path = save(make_model([helper.make_node("Relu", ["x"], ["y"])]))
    assert sorted(store_onnx(path, tmp_path / "target").files) == ["model.onnx"]
    assert not (tmp_path / "target" / "weights.bin").exists()


def test_storing_again_changes_no_byte(
    linear: onnx.ModelProto, store: Callable[..., StoredMaster], tmp_path: Path
) -> None:
    first = store(linear)
    second = store_onnx(first.files["model.onnx"], tmp_path / "again")
    assert second.digest == first.digest
    for name, path in first.files.items():
        assert second.files[name].read_bytes() == path.read_bytes()


def untidy(make_model: Any) -> onnx.ModelProto:
    """Two equal branches, constants to fold, an identity and a dead node: y = 2 (x + 3)."""
    constants = {"one": np.float32([1]), "two": np.float32([2]), "copy": np.float32([2])}
    return make_model(
        [
            helper.make_node("Add", ["one", "two"], ["three"]),
            helper.make_node("Identity", ["x"], ["same"]),
            helper.make_node("Add", ["same", "three"], ["left"]),
            helper.make_node("Add", ["x", "three"], ["right"]),
            helper.make_node("Exp", ["right"], ["dead"]),
            helper.make_node("Mul", ["left", "two"], ["p"]),
            helper.make_node("Mul", ["right", "copy"], ["q"]),
            helper.make_node("Add", ["p", "q"], ["r"]),
            helper.make_node("Div", ["r", "two"], ["y"]),
        ],
        weights=constants,
    )


def test_folds_dead_and_doubled_nodes(make_model: Any, store: Callable[..., StoredMaster]) -> None:
    model = untidy(make_model)
    stored = store(model)
    assert op_counts(stored) == Counter({"Add": 2, "Mul": 1, "Div": 1})
    x = np.random.default_rng(1).standard_normal((5, 4)).astype(np.float32)
    np.testing.assert_allclose(
        outputs_of(str(stored.files["model.onnx"]), x=x)[0],
        outputs_of(model.SerializeToString(), x=x)[0],
        rtol=1e-6,
    )


@pytest.mark.parametrize(("op", "is_taken"), [("Neg", True), ("Acosh", False)])
def test_functions_of_another_opset_are_taken_where_their_ops_are_the_same(
    make_model: Any, store: Callable[..., StoredMaster], op: str, is_taken: bool
) -> None:
    """As skl2onnx's KNNImputer, whose functions are of one opset less; Acosh is another in 22."""
    body = [helper.make_node(op, ["a"], ["r"])]
    function = helper.make_function("own", "F", ["a"], ["r"], body, [helper.make_opsetid("", 21)])
    node = helper.make_node("F", ["x"], ["y"], domain="own")
    model = make_model([node], functions=[function], domains=("own",))
    model.opset_import[0].version = 22
    if is_taken:
        assert op_counts(store(model)) == Counter({op: 1})
    else:
        with pytest.raises(InvalidModelError, match="FunctionOp imports version 21 whereas"):
            store(model)


def test_local_functions_are_inlined(make_model: Any, store: Callable[..., StoredMaster]) -> None:
    imports = [helper.make_opsetid("", 20)]
    body = [helper.make_node("Tanh", ["a"], ["t"]), helper.make_node("Neg", ["t"], ["r"])]
    function = helper.make_function("own", "NegTanh", ["a"], ["r"], body, imports)
    model = make_model(
        [helper.make_node("NegTanh", ["x"], ["y"], domain="own")],
        functions=[function],
        domains=("own",),
    )
    stored = store(model)
    assert op_counts(stored) == Counter({"Tanh": 1, "Neg": 1})
    saved = onnx.load(str(stored.files["model.onnx"]))
    assert not saved.functions
    assert [entry.domain for entry in saved.opset_import] == [""]
    x = np.float32([[1, 2, 3, 4]])
    np.testing.assert_allclose(
        outputs_of(str(stored.files["model.onnx"]), x=x)[0], -np.tanh(x), rtol=1e-6
    )


@pytest.mark.parametrize("is_true", [True, False])
def test_constant_conditions_leave_no_branch(
    make_model: Any, store: Callable[..., StoredMaster], is_true: bool
) -> None:
    value = helper.make_tensor_value_info("z", TensorProto.FLOAT, None)
    graphs = [
        helper.make_graph([helper.make_node(op, ["x"], ["z"])], op, [], [value])
        for op in ("Relu", "Neg")
    ]
    node = helper.make_node("If", ["c"], ["y"], then_branch=graphs[0], else_branch=graphs[1])
    stored = store(make_model([node], weights={"c": np.array(is_true)}))
    assert op_counts(stored) == Counter({"Relu" if is_true else "Neg": 1})


def test_traces_of_the_exporting_machine_are_gone(
    linear: onnx.ModelProto, store: Callable[..., StoredMaster]
) -> None:
    linear.producer_name = "secret-path"
    linear.graph.doc_string = "secret-path"
    linear.metadata_props.add(key="k", value="secret-path")
    linear.graph.node[0].metadata_props.add(key="k", value="secret-path")
    linear.graph.node[0].doc_string = "secret-path"
    for value in (linear.graph.input[0], linear.graph.output[0]):
        value.doc_string = "secret-path"
        value.metadata_props.add(key="k", value="secret-path")
    assert b"secret-path" in linear.SerializeToString()
    assert b"secret-path" not in store(linear).files["model.onnx"].read_bytes()


def test_nameless_dynamic_dims_get_names(
    make_model: Any, store: Callable[..., StoredMaster]
) -> None:
    shapes = ([None, -1, 4], ["N", None, 4])
    infos = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in zip("xy", shapes, strict=True)
    ]
    stored = store(
        make_model([helper.make_node("Relu", ["x"], ["y"])], inputs=infos[:1], outputs=infos[1:])
    )
    assert stored.inputs[0].shape == ("batch", "sequence", 4)
    saved = onnx.load(str(stored.files["model.onnx"]))
    dims = saved.graph.input[0].type.tensor_type.shape.dim
    assert [dim.dim_param for dim in dims] == ["batch", "sequence", ""]
    assert outputs_of(str(stored.files["model.onnx"]), x=np.ones((2, 3, 4), np.float32))


def test_old_and_new_ir_versions_become_readable(
    make_model: Any, store: Callable[..., StoredMaster]
) -> None:
    new = make_model([helper.make_node("Relu", ["x"], ["y"])], ir_version=14)
    assert onnx.load(str(store(new, "new").files["model.onnx"])).ir_version == 13
    # Before IR 4 every weight had to be an input as well.
    weight = helper.make_tensor_value_info("w", TensorProto.FLOAT, [4])
    old = make_model(
        [helper.make_node("Add", ["x", "w"], ["y"])],
        inputs=[helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 4]), weight],
        weights={"w": np.ones(4, np.float32)},
        ir_version=3,
        opset=8,
    )
    stored = store(old, "old")
    assert [spec.name for spec in stored.inputs] == ["x"]
    assert onnx.load(str(stored.files["model.onnx"])).ir_version == 10


def test_narrow_weights_keep_their_bytes(
    make_model: Any, store: Callable[..., StoredMaster]
) -> None:
    import ml_dtypes

    bits = np.arange(4096, dtype=np.uint16)
    weight = helper.make_tensor("w", TensorProto.BFLOAT16, [1024, 4], bits.tobytes(), raw=True)
    model = make_model(
        [
            helper.make_node("Cast", ["w"], ["f"], to=TensorProto.FLOAT),
            helper.make_node("Gather", ["f", "x"], ["y"]),
        ],
        inputs=[helper.make_tensor_value_info("x", TensorProto.INT64, ["N"])],
    )
    model.graph.initializer.append(weight)
    saved = onnx.load(str(store(model).files["model.onnx"]))
    if saved.graph.initializer[0].data_type == TensorProto.BFLOAT16:
        assert saved.graph.initializer[0].raw_data == bits.tobytes()
    rows = outputs_of(saved.SerializeToString(), x=np.int64([3]))[0]
    expected = bits.view(ml_dtypes.bfloat16).reshape(1024, 4)[3].astype(np.float32)
    np.testing.assert_array_equal(rows[0], expected)


@pytest.mark.parametrize(
    "body",
    [
        "y = Softmax (x)  z = Softmax (x)",
        "y = Softmax (x)  z = Identity (y)",
        "s = Softmax (x)  z = Identity (s)  y = Identity (s)",
        "y = Identity (x)  z = Identity (x)",
    ],
)
def test_outputs_of_one_value_keep_their_names(body: str, save: Save, tmp_path: Path) -> None:
    text = f"(float[?, 3] x) => (float[?, 3] y, float[?, 3] z) {{ {body} }}"
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 20]> g {text}')
    stored = store_onnx(save(model), tmp_path / "target")
    shapes = [(spec.name, spec.shape) for spec in stored.outputs]
    assert shapes == [("y", ("batch", 3)), ("z", ("batch", 3))]
    again = store_onnx(stored.files["model.onnx"], tmp_path / "again")
    assert again.digest == stored.digest
