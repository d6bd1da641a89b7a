"""Models of images and sound."""

import onnx

from tests.faults.saboteurs.specimen import ROWS, Specimen, Weights
from tests.integration.precision.small_nets import conv_net

_PADS = "kernel_shape = [3, 3], pads = [1, 1, 1, 1]"


def classifier(seed: int) -> onnx.ModelProto:
    """Two convolutions with a residual, and ten classes."""
    proto = conv_net()
    return _redrawn(proto, seed) if seed else proto


def _redrawn(proto: onnx.ModelProto, seed: int) -> onnx.ModelProto:
    """The same graph with weights from another seed."""
    weights = Weights(seed)
    for tensor in proto.graph.initializer:
        dims = tuple(tensor.dims)
        weights.normal(tensor.name, *dims, scale=0.3 if len(dims) == 1 else None)
    del proto.graph.initializer[:]
    copy = weights.model("g (float[1] x) => (float[1] y) { y = Identity (x) }")
    proto.graph.initializer.extend(copy.graph.initializer)
    return proto


def _backbone(weights: Weights) -> str:
    for name, out, of in (("c1", 16, 3), ("c2", 32, 16), ("c3", 32, 32)):
        weights.normal(f"{name}w", out, of, 3, 3)
        weights.normal(f"{name}b", out, scale=0.3)
    return f"""
    c1 = Conv <{_PADS}> (image, c1w, c1b) r1 = Relu (c1)
    c2 = Conv <{_PADS}, strides = [2, 2]> (r1, c2w, c2b) r2 = Relu (c2)
    c3 = Conv <{_PADS}> (r2, c3w, c3b) s3 = Add (c3, r2) r3 = Relu (s3)"""


def detector(seed: int) -> onnx.ModelProto:
    """Boxes of hundreds beside scores of a thousandth to one, as YOLO has them in one tensor."""
    weights = Weights(seed)
    graph = f"""g (float[batch, 3, 16, 16] image) => (float[batch, 7, 64] found) {{
    {_backbone(weights)} raw = Conv (r3, hw, hb) flat = Reshape (raw, shape)
    box_raw = Slice (flat, zero, four, axis) logits = Slice (flat, four, seven, axis)
    box_in = Sigmoid (box_raw) box = Mul (box_in, hundreds) lower = Sub (logits, rare)
    scores = Sigmoid (lower) found = Concat <axis = 1> (box, scores) }}"""
    weights.normal("hw", 7, 32, 1, 1)
    weights.normal("hb", 7, scale=0.3)
    return weights.model(
        graph, shape=[0, 7, 64], zero=[0], four=[4], seven=[7], axis=[1], hundreds=640.0, rare=4.0
    )


def segmentation(seed: int) -> onnx.ModelProto:
    """A class for each pixel, from features of half the size."""
    weights = Weights(seed)
    graph = f"""g (float[batch, 3, 16, 16] image) => (float[batch, 5, 16, 16] classes) {{
    {_backbone(weights)}
    up = Resize <mode = "linear", coordinate_transformation_mode = "half_pixel"> (r3, , scales)
    beside = Concat <axis = 1> (up, r1) classes = Conv <{_PADS}> (beside, hw, hb) }}"""
    weights.normal("hw", 5, 48, 3, 3)
    weights.normal("hb", 5, scale=0.3)
    return weights.model(graph, scales=[1.0, 1.0, 2.0, 2.0])


def audio(seed: int) -> onnx.ModelProto:
    """Classes of a sound of any length: learned bands, their power in logarithms, convolutions."""
    weights = Weights(seed)
    graph = """g (float[batch, samples] wave) => (float[batch, 6] logits) {
    channel = Unsqueeze (wave, axis1)
    bands = Conv <kernel_shape = [32], strides = [16], pads = [16, 16]> (channel, bw)
    power = Mul (bands, bands) more = Add (power, least) db = Log (more)
    c1 = Conv <kernel_shape = [3], pads = [1, 1]> (db, c1w, c1b) r1 = Relu (c1)
    c2 = Conv <kernel_shape = [3], pads = [1, 1]> (r1, c2w, c2b) r2 = Relu (c2)
    pooled = GlobalAveragePool (r2) flat = Flatten (pooled) m = MatMul (flat, hw)
    logits = Add (m, hb) }"""
    weights.normal("bw", 16, 1, 32)
    weights.normal("c1w", 32, 16, 3)
    weights.normal("c1b", 32, scale=0.3)
    weights.normal("c2w", 32, 32, 3)
    weights.normal("c2b", 32, scale=0.3)
    weights.normal("hw", 32, 6)
    weights.normal("hb", 6, scale=0.3)
    return weights.model(graph, axis1=[1], least=0.1)


SIGNALS = {
    "classifier": Specimen(make=classifier, sizes=ROWS),
    "detector": Specimen(make=detector, sizes=ROWS),
    "segmentation": Specimen(make=segmentation, sizes=ROWS),
    "audio": Specimen(make=audio, sizes={"batch": (1, 4, 8), "samples": (64, 320, 800)}),
}
