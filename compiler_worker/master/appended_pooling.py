"""Pooling as nodes of the master: compiled, proven and timed with all else.

So serving needs no code for it, and an answer is one vector for each text, not one for each token.
A sum over nothing is nothing: the count is at least 1, a length at least 1e-12. Kernels of fp16
lose neither, as sums and what divides by them are in float32 there (`precision.policy`).
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import onnx_ir as ir
import onnx_ir.passes.common as passes
from onnx import parser

from compiler_worker.master.opened import MODEL_FILE, OpenedMaster
from compiler_worker.master.stored import store_onnx
from services.contracts.errors import InvalidModelError
from services.contracts.model.pooling_choice import Pooling
from services.contracts.model.text_input import MASK

EMBEDDING: Final = "embedding"
# What sentence-transformers and optimum call the vectors of tokens.
_HIDDEN = ("last_hidden_state", "token_embeddings")
# Where reductions take their axes as an input.
_MIN_OPSET = 13
_POOLED: Final = {
    Pooling.MEAN: """
      ones = ReduceSum <keepdims = 1> (mask, axis1)
      count = Max (ones, least)
      share = Div (mask, count)
      weights = Unsqueeze (share, axis2)
      weighted = Mul (hidden, weights)
      pooled = ReduceSum <keepdims = 0> (weighted, axis1)
    """,
    Pooling.CLS: """
      first = Constant <value = int64 {0}> ()
      pooled = Gather <axis = 1> (hidden, first)
    """,
    Pooling.LAST: """
      last = ArgMax <axis = 1, keepdims = 1, select_last_index = 1> (mask)
      pooled = GatherND <batch_dims = 1> (hidden, last)
    """,
}
_OF_LENGTH_1 = """
      squares = Mul (pooled, pooled)
      total = ReduceSum <keepdims = 1> (squares, axis1)
      root = Sqrt (total)
      tiny = Constant <value = float {1e-12}> ()
      length = Max (root, tiny)
      unit = Div (pooled, length)
"""


def with_pooling(
    opened: OpenedMaster, pooling: Pooling, work_dir: Path, *, has_length_1: bool
) -> OpenedMaster:
    """The master with one output, `embedding`, float32 [B, D], in place of its own.

    Args:
        opened: has an output of token vectors, [B, T, D].
        pooling: how they become one.
        work_dir: an empty folder, for the files.
        has_length_1: divide it by its length.

    Raises:
        InvalidModelError: no output is of token vectors, no input is their mask, or the opset is
            too old.
    """
    hidden = _token_vectors(opened)
    needs_mask = pooling is not Pooling.CLS
    if needs_mask and MASK not in {spec.name for spec in opened.inputs}:
        raise InvalidModelError(
            f"pooling {pooling} needs an input {MASK}, the model has "
            f"{', '.join(spec.name for spec in opened.inputs)}; export the model with it"
        )
    if opened.opset < _MIN_OPSET:
        raise InvalidModelError(
            f"pooling needs opset {_MIN_OPSET} or later, the model has {opened.opset}; convert it "
            "with onnx.version_converter.convert_version"
        )
    model = ir.load(opened.files[MODEL_FILE])
    body = _POOLED[pooling] + (_OF_LENGTH_1 if has_length_1 else "")
    given = [v for v in model.graph.outputs if v.name == hidden]
    given += [v for v in model.graph.inputs if v.name == MASK and needs_mask]
    pooled = _append(model.graph, body, given)
    rows, _, width = next(spec.shape for spec in opened.outputs if spec.name == hidden)
    pooled.name = EMBEDDING
    pooled.shape = ir.Shape((rows, width))
    model.graph.outputs[:] = [pooled]
    # Exporters call inner values so too.
    passes.NameFixPass()(model)
    raw = work_dir / "raw"
    raw.mkdir(parents=True)
    ir.save(model, raw / MODEL_FILE, external_data="weights.bin")
    stored = store_onnx(raw / MODEL_FILE, work_dir / "pooled")
    return replace(opened, **vars(stored) | {"named_dims": opened.named_dims})


def _token_vectors(opened: OpenedMaster) -> str:
    found = [s.name for s in opened.outputs if len(s.shape) == 3 and s.datatype[:2] == "FP"]
    named = [name for name in _HIDDEN if name in found]
    if not found or (len(found) > 1 and not named):
        have = ", ".join(f"{spec.name} {list(spec.shape)}" for spec in opened.outputs)
        raise InvalidModelError(
            f"pooling needs one output of token vectors [B, T, D], or one called {_HIDDEN[0]}; the "
            f"model has {have}: where one is the embedding already, leave pooling out"
        )
    return named[0] if named else found[0]


def _append(graph: ir.Graph, body: str, given: Sequence[ir.Value]) -> ir.Value:
    """Put a body behind a graph's token vectors and mask; return its last value."""
    result = "unit" if body.endswith(_OF_LENGTH_1) else "pooled"
    text = f"""pooling (float[B, T, D] tokens, int64[B, T] given) => (float[B, D] {result}) {{
      axis1 = Constant <value = int64[1] {{1}}> ()
      axis2 = Constant <value = int64[1] {{2}}> ()
      least = Constant <value = float {{1}}> ()
      hidden = Cast <to = 1> (tokens)
      mask = Cast <to = 1> (given)
      {body}
    }}"""
    part = ir.from_proto(parser.parse_graph(text))
    for formal, actual in zip(part.inputs, given, strict=False):
        ir.convenience.replace_all_uses_with(formal, actual)
    last = part.outputs[0]
    # Of cls nothing reads the mask, and there may be none.
    nodes = [node for node in part if "mask" not in {v.name for v in node.outputs} or given[1:]]
    part.outputs.clear()
    part.remove(nodes)
    graph.extend(nodes)
    return last
