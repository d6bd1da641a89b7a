"""ZipMap gives maps of class to probability: where they are outputs, its table is given instead.

skl2onnx and onnxmltools end each classifier so by default.
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper

from compiler_worker.master import walk
from services.contracts.kserve.tensor_spec import TensorSpec
from services.contracts.kserve.tensors import Array

ZIPMAP = "ZipMap"
_NUM_SHOWN = 10
# By output that was maps, what the columns of its table stand for.
Classes = Mapping[str, tuple[str, ...]]


def without_zipmaps(proto: onnx.ModelProto) -> dict[str, tuple[str, ...]]:
    """Make the table an output under the name of its maps, in place; return the classes by output.

    A ZipMap whose maps are used inside of the graph is left.
    """
    used = {name for node, _ in walk.nodes(proto) for name in node.input}
    outputs = {value.name: value for value in proto.graph.output if value.name not in used}
    found: dict[str, tuple[str, ...]] = {}
    for node in proto.graph.node:
        name = next(iter(node.output), "")
        classes = _classes(node) if node.op_type == ZIPMAP and name in outputs else ()
        if classes:
            table = helper.make_tensor_value_info(name, TensorProto.FLOAT, [None, len(classes)])
            outputs[name].CopyFrom(table)
            # Normalising removes it, with all that a name or two uses of one table ask for.
            node.CopyFrom(helper.make_node("Identity", node.input, node.output, node.name))
            found[name] = classes
    return found


def _classes(node: onnx.NodeProto) -> tuple[str, ...]:
    values = [helper.get_attribute_value(a) for a in node.attribute if "classlabels" in a.name]
    # Both kinds of labels, or none, is an error of the model.
    labels = values[0] if len(values) == 1 else ()
    return tuple(each.decode() if isinstance(each, bytes) else str(each) for each in labels)


def class_table(maps: Sequence[Mapping[int | str, float]], classes: Sequence[str]) -> Array:
    """The table float32 [maps, classes] that ONNX Runtime made its maps of."""
    rows = [{str(key): value for key, value in row.items()} for row in maps]
    table = [[row[each] for each in classes] for row in rows]
    return np.array(table, np.float32).reshape(len(rows), len(classes))


def common_labels(classes: Classes) -> tuple[str, ...]:
    """The classes, where all tables have the same."""
    found = set(classes.values())
    return found.pop() if len(found) == 1 else ()


def table_words(outputs: Sequence[TensorSpec], classes: Classes) -> Iterator[str]:
    """What was taken in place of maps, a line each."""
    for spec in outputs:
        if columns := classes.get(spec.name):
            shown = ", ".join(columns[:_NUM_SHOWN])
            more = f", ... ({len(columns)} of them)" if columns[_NUM_SHOWN:] else ""
            yield (
                f"{spec.name}: the table of probabilities [{', '.join(map(str, spec.shape))}] in "
                f"place of ZipMap's maps; its columns are the classes {shown}{more}"
            )
