"""What `smelt models add` prints of a version."""

from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from onnx import parser

from services.cli.models.added_words import added_words
from services.contracts.hardware.kinds import Precision
from services.contracts.registry.registry import Registry
from tests.conformance.trees import passengers, scaled
from tests.encoders import encoders
from tests.unit.services.cli.models.adding import add

HEAD = '<ir_version: 10, opset_import: ["" : 20, "ai.onnx.ml" : 3]>'


def mixed() -> onnx.ModelProto:
    """A product behind an op that ONNX Runtime alone has: it takes fp16 on GPUs, and no bf16."""
    return parser.parse_model(
        f"{HEAD} g (float[N, 1] x) => (float[N, 2] y) <float[1, 2] w = {{1, 2}}> "
        "{ s = ai.onnx.ml.Scaler <offset = [40.0], scale = [0.1]> (x) y = MatMul (s, w) }"
    )


def plain() -> onnx.ModelProto:
    return parser.parse_model(
        f"{HEAD} g (float[N, 1] x) => (float[N, 2] y) <float[1, 2] w = {{1, 2}}> "
        "{ y = MatMul (x, w) }"
    )


@pytest.mark.parametrize(
    ("model", "precisions"),
    [
        (passengers, (Precision.FP32,)),
        (scaled, (Precision.FP32,)),
        (encoders, (Precision.FP32,)),
        (mixed, (Precision.FP32, Precision.FP16)),
        (plain, (Precision.FP32, Precision.BF16, Precision.FP16)),
    ],
)
def test_bounds_are_of_precisions_that_its_engines_can_have(
    model: Callable[[], onnx.ModelProto],
    precisions: tuple[Precision, ...],
    registry: Registry,
    tmp_path: Path,
) -> None:
    onnx.save(model(), tmp_path / "m.onnx")
    version = add(registry, str(tmp_path / "m.onnx"))
    lines = [*added_words(registry, version, has_sizes=False)]
    found = tuple(each for each in Precision if any(x.startswith(f"{each}: at") for x in lines))
    assert sorted(found) == sorted(precisions)


def test_what_is_drawn_is_printed(registry: Registry, tmp_path: Path) -> None:
    onnx.save(passengers(), tmp_path / "m.onnx")
    version = add(registry, str(tmp_path / "m.onnx"))
    known = "any value, drawn from 54.7 to 70.3; any value; any value, drawn from 219 to 281"
    assert f"input x: {known}" in added_words(registry, version, has_sizes=False)
