"""The roofline: what is counted of a graph, and what devices reach."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper, parser

from compiler_worker.builders.graphs import fx_graph
from compiler_worker.profiling.eager_run import dispatched_ops
from services.cli.advise.roofline import BucketWork, DevicePeak, bucket_work, device_peak
from services.contracts.hardware.kinds import Precision
from tests.conformance.tiny_model import WIDTH, draw_inputs, save_master, tiny_model

HEADER = '<ir_version: 10, opset_import: ["" : 23, "com.other" : 1]>\n'
# Batch b is 2. What is counted: a multiplication and an addition for each term.
COUNTED = {
    "MatMul": ("float[b, 3, 4] x, float[4, 5] w", "MatMul (x, w)", 2 * 2 * 3 * 5 * 4),
    "Gemm": ("float[4, b] x, float[4, 5] w", "Gemm <transA = 1> (x, w)", 2 * 2 * 5 * 4),
    "Conv": (
        "float[b, 4, 8, 8] x, float[6, 2, 3, 3] w",
        "Conv <group = 2, pads = [1, 1, 1, 1]> (x, w)",
        2 * (2 * 6 * 8 * 8) * (2 * 3 * 3),
    ),
    "ConvTranspose": (
        "float[b, 4, 8, 8] x, float[4, 6, 2, 2] w",
        "ConvTranspose <strides = [2, 2]> (x, w)",
        2 * (2 * 4 * 8 * 8) * (6 * 2 * 2),
    ),
    "LSTM": (
        "float[7, b, 3] x, float[1, 20, 3] w, float[1, 20, 5] r",
        "LSTM <hidden_size = 5> (x, w, r)",
        2 * (7 * 2) * (20 * 3 + 20 * 5),
    ),
    "Attention": (
        "float[b, 4, 6, 8] q, float[b, 4, 9, 8] k, float[b, 4, 9, 8] v",
        "Attention (q, k, v)",
        2 * (2 * 4 * 6 * 8) * 9 * 2,
    ),
    "Einsum": (
        "float[b, 3, 4] x, float[4, 5] w",
        'Einsum <equation = "bij,jk->bik"> (x, w)',
        2 * 2 * 3 * 4 * 5,
    ),
}


def graph_of(inputs: str, call: str) -> onnx.ModelProto:
    return parser.parse_model(f"{HEADER}g ({inputs}) => (float y) {{ y = {call} }}")


@pytest.mark.parametrize("op", COUNTED)
def test_flops_are_counted_at_the_sizes_asked_for(op: str) -> None:
    inputs, call, flops = COUNTED[op]
    assert bucket_work(graph_of(inputs, call), {"b": 2}).flops_by_op == {op: flops}


def test_a_product_moves_its_inputs_and_its_output_once() -> None:
    work = bucket_work(graph_of(*COUNTED["MatMul"][:2]), {"b": 2})
    x, w, y = 2 * 3 * 4, 4 * 5, 2 * 3 * 5
    # The ends of the graph, and the product's own.
    assert work.num_bytes == 4 * 2 * (x + w + y)
    assert work.intensity == work.flops / work.num_bytes


def test_what_has_no_formula_or_no_shape_is_said() -> None:
    foreign = graph_of("float[b] x", "com.other.Secret (x)")
    assert bucket_work(foreign, {"b": 2}).not_counted == {"Secret": 1}
    unsized = graph_of(*COUNTED["Conv"][:2])
    assert bucket_work(unsized, {}).not_counted == {"Conv": 1}


def test_a_table_is_read_as_often_as_it_is_looked_up() -> None:
    model = graph_of("int64[b] ids", "Gather (table, ids)")
    table = np.zeros((1000, 8), np.float32)
    model.graph.initializer.append(numpy_helper.from_array(table, "table"))
    rows = 2 * 8 * 4
    assert bucket_work(model, {"b": 2}).num_bytes == 2 * 8 + 2 * rows + rows


def test_an_encoder_grows_with_rows_and_more_with_length() -> None:
    model = tiny_model()
    one, rows, longer = (
        bucket_work(model, {"batch": batch, "sequence": length}).flops
        for batch, length in ((1, 8), (2, 8), (1, 16))
    )
    assert rows == 2 * one < longer
    # Four projections and two of the block beside them; scores and values grow with the square.
    assert one == 2 * 8 * (3 * WIDTH**2 + 4 * WIDTH**2) + 2 * 2 * 8 * 8 * WIDTH


def test_a_profile_counts_the_same_flops(tmp_path: Path) -> None:
    """Advice counts a graph that torch may refuse, without weights; a profile what torch ran."""
    model = tiny_model()
    module = fx_graph(save_master(model, tmp_path), Precision.FP32)
    inputs = [torch.from_numpy(each) for each in draw_inputs(2, 8).values()]
    ran = sum(op.num_flops for op in dispatched_ops(module, inputs))
    assert ran == bucket_work(model, {"batch": 2, "sequence": 8}).flops


@pytest.mark.parametrize(
    ("name", "bytes_per_s", "source"),
    [
        ("NVIDIA H200", 4.8e12, "H200"),
        ("NVIDIA H100 80GB HBM3", 3.35e12, "H100"),
        ("NVIDIA H100 PCIe", 2e12, "H100 PCIe"),
        ("NVIDIA-H100-80GB-HBM3", 3.35e12, "H100"),
        ("NVIDIA Something New", 3.35e12, "H100"),
    ],
)
def test_a_card_is_found_by_the_drivers_name(name: str, bytes_per_s: float, source: str) -> None:
    peak = device_peak("cuda-sm90", name)
    assert peak is not None
    assert (peak.bytes_per_s, peak.source) == (bytes_per_s, f"published for {source}")
    assert peak.flops_per_s[Precision.FP16] > 10 * peak.flops_per_s[Precision.FP32]


def test_a_precision_without_instructions_and_an_unknown_generation_have_no_peak() -> None:
    volta = device_peak("cuda-sm70")
    assert volta is not None
    assert not {Precision.BF16, Precision.FP8} & volta.flops_per_s.keys()
    assert device_peak("cuda-sm990") is None


def test_only_this_hosts_processor_is_measured() -> None:
    assert device_peak("cpu-x86_64-v3", "Some Xeon") is None
    here = device_peak("cpu-x86_64-v2")
    assert here is not None
    assert here.flops_per_s[Precision.FP32] > 1e9
    assert here.bytes_per_s > 1e8


@pytest.mark.parametrize(
    ("flops", "num_bytes", "limit", "least_s"),
    [(1e12, 1e6, "products", (1.0, 0.25)), (1e6, 4e9, "memory", (4.0, 1.0))],
)
def test_the_slower_of_products_and_memory_is_the_limit(
    flops: float, num_bytes: float, limit: str, least_s: tuple[float, float]
) -> None:
    rates: Mapping[Precision, float] = {Precision.FP32: 1e12, Precision.INT8: 4e12}
    peak = DevicePeak(rates, 1e9, "a test")
    work = BucketWork({"MatMul": flops}, num_bytes, {})
    assert peak.limit(work) == limit
    found = peak.least_s(work, Precision.FP32), peak.least_s(work, Precision.INT8)
    assert found == pytest.approx(least_s)
    assert peak.least_s(work, Precision.FP16) is None
