"""What a graph must be before anything is built from it."""

from collections import Counter
from pathlib import Path

import onnx
from onnx import defs

from compiler_worker.master import walk
from compiler_worker.master.reading import ReadModel
from compiler_worker.master.zipmaps import ZIPMAP
from services.contracts.errors import InvalidModelError, UnsupportedGraphError

# 7 is where broadcasting took today's form (6 is written in it); above 26, the newest that ONNX
# Runtime 1.31 runs, a master is served by what the importer makes of it, and witnessed by ONNX's
# own implementation.
MIN_OPSET = 7
NEWEST_RUN_OPSET = 26
MAX_OPSET = defs.onnx_opset_version()
# Trees and the like are no tensor programs, but some kinds of engines run them.
ML_DOMAIN = "ai.onnx.ml"
# ONNX's drafts: the importer and ONNX's own implementation run them, no other library does.
DOMAINS = ("", ML_DOMAIN, "ai.onnx.preview")
_NO_ZIPMAP = (
    "export it with zipmap=False (skl2onnx: convert_sklearn(..., options={'zipmap': False})), so "
    "that the probabilities are one tensor"
)
_NO_CUSTOM_OP = "export without custom ops or bring the op's body as a local function of the model"
# The text vectorisers of scikit-learn, by skl2onnx.
_NO_TOKENIZER = (
    "export the steps behind the vectoriser, whose numbers are the input then, and vectorise text "
    "in the client"
)


def admit(model: ReadModel) -> None:
    """Refuse a model that cannot become a master.

    Raises:
        UnsupportedGraphError: opset, domain, op, attribute or input kind that is not taken.
        InvalidModelError: the graph breaks ONNX's own rules.
    """
    proto = model.proto
    _check_opset(proto)
    _check_interface(proto, model.path)
    functions = {(walk.domain_of(f.domain), f.name) for f in proto.functions}
    for node, opsets in walk.nodes(proto):
        if (walk.domain_of(node.domain), node.op_type) not in functions:
            _check_node(node, opsets)
    for value in proto.graph.output:
        _check_output(value)
    if any(graph.sparse_initializer for graph in walk.graphs(proto)):
        raise UnsupportedGraphError("sparse initialisers found; store them as dense tensors")
    check_rules(model.path)
    if walk.opsets_of(proto.opset_import).get("", 0) > NEWEST_RUN_OPSET:
        _check_import(model.path)


def check_rules(path: Path) -> None:
    """Run ONNX's checker with strict shape inference; raises InvalidModelError."""
    try:
        # By path, because a model in memory hides from the checker where its weights are.
        onnx.checker.check_model(str(path), full_check=True)
    except (
        onnx.checker.ValidationError,
        onnx.shape_inference.InferenceError,
        RuntimeError,
        ValueError,
    ) as error:
        reason = " ".join(str(error).split())
        raise InvalidModelError(
            f"{path}: breaks ONNX's rules: {reason}; correct the exporter and export again"
        ) from error


def _check_import(path: Path) -> None:
    """Refuse what neither ONNX Runtime nor the importer takes: nothing could serve it."""
    from compiler_worker.onnx_to_fx import graph_module_from_onnx

    try:
        graph_module_from_onnx(onnx.load(path))
    except UnsupportedGraphError as error:
        raise UnsupportedGraphError(
            f"{error}; above opset {NEWEST_RUN_OPSET}, which is the newest of ONNX Runtime, only "
            "what the importer translates is accepted: convert the model to that opset with "
            "onnx.version_converter.convert_version"
        ) from error


def _check_opset(proto: onnx.ModelProto) -> None:
    opset = walk.opsets_of(proto.opset_import).get("", 0)
    if not MIN_OPSET <= opset <= MAX_OPSET:
        raise UnsupportedGraphError(
            f"opset {opset} of ai.onnx found, {MIN_OPSET - 1} to {MAX_OPSET} wanted; export again "
            "or convert with onnx.version_converter.convert_version"
        )


def _check_interface(proto: onnx.ModelProto, path: Path) -> None:
    initialisers = {tensor.name for tensor in proto.graph.initializer}
    inputs = [value for value in proto.graph.input if value.name not in initialisers]
    if not inputs or not proto.graph.output:
        raise InvalidModelError(
            f"{path}: {len(inputs)} inputs and {len(proto.graph.output)} outputs found, at "
            "least one of each wanted; export the model with both"
        )
    # torch's exporter calls an output that is an input of the module as that input.
    given = [each.name for each in proto.graph.input]
    made = Counter(given + [name for node in proto.graph.node for name in node.output if name])
    outputs = Counter(each.name for each in proto.graph.output)
    if shared := [name for name in made | outputs if max(made[name], outputs[name]) > 1]:
        raise InvalidModelError(
            f"{path}: several tensors are called {', '.join(map(repr, shared))}; name each output "
            "otherwise than the inputs and the other outputs: torch.onnx.export(..., "
            "output_names=[...])"
        )
    for value in inputs:
        kind = value.type.WhichOneof("value") or "untyped"
        if kind != "tensor_type":
            raise UnsupportedGraphError(
                f"input '{value.name}' is a {kind.removesuffix('_type')}, a tensor wanted; "
                "export the model with tensors as its inputs"
            )


def _check_output(value: onnx.ValueInfoProto) -> None:
    kind = (value.type.WhichOneof("value") or "untyped").removesuffix("_type")
    if kind == "sequence" and value.type.sequence_type.elem_type.HasField("map_type"):
        raise UnsupportedGraphError(
            f"output '{value.name}' is a sequence of maps, a tensor wanted; {_NO_ZIPMAP}"
        )
    if kind not in ("tensor", "untyped"):
        raise UnsupportedGraphError(
            f"output '{value.name}' is a {kind}, a tensor wanted; export the model with tensors "
            "as its outputs (ConcatFromSequence makes one tensor of a sequence)"
        )


def _check_node(node: onnx.NodeProto, opsets: dict[str, int]) -> None:
    domain = walk.domain_of(node.domain)
    opset = opsets.get(domain, 0)
    if domain not in DOMAINS:
        is_tokenizer = (domain, node.op_type) == ("com.microsoft", "Tokenizer")
        raise walk.refusal(
            node,
            opset,
            f"custom domain '{domain}' found, only ai.onnx, {', '.join(DOMAINS[1:])} are accepted; "
            f"{_NO_TOKENIZER if is_tokenizer else _NO_CUSTOM_OP}",
        )
    if domain and node.op_type == ZIPMAP:
        used = "it gives maps that are not an output alone, a tensor wanted"
        raise walk.refusal(node, opset, f"{used}; {_NO_ZIPMAP}")
    try:
        schema = defs.get_schema(node.op_type, opset, domain)
    except (defs.SchemaError, TypeError) as error:  # TypeError: an opset beyond 32 bits
        reason = "unknown op; correct its name or the opset that the model imports"
        raise walk.refusal(node, opset, reason) from error
    unknown = sorted({attribute.name for attribute in node.attribute} - set(schema.attributes))
    if unknown:
        known = ", ".join(sorted(schema.attributes)) or "none"
        raise walk.refusal(
            node,
            opset,
            f"unknown attribute '{unknown[0]}', known are: {known}; an attribute that is not "
            "understood could change the result, so correct the exporter",
        )
