"""Ops with loops, data-dependent sizes and windows: one exported graph for every shape."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch.export import Dim

from compiler_worker.onnx_to_fx import graph_module_from_onnx
from tests.unit.compiler_worker.onnx_to_fx.graphs import model

Array = np.ndarray
Feeds = Callable[[np.random.Generator, int, int], Sequence[Array]]


@dataclass(frozen=True)
class Graph:
    """A graph in ONNX's text form, inputs for sizes (n, t), and constants by name."""

    text: str
    feeds: Feeds
    constants: dict[str, Array] = field(default_factory=dict)
    opset: int = 20


def _normal(rng: np.random.Generator, *shape: int) -> Array:
    return rng.standard_normal(shape).astype(np.float32)


def _weights(gates: int, directions: int, *, peepholes: bool = False) -> dict[str, Array]:
    """Weights of a recurrent layer of 3 inputs and 4 hidden elements."""
    rng = np.random.default_rng(7)
    made = {
        "w": _normal(rng, directions, gates * 4, 3),
        "r": _normal(rng, directions, gates * 4, 4),
        "b": _normal(rng, directions, gates * 8),
    }
    return made | ({"p": _normal(rng, directions, 12)} if peepholes else {})


def _steps(rng: np.random.Generator, n: int, t: int) -> Sequence[Array]:
    return [_normal(rng, t, n, 3)]


def _steps_and_lengths(rng: np.random.Generator, n: int, t: int) -> Sequence[Array]:
    return [_normal(rng, t, n, 3), rng.integers(1, t + 1, n).astype(np.int32)]


def _image(rng: np.random.Generator, n: int, t: int) -> Sequence[Array]:
    return [_normal(rng, n, 4, t, t + 1)]


def _boxes(rng: np.random.Generator, n: int, t: int) -> Sequence[Array]:
    # Few different scores, so that some are equal.
    scores = rng.integers(0, 9, (n, 3, t)).astype(np.float32) / 9
    return [rng.random((n, t, 4), dtype=np.float32), scores]


def _regions(rng: np.random.Generator, n: int, t: int) -> Sequence[Array]:
    corners = np.sort(rng.random((t, 2, 2)) * 30 - 2, axis=1).astype(np.float32)
    return [*_image(rng, n, t), corners.reshape(t, 4), rng.integers(0, n, t)]


def _bent(rng: np.random.Generator, n: int, t: int) -> Sequence[Array]:
    """An image, offsets in two groups and masks for a 3 x 2 window, stride 2, padding 1 and 0."""
    size = ((t + 2 - 3) // 2 + 1, (t + 1 - 3) // 2 + 1)
    return [
        *_image(rng, n, t),
        _normal(rng, n, 2 * 6 * 2, *size),
        rng.random((n, 2 * 6, *size), dtype=np.float32),
    ]


def _tokens(rng: np.random.Generator, n: int, t: int) -> Sequence[Array]:
    return [rng.integers(0, 4, (n, t))]


def _classes(rng: np.random.Generator, n: int, t: int) -> Sequence[Array]:
    return [_normal(rng, n, 5, t), rng.integers(0, 5, (n, t))]


IMAGE = "float[N, 4, H, W] x"
GRAPHS = {
    "lstm": Graph(
        """g (float[T, N, 3] x) => (float y, float h, float c)
        { y, h, c = LSTM <hidden_size = 4> (x, w, r, b) }""",
        _steps,
        _weights(4, 1),
    ),
    "lstm with peepholes and lengths": Graph(
        """g (float[T, N, 3] x, int32[N] s) => (float y, float h, float c)
        { y, h, c = LSTM <hidden_size = 4, direction = "bidirectional">
            (x, w, r, b, s, , , p) }""",
        _steps_and_lengths,
        _weights(4, 2, peepholes=True),
    ),
    "lstm of coupled gates": Graph(
        """g (float[T, N, 3] x) => (float y, float h, float c)
        { y, h, c = LSTM <hidden_size = 4, input_forget = 1, direction = "reverse",
            activations = ["Sigmoid", "Relu", "Softsign"]> (x, w, r, b) }""",
        _steps,
        _weights(4, 1),
    ),
    "gru that resets early": Graph(
        """g (float[T, N, 3] x, int32[N] s) => (float y, float h)
        { y, h = GRU <hidden_size = 4, direction = "bidirectional"> (x, w, r, b, s) }""",
        _steps_and_lengths,
        _weights(3, 2),
    ),
    "gru that resets late": Graph(
        """g (float[T, N, 3] x, int32[N] s) => (float y, float h)
        { y, h = GRU <hidden_size = 4, linear_before_reset = 1, direction = "reverse">
            (x, w, r, b, s) }""",
        _steps_and_lengths,
        _weights(3, 1),
    ),
    "rnn of two activations": Graph(
        """g (float[T, N, 3] x) => (float y, float h)
        { y, h = RNN <hidden_size = 4, clip = 0.6, direction = "bidirectional",
            activations = ["Relu", "Tanh"]> (x, w, r, b) }""",
        _steps,
        _weights(1, 2),
    ),
    "suppression": Graph(
        """g (float[N, T, 4] x, float[N, 3, T] s) => (int64 y)
        { y = NonMaxSuppression (x, s, limit, iou, score) }""",
        _boxes,
        {"limit": np.array([3]), "iou": np.float32([0.3]), "score": np.float32([0.2])},
    ),
    "suppression of centred boxes without limits": Graph(
        """g (float[N, T, 4] x, float[N, 3, T] s) => (int64 y)
        { y = NonMaxSuppression <center_point_box = 1> (x, s, limit, iou) }""",
        _boxes,
        {"limit": np.array([2**40]), "iou": np.float32([0.4])},
    ),
    "adaptive means of regions": Graph(
        f"""g ({IMAGE}, float[R, 4] r, int64[R] i) => (float y)
        {{ y = RoiAlign <output_height = 2, output_width = 3, spatial_scale = 0.5> (x, r, i) }}""",
        _regions,
    ),
    "adaptive maxima of regions": Graph(
        f"""g ({IMAGE}, float[R, 4] r, int64[R] i) => (float y)
        {{ y = RoiAlign <output_height = 2, output_width = 2, mode = "max",
            coordinate_transformation_mode = "output_half_pixel"> (x, r, i) }}""",
        _regions,
    ),
    "bent windows": Graph(
        f"""g ({IMAGE}, float[N, O, P, Q] o, float[N, M, P, Q] m) => (float y)
        {{ y = DeformConv <group = 2, offset_group = 2, strides = [2, 2], dilations = [1, 2],
            pads = [1, 0, 1, 0], kernel_shape = [3, 2]> (x, k, o, b, m) }}""",
        _bent,
        {
            "k": _normal(np.random.default_rng(3), 6, 2, 3, 2),
            "b": _normal(np.random.default_rng(4), 6),
        },
        opset=19,
    ),
    "maximum pool rounded up": Graph(
        f"""g ({IMAGE}) => (float y) {{ y = MaxPool <kernel_shape = [3, 2], strides = [2, 3],
            dilations = [1, 2], pads = [1, 0, 0, 1], ceil_mode = 1> (x) }}""",
        _image,
    ),
    "places of maxima by column": Graph(
        f"""g ({IMAGE}) => (float y, int64 i) {{ y, i = MaxPool <kernel_shape = [3, 2],
            strides = [2, 2], pads = [1, 0, 1, 0], storage_order = 1> (x) }}""",
        _image,
    ),
    "mean pool rounded up": Graph(
        f"""g ({IMAGE}) => (float y) {{ y = AveragePool <kernel_shape = [3, 2], strides = [2, 3],
            dilations = [1, 2], pads = [1, 0, 0, 1], ceil_mode = 1,
            count_include_pad = 1> (x) }}""",
        _image,
    ),
    "mean of maps by a window above their size": Graph(
        """g (float[N, 4, 7, 5] x) => (float y) { y = AveragePool <kernel_shape = [90, 6],
            strides = [90, 2], ceil_mode = 1, count_include_pad = 1> (x) }""",
        lambda rng, n, t: [_normal(rng, n, 4, 7, 5)],
    ),
    "power pool rounded up": Graph(
        f"""g ({IMAGE}) => (float y) {{ y = LpPool <kernel_shape = [3, 2], strides = [2, 3],
            pads = [1, 0, 0, 1], ceil_mode = 1, p = 3> (x) }}""",
        _image,
    ),
    "filtered resize": Graph(
        f"""g ({IMAGE}) => (float y)
        {{ y = Resize <mode = "cubic", antialias = 1, exclude_outside = 1> (x, , scales) }}""",
        _image,
        {"scales": np.float32([1, 1, 0.6, 0.5])},
    ),
    "crop and resize": Graph(
        f"""g ({IMAGE}) => (float y)
        {{ s = Shape <end = 2> (x)  n = Concat <axis = 0> (s, size)
          y = Resize <mode = "linear", extrapolation_value = 9.0,
            coordinate_transformation_mode = "tf_crop_and_resize"> (x, roi, , n) }}""",
        _image,
        {"roi": np.float32([0, 0, 0.1, 0.3, 1, 1, 0.8, 1.2]), "size": np.array([5, 11])},
    ),
    "spectrum of frames": Graph(
        "g (float[N, T, 1] x) => (float y) { y = STFT (x, step, window, length) }",
        lambda rng, n, t: [_normal(rng, n, 2 * t + 8, 1)],
        {
            "step": np.int64(3),
            "length": np.int64(8),
            "window": np.hanning(8).astype(np.float32),
        },
    ),
    "spectrum there and back": Graph(
        """g (float[N, T, 1] x) => (float y)
        { s = DFT <onesided = 1> (x, , axis)  d = DFT (x, , axis)  e = DFT <inverse = 1> (d, , axis)
          f = Shape (s)  g = Shape (e)  h = Add (f, g)  k = Cast <to = 1> (h)
          r = ReduceSum <keepdims = 0> (k)  y = Add (e, r) }""",
        lambda rng, n, t: [_normal(rng, n, t, 1)],
        {"axis": np.int64(1)},
    ),
    "unique rows": Graph(
        """g (int64[N, T] x) => (int64 y, int64 i, int64 v, int64 c)
        { y, i, v, c = Unique <axis = 1, sorted = 0> (x) }""",
        lambda rng, n, t: [rng.integers(0, 2, (min(n, 2), 4 * t))],
    ),
    "places of ones": Graph(
        "g (int64[N, T] x) => (int64 y) { y = NonZero (x) }",
        _tokens,
    ),
    "counts of n-grams": Graph(
        """g (int64[N, T] x) => (float y) { y = TfIdfVectorizer <mode = "IDF", min_gram_length = 1,
            max_gram_length = 2, max_skip_count = 2,
            ngram_counts = [0, 2], weights = [0.5, 2.0, 3.0],
            ngram_indexes = [0, 1, 2], pool_int64s = [1, 3, 2, 1]> (x) }""",
        _tokens,
    ),
    "loss with a class that does not count": Graph(
        """g (float[N, 5, T] x, int64[N, T] t) => (float y, float p)
        { p = LogSoftmax <axis = 1> (x)
          y = NegativeLogLikelihoodLoss <ignore_index = 2> (p, t, w) }""",
        _classes,
        {"w": np.float32([1, 2, 3, 4, 5])},
    ),
    "maxima back in place": Graph(
        f"""g ({IMAGE}) => (float y)
        {{ m, i = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (x)
          y = MaxUnpool <kernel_shape = [2, 2], strides = [2, 2]> (m, i) }}""",
        lambda rng, n, t: [_normal(rng, n, 4, 2 * t, 2 * t + 2)],
    ),
    "centre": Graph(
        f"""g ({IMAGE}) => (float y)
        {{ s = Shape <start = 2, end = 3> (x)  d = Mul (s, two)  t = Concat <axis = 0> (six, d)
          y = CenterCropPad <axes = [2, 3]> (x, t) }}""",
        _image,
        {"two": np.array([2]), "six": np.array([6])},
    ),
    "windows added up": Graph(
        """g (float[N, 12, L] x, float[K] z) => (float y)
        { k = Shape (z)  s = Concat <axis = 0> (k, five)
          y = Col2Im <dilations = [1, 2], pads = [1, 0, 0, 1], strides = [2, 1]>
            (x, s, kernel) }""",
        lambda rng, n, t: [_normal(rng, n, 12, ((t - 1) // 2 + 1) * 2), _normal(rng, t)],
        {"five": np.array([5]), "kernel": np.array([2, 3])},
    ),
    "affine grid": Graph(
        f"""g ({IMAGE}, float[N, 2, 3] m) => (float y)
        {{ s = Shape (x)  g = AffineGrid (m, s)  y = GridSample (x, g) }}""",
        lambda rng, n, t: [*_image(rng, n, t), _normal(rng, n, 2, 3)],
    ),
    "one row more than there is": Graph(
        """g (float[N, 4, 3, 3] x) => (float y)
        { y = ConvTranspose <output_shape = [10, 8], strides = [3, 2]> (x, k, b) }""",
        lambda rng, n, t: [_normal(rng, n, 4, 3, 3)],
        {
            "k": _normal(np.random.default_rng(3), 4, 2, 3, 3),
            "b": _normal(np.random.default_rng(4), 2),
        },
    ),
}
SIZES = ((3, 9), (2, 6), (4, 13))


@pytest.mark.parametrize("graph", GRAPHS.values(), ids=GRAPHS.keys())
def test_one_graph_serves_every_shape(graph: Graph) -> None:
    built = model(graph.text, opset=graph.opset, **graph.constants)
    session = _session(built)
    names = [entry.name for entry in session.get_inputs()]
    module = graph_module_from_onnx(built)
    program: torch.nn.Module | None = None
    for n, t in SIZES:
        feeds = graph.feeds(np.random.default_rng(n), n, t)
        wanted = session.run(None, dict(zip(names, feeds, strict=True)))
        tensors = tuple(map(torch.from_numpy, feeds))
        program = program or _exported(module, tensors)
        for runner in (module, program):
            for got, want in zip(runner(*tensors), wanted, strict=True):
                np.testing.assert_allclose(got.numpy(), want, rtol=1e-4, atol=1e-5)


def _session(built: onnx.ModelProto) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    # It warns of outputs without declared shapes.
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(built.SerializeToString(), options)


def _exported(module: torch.fx.GraphModule, inputs: tuple[torch.Tensor, ...]) -> torch.nn.Module:
    dims = tuple(dict.fromkeys(range(x.ndim), Dim.AUTO) for x in inputs)
    with warnings.catch_warnings():
        # torch's own deprecations inside export are not ours to mend.
        warnings.simplefilter("ignore")
        program = torch.export.export(module, inputs, dynamic_shapes=dims, strict=False)
        # As every engine and fallback runs it: sizes are checked by the ranges of a request.
        return program.module(check_guards=False)
