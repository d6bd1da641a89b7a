"""Encoders whose positions fall into buckets: right fp32 engines prove at the usual bound.

`Log(distance) / 2.7725887 * 8` is an integer at 16, 32 and 64. In float64 it is a little less,
so a reference that computes it there reads other rows of the table than any engine.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

import onnx
import onnx_ir as ir
import pytest
import torch

from compiler_worker.master.input_values.known_values import input_values
from compiler_worker.measures.default_tolerances import DEFAULT_TOLERANCES
from compiler_worker.proof.claim import Claim
from compiler_worker.proof.judge import judge
from compiler_worker.references.models import FxModel, Model, OrtModel
from compiler_worker.references.reference import open_reference
from services.contracts.hardware.kinds import Precision
from services.contracts.kserve.tensors import Array
from services.contracts.model.recipe import Bucket, DimRange, Recipe
from tests.faults.judged import record_of
from tests.integration.onnx_to_fx import zoo_text
from tests.integration.onnx_to_fx.test_zoo import compiled_by_inductor, quiet
from tests.integration.onnx_to_fx.zoo_entry import Entry

__all__ = ["quiet"]  # a fixture

BUCKET = Bucket(
    dims={"batch": DimRange(min=1, opt=2, max=3), "seq": DimRange(min=1, opt=33, max=64)}
)
FP32 = DEFAULT_TOLERANCES[Precision.FP32]
Open = Callable[[Path, Entry], Model]


class Compiled:
    """The master, compiled by Inductor."""

    def __init__(self, path: Path, entry: Entry) -> None:
        """Compile for all sizes."""
        self._names = list(entry.source.example_inputs)
        self._run = compiled_by_inductor(path, entry, path.with_suffix(".pt2"))

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Compute the output."""
        (y,) = self._run(*(torch.from_numpy(inputs[name]) for name in self._names))
        return {"y": y.numpy()}


def by_onnxruntime(path: Path, _entry: Entry) -> Model:
    return OrtModel.open(path, record_of(onnx.load(path)), num_threads=1)


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize(
    "open_engine", [by_onnxruntime, pytest.param(Compiled, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize(
    "make", [zoo_text.t5_encoder, pytest.param(zoo_text.mpnet, marks=pytest.mark.slow)]
)
def test_right_engines_prove(make: Callable[[], Entry], open_engine: Open, tmp_path: Path) -> None:
    torch.manual_seed(0)
    entry = make()
    path = entry.export(entry.source, tmp_path / "master")
    master = record_of(onnx.load(path))
    master = master.model_copy(update={"input_values": input_values(ir.load(path))})
    eager = FxModel.open(path, master, device="cpu")
    reference = open_reference(path, master, eager, tmp_path / "cache", num_threads=1)
    claim = Claim(
        master=master,
        recipe=Recipe(),
        precision=Precision.FP32,
        buckets=(BUCKET,),
        samples=None,
        master_path=path,
    )
    verdict = judge(open_engine(path, entry), reference, claim)
    assert verdict.reason == ""
    # Not by a bound that eager's own error made wide.
    assert max(check.rel_l2 for check in verdict.checks) < FP32.rel_l2
    assert any(check.sizes["seq"] > 32 for check in verdict.checks)
