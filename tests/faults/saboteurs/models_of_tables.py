"""Models of rows: numbers, ids, strings, trees, and one that comes quantised."""

import numpy as np
import onnx
from onnx import TensorProto, helper

from services.contracts.hardware.kinds import Precision
from services.contracts.model.recipe import InputRecipe
from tests.conformance.strings import WORDS, colours
from tests.faults.saboteurs.specimen import ROWS, Specimen, Weights

_FP32 = (Precision.FP32,)
_CLASSES = 1000


def regression(seed: int) -> onnx.ModelProto:
    """1000 give or take 1, by way of squares that leave fp16's range where inputs are large."""
    weights = Weights(seed)
    weights.normal("wu", 16, 32)
    weights.normal("bu", 32, scale=0.3)
    weights.normal("wd", 32, 1, scale=3e-5)
    graph = """g (float[batch, 16] x) => (float[batch, 1] y) {
    m = MatMul (x, wu) u = Add (m, bu) large = Mul (u, fifty) squares = Mul (large, large)
    back = MatMul (squares, wd) y = Add (back, mean) }"""
    return weights.model(graph, fifty=50.0, mean=1000.0)


def recommender(seed: int) -> onnx.ModelProto:
    """How probable a click is: fields of a row, and a masked history of items."""
    weights = Weights(seed)
    for name, rows in (("users", 200), ("items", 500), ("places", 12)):
        weights.normal(name, rows, 16, scale=1.0)
    weights.normal("w1", 48, 32)
    weights.normal("b1", 32, scale=0.3)
    weights.normal("w2", 32, 1, scale=0.4)
    graph = """g (int64[batch] user, int64[batch] place, int64[batch, seq] history,
    int64[batch, seq] mask) => (float[batch] click) {
    of_user = Gather (users, user) of_place = Gather (places, place) seen = Gather (items, history)
    mask_f = Cast <to = 1> (mask) mask_c = Unsqueeze (mask_f, axis2)
    is_seen = Cast <to = 9> (mask_c) kept = Where (is_seen, seen, none)
    total = ReduceSum <keepdims = 0> (kept, axis1)
    num = ReduceSum <keepdims = 0> (mask_c, axis1) mean = Div (total, num)
    row = Concat <axis = 1> (of_user, of_place, mean) m = MatMul (row, w1) a = Add (m, b1)
    act = Relu (a) logit = MatMul (act, w2) p = Sigmoid (logit) click = Squeeze (p, axis1) }"""
    return weights.model(graph, axis1=[1], axis2=[2], none=0.0)


def top_ids(seed: int) -> onnx.ModelProto:
    """The five best of many classes, and the best one."""
    weights = Weights(seed)
    weights.normal("w1", 24, 32)
    weights.normal("b1", 32, scale=0.3)
    weights.normal("w2", 32, _CLASSES)
    graph = """g (float[batch, 24] x) => (int64[batch, 5] ids, int64[batch] best) {
    m = MatMul (x, w1) a = Add (m, b1) act = Relu (a) scores = MatMul (act, w2)
    values, ids = TopK <axis = -1> (scores, five)
    best = ArgMax <axis = 1, keepdims = 0> (scores) }"""
    return weights.model(graph, five=[5])


def quantised(seed: int) -> onnx.ModelProto:
    """A master in eight bits: what its owner trained with rounding in it."""
    rng = np.random.default_rng(seed)
    weights = Weights(seed)
    weights.normal("b1", 32, scale=0.3)
    weights.normal("b2", 6, scale=0.3)
    graph = """g (float[batch, 16] x) => (float[batch, 6] y) {
    xq = QuantizeLinear (x, sx, zx) xd = DequantizeLinear (xq, sx, zx)
    w1 = DequantizeLinear <axis = 1> (w1q, sw1, zw1) m1 = MatMul (xd, w1) a1 = Add (m1, b1)
    r1 = Relu (a1) rq = QuantizeLinear (r1, sr, zr) rd = DequantizeLinear (rq, sr, zr)
    w2 = DequantizeLinear <axis = 1> (w2q, sw2, zw2) m2 = MatMul (rd, w2) y = Add (m2, b2) }"""
    return weights.model(
        graph,
        sx=0.04,
        zx=np.uint8(120),
        sr=0.03,
        zr=np.uint8(5),
        w1q=rng.integers(-127, 128, (16, 32)).astype(np.int8),
        sw1=rng.uniform(0.002, 0.005, 32),
        zw1=np.zeros(32, np.int8),
        w2q=rng.integers(-127, 128, (32, 6)).astype(np.int8),
        sw2=rng.uniform(0.002, 0.005, 6),
        zw2=np.zeros(6, np.int8),
    )


def trees(seed: int) -> onnx.ModelProto:
    """Twelve trees of depth three over six features."""
    rng = np.random.default_rng(seed)
    num_trees, num_nodes, first_leaf = 12, 15, 7
    all_nodes = range(num_nodes)
    is_leaf = [node >= first_leaf for node in all_nodes]
    count = num_trees * (num_nodes - first_leaf)
    node = helper.make_node(
        "TreeEnsembleRegressor",
        ["x"],
        ["y"],
        name="trees",
        domain="ai.onnx.ml",
        n_targets=2,
        nodes_treeids=[tree for tree in range(num_trees) for _ in all_nodes],
        nodes_nodeids=list(all_nodes) * num_trees,
        nodes_featureids=[int(f) for f in rng.integers(0, 6, num_trees * num_nodes)],
        nodes_modes=["LEAF" if leaf else "BRANCH_LEQ" for leaf in is_leaf] * num_trees,
        nodes_values=rng.standard_normal(num_trees * num_nodes).astype(np.float32).tolist(),
        nodes_truenodeids=[0 if is_leaf[n] else 2 * n + 1 for n in all_nodes] * num_trees,
        nodes_falsenodeids=[0 if is_leaf[n] else 2 * n + 2 for n in all_nodes] * num_trees,
        target_treeids=[t for t in range(num_trees) for n in all_nodes if is_leaf[n]],
        target_nodeids=[n for _ in range(num_trees) for n in all_nodes if is_leaf[n]],
        target_ids=[int(i) for i in rng.integers(0, 2, count)],
        target_weights=rng.standard_normal(count).astype(np.float32).tolist(),
    )
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 6])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 2])
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("ai.onnx.ml", 3)]
    graph = helper.make_graph([node], "trees", [x], [y])
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def strings(seed: int) -> onnx.ModelProto:
    """Words in, numbers and words out; it has no weights to draw."""
    return colours()


_HISTORY = {"batch": (1, 4, 8), "seq": (1, 12, 40)}
TABLES = {
    # In fp16 its squares overflow, and 1000 is known to a half: no such engine is right.
    "regression": Specimen(
        make=regression, sizes=ROWS, precisions=(Precision.FP32, Precision.BF16, Precision.INT8)
    ),
    "recommender": Specimen(make=recommender, sizes=_HISTORY),
    "top ids": Specimen(make=top_ids, sizes=ROWS),
    "quantised": Specimen(make=quantised, sizes=ROWS, precisions=_FP32),
    "trees": Specimen(make=trees, sizes=ROWS, precisions=_FP32),
    "strings": Specimen(
        make=strings,
        sizes=ROWS,
        precisions=_FP32,
        inputs={"words": InputRecipe(values=(*WORDS, "other", "x"))},
    ),
}
