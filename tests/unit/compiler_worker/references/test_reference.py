"""The reference: float64, witnessed, kept on disk, refused when it cannot be trusted."""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import parser

from compiler_worker.inputs.sampling import Sample, SampleVariant
from compiler_worker.measures.distance import Distance
from compiler_worker.references import reference as reference_module
from compiler_worker.references.agreement import disagreement, eager_errors, untrusted
from compiler_worker.references.models import FxModel, OrtModel
from compiler_worker.references.reference import (
    Reference,
    open_eager,
    open_reference,
)
from compiler_worker.references.reference_cache import CachedModel
from services.contracts.errors import ProofError
from services.contracts.hardware.kinds import EngineKind
from services.contracts.kserve.tensor_spec import TensorSpec
from services.contracts.kserve.tensors import Array
from services.contracts.model.manifest import MasterRecord
from services.contracts.model.recipe import OutputRecipe, Recipe
from tests.conformance.tiny_model import (
    draw_inputs,
    master_record,
    reference,
    save_master,
    tiny_model,
)

MASTER = master_record()
RECIPE = Recipe(outputs={"hidden": OutputRecipe(valid_where="mask")})
INPUTS = draw_inputs(3, 7)
SAMPLE = Sample(
    bucket="b", sizes={"batch": 3, "sequence": 7}, variant=SampleVariant.RAGGED, inputs=INPUTS
)


# The importer refuses random numbers; these are all 1.
REFUSED = """m (float[batch, 4] x) => (float[batch, 4] y) {
    r = RandomUniformLike <low = 1.0, high = 1.0> (x)  y = Mul (x, r) }"""


def opened(
    path: Path, master: MasterRecord, cache: Path, kind: EngineKind | None = None
) -> Reference:
    eager = open_eager(path, master, "cpu")
    return open_reference(path, master, eager, cache, kind=kind, num_threads=1)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return save_master(tiny_model(), tmp_path)


def small_model(text: str, folder: Path, output: str = "FLOAT32") -> Path:
    model = parser.parse_model(f'<ir_version: 10, opset_import: ["" : 20]>\n{text}')
    path = folder / "model.onnx"
    onnx.save(model, path)
    return path


def small_master(datatype: str = "FP32") -> MasterRecord:
    spec = TensorSpec(name="x", datatype=datatype, shape=("batch", 4))
    output = spec.model_copy(update={"name": "y"})
    return MASTER.model_copy(update={"inputs": (spec,), "outputs": (output,)})


class TestModels:
    def test_fx_and_onnxruntime_compute_what_onnx_defines(self, path: Path) -> None:
        wanted = reference(tiny_model(), INPUTS)
        for model in (
            FxModel.open(path, MASTER, device="cpu"),
            OrtModel.open(path, MASTER, num_threads=1),
        ):
            found = model.run(INPUTS)
            assert list(found) == ["hidden", "pooled"]
            for name, array in found.items():
                assert array.dtype == np.float32
                np.testing.assert_allclose(array, wanted[name], atol=1e-5)

    def test_a_double_import_is_more_exact(self, path: Path) -> None:
        double = FxModel.open(path, MASTER, device="cpu", is_double=True).run(INPUTS)
        single = FxModel.open(path, MASTER, device="cpu").run(INPUTS)
        assert double["pooled"].dtype == np.float64
        difference = np.abs(double["pooled"] - single["pooled"]).max()
        assert 0 < difference < 1e-5

    def test_bfloat16_goes_in_and_out(self, tmp_path: Path) -> None:
        path = small_model(
            """m (bfloat16[batch, 4] x) => (bfloat16[batch, 4] y) {
            f = Cast <to = 1> (x)  s = Add (f, f)  y = Cast <to = 16> (s) }""",
            tmp_path,
        )
        master = small_master("BF16")
        x = np.arange(8).reshape(2, 4).astype(ml_dtypes.bfloat16)
        for model in (FxModel.open(path, master, device="cpu"), OrtModel.open(path, master)):
            found = model.run({"x": x})["y"]
            assert (found.dtype, found.tolist()) == (x.dtype, (x + x).tolist())

    def test_eager_says_at_which_shapes_it_failed(self, path: Path) -> None:
        outside = INPUTS | {"ids": np.full((3, 7), 1000)}
        with pytest.raises(
            ProofError, match=r"eager run of the master at .*'ids': \[3, 7\].* failed"
        ):
            FxModel.open(path, MASTER, device="cpu").run(outside)

    def test_onnxruntime_fails_in_its_own_words(self, path: Path) -> None:
        with pytest.raises(ProofError, match="run of the master failed.*ids"):
            OrtModel.open(path, MASTER).run({"mask": INPUTS["mask"]})


class TestReference:
    def test_is_float64_with_a_witness(self, path: Path, tmp_path: Path) -> None:
        found = opened(path, MASTER, tmp_path / "cache")
        assert "float64 import, torch" in found.name
        assert "witness onnxruntime" in found.name
        assert found.model.run(INPUTS)["hidden"].dtype == np.float64

    def test_eagers_own_error_is_that_of_float32(self, path: Path, tmp_path: Path) -> None:
        found = opened(path, MASTER, tmp_path / "cache")
        errors = eager_errors(found, MASTER, RECIPE, [SAMPLE], {})
        assert set(errors) == {"hidden", "pooled"}
        for error in errors.values():
            assert 1e-9 < error.eager.rel_l2 < 1e-5
        assert disagreement(found, MASTER, RECIPE, [SAMPLE], errors, {}) is None

    def test_a_contradicted_one_is_refused(self, path: Path, tmp_path: Path) -> None:
        found = opened(path, MASTER, tmp_path / "cache")

        class Lying:
            def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
                answer = OrtModel.open(path, MASTER).run(inputs)
                return answer | {"pooled": answer["pooled"] + np.float32(0.01)}

        lied = Reference(**{**vars(found), "witness": Lying()})
        faulty = disagreement(lied, MASTER, RECIPE, [SAMPLE], {}, {})
        assert faulty is not None
        assert re.search("differs in output 'pooled' at .*'batch': 3", str(untrusted(lied, faulty)))

    @pytest.mark.parametrize(
        ("kind", "library"),
        [
            (None, "onnxruntime "),
            (EngineKind.OPENVINO, "onnxruntime "),
            (EngineKind.ONNXRUNTIME, "onnx.reference "),
        ],
    )
    def test_what_the_importer_refuses_is_compared_with_another_library(
        self, tmp_path: Path, kind: EngineKind | None, library: str
    ) -> None:
        path = small_model(REFUSED, tmp_path)
        found = opened(path, small_master(), tmp_path / "cache", kind)
        assert found.name.startswith(library)
        assert "no float64 import: RandomUniformLike" in found.name
        assert found.eager_outputs is None
        assert eager_errors(found, small_master(), Recipe(), [], {}) == {}
        x = np.ones((2, 4), np.float32)
        assert (found.model.run({"x": x})["y"] == x).all()
        assert (found.baseline.run({"x": x})["y"] == x).all()

    def test_the_references_of_two_kinds_are_kept_apart(self, tmp_path: Path) -> None:
        path, cache = small_model(REFUSED, tmp_path), tmp_path / "cache"
        for kind in (EngineKind.OPENVINO, EngineKind.ONNXRUNTIME):
            opened(path, small_master(), cache, kind).model.run({"x": np.ones((2, 4), np.float32)})
        assert len(list(cache.rglob("*.npz"))) == 2

    def test_an_engine_is_never_compared_with_its_own_library(self, tmp_path: Path) -> None:
        text = "m (float[batch, 4] x) => (float[batch, 4] y) { y = com.microsoft.QuickGelu (x) }"
        path = tmp_path / "model.onnx"
        header = '<ir_version: 10, opset_import: ["" : 20, "com.microsoft" : 1]>\n'
        path.write_bytes(parser.parse_model(header + text).SerializeToString())
        opened(path, small_master(), tmp_path / "cache", EngineKind.OPENVINO)
        with pytest.raises(ProofError, match="no reference but ONNX Runtime itself.*QuickGelu"):
            opened(path, small_master(), tmp_path / "cache", EngineKind.ONNXRUNTIME)

    @pytest.mark.parametrize(
        ("op", "witness"),
        [("Relu", "witness onnx.reference "), ("GlobalLpPool", "no witness: ONNX Runtime refuses")],
    )
    def test_what_onnxruntime_refuses_has_onnxs_own_as_its_witness(
        self, tmp_path: Path, op: str, witness: str
    ) -> None:
        model = parser.parse_model(
            '<ir_version: 13, opset_import: ["" : 20]>'
            f"m (float[batch, 4, 4] x) => (float[batch, 4, s] y) {{ y = {op} (x) }}"
        )
        model.ir_version = 99  # newer than any ONNX Runtime reads
        path = tmp_path / "model.onnx"
        path.write_bytes(model.SerializeToString())
        found = opened(path, small_master(), tmp_path / "cache")
        assert witness in found.name
        assert "ONNX Runtime refuses the master" in found.name
        x = np.ones((3, 4, 4), np.float32)
        sample = replace(SAMPLE, inputs={"x": x})
        assert disagreement(found, small_master(), Recipe(), [sample], {}, {}) is None
        if found.witness:
            assert (found.witness.run({"x": x})["y"] == x).all()

    def test_without_anything_that_runs_there_is_none(self, tmp_path: Path) -> None:
        text = "m (float[batch, 4] x) => (float[batch, 4] y) { y = com.nobody.Odd (x) }"
        path = tmp_path / "model.onnx"
        header = '<ir_version: 10, opset_import: ["" : 20, "com.nobody" : 1]>\n'
        path.write_bytes(parser.parse_model(header + text).SerializeToString())
        with pytest.raises(ProofError, match="no reference can run this master.*Odd"):
            opened(path, small_master(), tmp_path / "cache")


QUANTISING = """m (float[batch, 4] x) => (float[batch, 4] y) {
    step = Constant <value = float {0.5}> ()  q = QuantizeLinear (x, step)
    y = DequantizeLinear (q, step) }"""
ROUNDING = "m (float[batch, 4] x) => (float[batch, 4] y) { y = Round (x) }"


class TestShaken:
    def test_a_master_that_quantises_errs_by_a_step_near_the_middle_of_two(
        self, tmp_path: Path
    ) -> None:
        found = opened(small_model(QUANTISING, tmp_path), small_master(), tmp_path / "cache")
        x = np.array([[1, 2, 3, 3.2525], [1, 2, 3, 3.2475], [1, 2, 3, 3.26]], np.float32)
        sample = replace(SAMPLE, inputs={"x": x})
        (errors,) = eager_errors(found, small_master(), Recipe(), [sample], {}).values()
        assert errors.eager.rel_l2 == 0
        assert errors.shifted.rel_l2 == pytest.approx(0.5 / np.linalg.norm([1, 2, 3, 3]))
        answers = [found.model, *found.shifted]
        columns = [model.run({"x": x})["y"][:, 3].tolist() for model in answers]
        assert columns == [[3.5, 3, 3.5], [3.5, 3.5, 3.5], [3, 3, 3.5]]
        assert len(list((tmp_path / "cache").rglob("*.npz"))) == 4, "each under its own name"

    def test_others_have_nothing_to_shake(self, tmp_path: Path) -> None:
        found = opened(small_model(ROUNDING, tmp_path), small_master(), tmp_path / "cache")
        assert found.shifted == ()
        sample = replace(SAMPLE, inputs={"x": np.full((2, 4), 1.4999, np.float32)})
        (errors,) = eager_errors(found, small_master(), Recipe(), [sample], {}).values()
        assert errors.shifted == Distance()

    def test_a_witness_may_go_the_other_way_too(self, tmp_path: Path) -> None:
        found = opened(small_model(QUANTISING, tmp_path), small_master(), tmp_path / "cache")
        sample = replace(SAMPLE, inputs={"x": np.array([[1, 2, 3, 3.2525]], np.float32)})
        errors = eager_errors(found, small_master(), Recipe(), [sample], {})
        other = replace(found, witness=found.shifted[1])
        assert disagreement(other, small_master(), Recipe(), [sample], errors, {}) is None
        faulty = disagreement(other, small_master(), Recipe(), [sample], {}, {})
        assert faulty is not None
        assert "the witness differs in output 'y'" in str(untrusted(other, faulty))


class Counting:
    """Doubles its input and counts its runs."""

    def __init__(self) -> None:
        self.num_runs = 0

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        self.num_runs += 1
        return {"y": inputs["x"] * 2}


X = {"x": np.arange(3.0)}


class TestCache:
    def test_an_answer_is_computed_once(self, tmp_path: Path) -> None:
        model = Counting()
        first = CachedModel("m", lambda: model, tmp_path).run(X)
        second = CachedModel("m", lambda: model, tmp_path).run(X)
        assert model.num_runs == 1
        assert (first["y"] == second["y"]).all()

    def test_the_model_is_not_even_opened_for_a_kept_answer(self, tmp_path: Path) -> None:
        CachedModel("m", Counting, tmp_path).run(X)

        def refuse() -> Counting:
            raise AssertionError("opened")

        assert (CachedModel("m", refuse, tmp_path).run(X)["y"] == X["x"] * 2).all()

    @pytest.mark.parametrize(
        ("identity", "inputs"),
        [
            ("other", X),
            ("m", {"x": np.arange(3.0) + 1}),
            ("m", {"x": np.arange(3.0).reshape(1, 3)}),
            ("m", {"x": np.arange(3.0).view(np.int64)}),
        ],
    )
    def test_another_model_or_input_is_another_entry(
        self, tmp_path: Path, identity: str, inputs: dict[str, Array]
    ) -> None:
        model = Counting()
        CachedModel("m", lambda: model, tmp_path).run(X)
        CachedModel(identity, lambda: model, tmp_path).run(inputs)
        assert model.num_runs == 2

    # A host that lost its power leaves files with a name and nothing in them.
    @pytest.mark.parametrize("num_left", [0, 1, 50])
    def test_a_damaged_entry_is_computed_again(self, num_left: int, tmp_path: Path) -> None:
        model = Counting()
        CachedModel("m", lambda: model, tmp_path).run(X)
        (entry,) = tmp_path.iterdir()
        entry.write_bytes(entry.read_bytes()[:num_left])
        again = CachedModel("m", lambda: model, tmp_path).run(X)
        assert model.num_runs == 2
        assert (again["y"] == X["x"] * 2).all()

    def test_types_that_files_do_not_know_are_not_kept(self, tmp_path: Path) -> None:
        CachedModel("m", Counting, tmp_path).run({"x": np.ones(2, ml_dtypes.bfloat16)})
        assert list(tmp_path.iterdir()) == []

    def test_an_output_may_be_called_as_numpys_argument_is(self, tmp_path: Path) -> None:
        class Named:
            def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
                return {"file": np.ones(2), "a/b": np.zeros(1)}

        model = CachedModel("m", Named, tmp_path)
        for _ in range(2):
            outputs = model.run({"x": np.ones(1)})
            assert sorted(outputs) == ["a/b", "file"]

    def test_other_code_computes_anew(
        self, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What a faulty importer, or a faulty op of a witness, computed is nothing after a mend."""
        entries = []
        for digest in ("faulty", "mended", "mended"):
            monkeypatch.setattr(reference_module, "models_digest", digest.lower)
            reference = opened(path, MASTER, tmp_path / "cache")
            for model in (reference.model, reference.witness):
                assert model is not None
                model.run(INPUTS)
            entries.append(len(list((tmp_path / "cache").rglob("*.npz"))))
        assert entries == [2, 4, 4]
