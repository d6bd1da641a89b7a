"""What is refused before anything is built; each message names what and the fix."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from compiler_worker.builders.typed_graphs import interface_inputs
from compiler_worker.master.stored import store_onnx
from services.contracts.errors import InvalidModelError, UnsupportedGraphError

Save = Callable[..., Path]


def refusal(path: Path, kind: type[InvalidModelError] = InvalidModelError) -> str:
    """Store a file that must be refused; returns the message."""
    target = path.parent.parent / "target"
    with pytest.raises(kind) as caught:
        store_onnx(path, target)
    assert not target.exists(), "a refused model left files"
    return str(caught.value)


def node(op_type: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op_type, ["x"], ["y"], name="the_node", **attributes)


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        (node("Reluu"), "Reluu-20 at node 'the_node': unknown op"),
        (node("Relu", beta=1.0), "unknown attribute 'beta', known are: none"),
        (node("LeakyRelu", beta=1.0), "unknown attribute 'beta', known are: alpha"),
        (node("Gelu", domain="com.microsoft"), "custom domain 'com.microsoft' found"),
        (node("Tokenizer", domain="com.microsoft"), "export the steps behind the vectoriser"),
    ],
)
def test_ops(make_model: Any, save: Save, op: onnx.NodeProto, expected: str) -> None:
    assert expected in refusal(save(make_model([op])), UnsupportedGraphError)


def test_an_unknown_op_in_a_subgraph(make_model: Any, save: Save) -> None:
    value = helper.make_tensor_value_info("z", TensorProto.FLOAT, None)
    branches = [
        helper.make_graph([helper.make_node(op, ["x"], ["z"])], op, [], [value])
        for op in ("Relu", "Nope")
    ]
    branch = helper.make_node("If", ["c"], ["y"], then_branch=branches[0], else_branch=branches[1])
    model = make_model([branch], weights={"c": np.array(True)})
    assert "Nope-20" in refusal(save(model), UnsupportedGraphError)


@pytest.mark.parametrize("opset", [5, 29])
def test_opsets(make_model: Any, save: Save, opset: int) -> None:
    message = refusal(save(make_model([node("Tanh")], opset=opset)), UnsupportedGraphError)
    assert f"opset {opset} of ai.onnx found, 6 to 28 wanted" in message


@pytest.mark.parametrize("opset", [7, 26, 28])
def test_opsets_at_the_edge_are_taken(make_model: Any, save: Save, opset: int) -> None:
    path = save(make_model([node("Tanh")], opset=opset))
    assert store_onnx(path, path.parent.parent / "target").opset == opset


def test_above_onnxruntimes_opsets_the_importer_has_to_take_it(make_model: Any, save: Save) -> None:
    noise = [node("RandomUniformLike")]
    message = refusal(save(make_model(noise, opset=28)), UnsupportedGraphError)
    assert "RandomUniformLike" in message
    assert "above opset 26, which is the newest of ONNX Runtime" in message
    path = save(make_model(noise, opset=26), "older")
    store_onnx(path, path.parent.parent / "target")


def test_rules_of_onnx(make_model: Any, save: Save) -> None:
    no_cast_type = make_model([node("Cast")])
    assert "Required attribute 'to' is missing" in refusal(save(no_cast_type))
    wrong_rank = make_model([node("Relu")], outputs=[output_of_rank(3)])
    assert "breaks ONNX's rules" in refusal(save(wrong_rank, "rank"))


def output_of_rank(rank: int) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N"] * rank)


def test_interfaces(make_model: Any, save: Save) -> None:
    no_input = make_model([helper.make_node("Relu", ["w"], ["y"])], inputs=[])
    no_input.graph.initializer.append(helper.make_tensor("w", TensorProto.FLOAT, [1, 4], [0.0] * 4))
    assert "0 inputs and 1 outputs found" in refusal(save(no_input))
    no_output = make_model([], outputs=[])
    assert "1 inputs and 0 outputs found" in refusal(save(no_output, "out"))


def test_outputs_that_share_a_name(make_model: Any, save: Save) -> None:
    twice = make_model([node("Relu")], outputs=[output_of_rank(2), output_of_rank(2)])
    as_input = make_model([node("Relu"), helper.make_node("Identity", ["x"], ["x"])])
    for model, name in ((twice, "y"), (as_input, "x")):
        message = refusal(save(model, f"shared_{name}"))
        assert f"several tensors are called '{name}'; name each output otherwise" in message
        assert "output_names=[...]" in message


@pytest.mark.parametrize("kind", ["sequence", "optional"])
def test_inputs_that_are_no_tensors(make_model: Any, save: Save, kind: str) -> None:
    tensor = helper.make_tensor_type_proto(TensorProto.FLOAT, ["N", 4])
    wrap = {
        "sequence": helper.make_sequence_type_proto,
        "optional": helper.make_optional_type_proto,
    }[kind]
    model = make_model(
        [node("Relu")],
        inputs=[
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 4]),
            helper.make_value_info("s", wrap(tensor)),
        ],
    )
    assert f"input 's' is a {kind}, a tensor wanted" in refusal(save(model), UnsupportedGraphError)


def test_outputs_that_are_maps(make_model: Any, save: Save) -> None:
    fix = "export it with zipmap=False"
    table = helper.make_map_type_proto(TensorProto.INT64, helper.make_tensor_type_proto(1, None))
    maps = helper.make_value_info("y", helper.make_sequence_type_proto(table))
    zipmap = node("ZipMap", domain="ai.onnx.ml")
    model = make_model([zipmap], outputs=[maps], domains=("ai.onnx.ml",))
    message = refusal(save(model), UnsupportedGraphError)
    assert "ai.onnx.ml::ZipMap-1 at node 'the_node': it gives maps that are not an" in message
    assert fix in message
    through = make_model([node("Identity")], outputs=[maps])
    message = refusal(save(through, "through"), UnsupportedGraphError)
    assert "output 'y' is a sequence of maps, a tensor wanted" in message
    assert fix in message


def test_outputs_that_are_sequences(make_model: Any, save: Save) -> None:
    tensor = helper.make_tensor_type_proto(TensorProto.FLOAT, ["N", 4])
    listed = helper.make_value_info("y", helper.make_sequence_type_proto(tensor))
    model = make_model([node("SequenceConstruct")], outputs=[listed])
    message = refusal(save(model), UnsupportedGraphError)
    assert "output 'y' is a sequence, a tensor wanted" in message


@pytest.mark.parametrize("elem_type", ["INT4", "UINT4", "FLOAT8E4M3FN", "FLOAT8E5M2", "FLOAT4E2M1"])
def test_types_that_no_request_can_carry(make_model: Any, save: Save, elem_type: str) -> None:
    number = TensorProto.DataType.Value(elem_type)
    narrow, wide = (
        [helper.make_tensor_value_info(name, kind, ["N", 4])]
        for name, kind in (("x", number), ("y", TensorProto.FLOAT))
    )
    cast = node("Cast", to=TensorProto.FLOAT)
    path = save(make_model([cast], inputs=narrow, outputs=wide, opset=25, ir_version=12))
    message = refusal(path, UnsupportedGraphError)
    assert f"'x' is {elem_type}, a tensor of one of BOOL" in message
    assert "cast it inside the model" in message
    # The file of a master is read without being admitted again.
    with pytest.raises(UnsupportedGraphError, match=f"'x' is {elem_type}, a tensor of one of BOOL"):
        interface_inputs(path)


def test_complex_numbers(make_model: Any, save: Save) -> None:
    values = [helper.make_tensor_value_info(name, TensorProto.COMPLEX64, ["N", 4]) for name in "xy"]
    node = helper.make_node("Identity", ["x"], ["y"])
    model = make_model([node], inputs=values[:1], outputs=values[1:])
    said = refusal(save(model), UnsupportedGraphError)
    assert "'x' is COMPLEX64, " in said
    assert "BF16, BYTES wanted; cast it inside the model" in said


@pytest.mark.parametrize("keep", [0.0, 0.3, 0.9])
def test_truncated_files(linear: onnx.ModelProto, save: Save, keep: float) -> None:
    path = save(linear)
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * keep)])
    assert "truncated" in refusal(path)


def test_files_that_are_not_onnx(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    path = tmp_path / "model" / "m.onnx"
    assert "no such file" in refusal(path)
    path.write_bytes(b"PK\x03\x04 this is a zip file, not a model")
    assert "not an ONNX file" in refusal(path)


def test_over_two_gib_is_refused_by_its_size_alone(tmp_path: Path) -> None:
    path = tmp_path / "model" / "m.onnx"
    path.parent.mkdir()
    # A sparse file: if it were read, this machine's memory would show it.
    path.touch()
    os.truncate(path, 2**31 + 5)
    message = refusal(path)
    assert f"{2**31 + 5} bytes found" in message
    assert "save_as_external_data=True" in message


def external(model_path: Path, **changes: str) -> None:
    """Change the external data entries of the weight `w` in a file."""
    model = onnx.load(str(model_path), load_external_data=False)
    weight = next(t for t in model.graph.initializer if t.name == "w")
    entries = {entry.key: entry.value for entry in weight.external_data} | changes
    del weight.external_data[:]
    for key, value in entries.items():
        weight.external_data.add(key=key, value=value)
    model_path.write_bytes(model.SerializeToString())


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"location": "gone.data"}, "external data file 'gone.data' is missing"),
        ({"location": ""}, "a relative path inside the model's folder wanted"),
        ({"location": "../secret.data"}, "location '../secret.data' found"),
        ({"location": "sub/../../secret.data"}, "a relative path inside the model's folder"),
        ({"location": "link.data"}, "no link to elsewhere"),
        ({"length": "12"}, "external data length 12 found, 2048 wanted"),
        ({"offset": "-4"}, "external data offset '-4' found"),
        ({"offset": "1000000"}, "external data w.data is truncated"),
    ],
)
def test_external_data(
    linear: onnx.ModelProto, save: Save, changes: dict[str, str], expected: str
) -> None:
    path = save(linear, external=True)
    secret = path.parent.parent / "secret.data"
    secret.write_bytes(bytes(4096))
    (path.parent / "sub").mkdir()
    (path.parent / "link.data").symlink_to(secret)
    external(path, **changes)
    message = refusal(path)
    assert expected in message
    assert "tensor 'w'" in message


def test_external_data_at_an_absolute_path(linear: onnx.ModelProto, save: Save) -> None:
    path = save(linear, external=True)
    # It is the right file, but a model that names it so works on this machine only.
    external(path, location=str(path.parent / "w.data"))
    assert "a relative path inside the model's folder wanted" in refusal(path)


def test_external_data_that_was_cut(linear: onnx.ModelProto, save: Save) -> None:
    path = save(linear, external=True)
    os.truncate(path.parent / "w.data", 100)
    assert "is truncated: 100 bytes found" in refusal(path)
