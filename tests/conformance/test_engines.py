"""What every engine promises, whatever is inside: black-box tests over all cases."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import onnx
import pytest

from services.contracts.errors import (
    EngineError,
    EngineIncompatibleError,
    InvalidRequestError,
)
from services.contracts.kserve.tensors import Array
from services.engines.device.device_probe import probe_device
from tests.conformance.lent_inputs import LentInputs
from tests.conformance.tiny_model import WIDTH, draw_inputs, reference
from tests.conformance.workshop import AnyEngine, Built, Published

# Corners of both buckets, sizes between, and sizes of 1, which compilers like to fix.
SHAPES = [(1, 1), (1, 16), (4, 1), (4, 16), (3, 7), (5, 17), (1, 32), (8, 32)]


def assert_equals_reference(
    built: Built, model: onnx.ModelProto, inputs: dict[str, Array], outputs: dict[str, Array]
) -> None:
    wanted = reference(model, inputs)
    assert list(outputs) == list(wanted)
    for name, array in outputs.items():
        assert array.dtype == wanted[name].dtype
        assert array.shape == wanted[name].shape
        # Exporters differ in what they compute at masked positions of `hidden`.
        is_valid = inputs["mask"].astype(bool) if name == "hidden" else slice(None)
        distance = np.abs(array[is_valid] - wanted[name][is_valid]).max()
        assert distance <= built.case.max_abs, f"{name}: {distance}"


@pytest.mark.parametrize(("batch", "sequence"), SHAPES)
def test_equals_the_reference_at_every_shape(
    built: Built, engine: AnyEngine, model: onnx.ModelProto, batch: int, sequence: int
) -> None:
    inputs = draw_inputs(batch, sequence, seed=batch * 100 + sequence)
    assert_equals_reference(built, model, inputs, engine.run(inputs))


@pytest.mark.parametrize("batch", [1, 4])
def test_empty_tensors_are_computed_where_a_bucket_begins_at_0(
    built: Built, engine: AnyEngine, model: onnx.ModelProto, batch: int
) -> None:
    """Of no tokens there is no mean: `pooled` is 0 / 0 in the reference too."""
    inputs = draw_inputs(batch, 0)
    if not built.case.has_buckets:
        with pytest.raises(InvalidRequestError, match="is 0, expected at least 1"):
            engine.run(inputs)
        return
    with np.errstate(invalid="ignore"):
        wanted = reference(model, inputs)
    outputs = engine.run(inputs)
    assert outputs["hidden"].shape == (batch, 0, WIDTH)
    np.testing.assert_array_equal(outputs["pooled"], wanted["pooled"])
    assert np.isnan(wanted["pooled"]).all()
    # The next request finds nothing of it.
    inputs = draw_inputs(batch, 7)
    assert_equals_reference(built, model, inputs, engine.run(inputs))


def test_two_runs_agree(engine: AnyEngine) -> None:
    inputs = draw_inputs(3, 9)
    first, second = engine.run(inputs), engine.run(inputs)
    for name, array in first.items():
        np.testing.assert_allclose(array, second[name], rtol=1e-6, atol=1e-6)


def test_outputs_survive_the_next_run_and_close(own_engine: AnyEngine) -> None:
    outputs = own_engine.run(draw_inputs(2, 6, seed=1))
    copies = {name: array.copy() for name, array in outputs.items()}
    own_engine.run(draw_inputs(2, 6, seed=2))
    own_engine.close()
    for name, array in outputs.items():
        np.testing.assert_array_equal(array, copies[name])


def test_read_only_and_strided_inputs_are_taken(
    built: Built, engine: AnyEngine, model: onnx.ModelProto
) -> None:
    inputs = draw_inputs(3, 6)
    strided = {name: np.asfortranarray(array) for name, array in inputs.items()}
    frozen = {
        name: np.frombuffer(a.tobytes(), a.dtype).reshape(a.shape) for name, a in inputs.items()
    }
    assert not frozen["ids"].flags.writeable
    assert not strided["ids"].flags.c_contiguous
    assert_equals_reference(built, model, inputs, engine.run(strided))
    assert_equals_reference(built, model, inputs, engine.run(frozen))


def test_a_run_does_not_change_its_inputs(engine: AnyEngine) -> None:
    inputs = draw_inputs(2, 5)
    before = {name: array.copy() for name, array in inputs.items()}
    engine.run(inputs)
    for name, array in inputs.items():
        np.testing.assert_array_equal(array, before[name])


@pytest.fixture
def lent() -> LentInputs:
    """Memory of a gateway."""
    return LentInputs()


@pytest.mark.parametrize(("batch", "sequence", "offset"), [(1, 1, 8), (3, 7, 1), (8, 32, 0)])
def test_inputs_that_can_only_be_read_are_as_good_as_others(
    built: Built,
    engine: AnyEngine,
    model: onnx.ModelProto,
    lent: LentInputs,
    batch: int,
    sequence: int,
    offset: int,
) -> None:
    """An engine that writes there ends this process."""
    inputs = draw_inputs(batch, sequence, seed=offset)
    given = lent.lend(inputs, offset)
    before = bytes(lent.arena)
    assert_equals_reference(built, model, inputs, engine.run(given))
    assert bytes(lent.arena) == before


def test_no_engine_keeps_its_inputs_and_no_answer_is_a_part_of_them(
    built: Built, engine: AnyEngine, model: onnx.ModelProto, lent: LentInputs
) -> None:
    inputs = draw_inputs(4, 16)
    given = lent.lend(inputs, 0)
    outputs = engine.run(given)
    assert lent.num_looked_at == len(given)
    given.clear()
    engine.run(inputs)
    assert lent.num_looked_at == 0
    lent.arena[:] = b"\xff" * len(lent.arena)
    assert_equals_reference(built, model, inputs, outputs)


def _wrong_inputs() -> dict[str, tuple[dict[str, Array], str]]:
    good = draw_inputs(2, 5)
    short = draw_inputs(2, 4)
    empty = {name: array[:0] for name, array in good.items()}
    return {
        "missing": ({"ids": good["ids"]}, "input 'mask' is missing"),
        "unknown": ({**good, "extra": good["ids"]}, "input 'extra' is unknown"),
        "dtype": ({**good, "ids": good["ids"].astype(np.int32)}, "expected datatype INT64"),
        "rank": ({**good, "ids": good["ids"][0]}, "unexpected shape for input 'ids'"),
        "disagreeing": ({**good, "mask": short["mask"]}, "dimension 'sequence' is 4"),
        "batch zero": (empty, "is 0, expected at least 1"),
    }


@pytest.mark.parametrize("fault", _wrong_inputs())
def test_wrong_inputs_are_refused_by_name(
    built: Built, engine: AnyEngine, model: onnx.ModelProto, fault: str
) -> None:
    inputs, message = _wrong_inputs()[fault]
    with pytest.raises(InvalidRequestError, match=message):
        engine.run(inputs)
    good = draw_inputs(2, 5)
    assert_equals_reference(built, model, good, engine.run(good))


def test_shapes_outside_the_buckets_are_refused_or_right(
    built: Built, engine: AnyEngine, model: onnx.ModelProto
) -> None:
    inputs = draw_inputs(9, 33)
    if built.case.is_bounded:
        with pytest.raises(InvalidRequestError, match="batch"):
            engine.run(inputs)
    else:
        assert_equals_reference(built, model, inputs, engine.run(inputs))


def test_calls_from_many_threads_are_all_right(
    built: Built, engine: AnyEngine, model: onnx.ModelProto
) -> None:
    shapes = [(1 + i % 4, 1 + (3 * i) % 16) for i in range(24)]
    requests = [draw_inputs(b, s, seed=i) for i, (b, s) in enumerate(shapes)]
    with ThreadPoolExecutor(max_workers=6) as pool:
        answers = list(pool.map(engine.run, requests))
    for inputs, outputs in zip(requests, answers, strict=True):
        assert_equals_reference(built, model, inputs, outputs)


def test_close_twice_is_harmless_and_run_after_close_is_refused(own_engine: AnyEngine) -> None:
    own_engine.close()
    own_engine.close()
    with pytest.raises(EngineError, match="is closed"):
        own_engine.run(draw_inputs(1, 2))


def test_two_engines_live_side_by_side(
    built: Built, engine: AnyEngine, own_engine: AnyEngine, model: onnx.ModelProto
) -> None:
    inputs = draw_inputs(2, 7)
    own_engine.run(inputs)
    own_engine.close()
    assert_equals_reference(built, model, inputs, engine.run(inputs))


def test_masked_positions_do_not_leak(engine: AnyEngine) -> None:
    inputs = draw_inputs(2, 8)
    inputs["mask"][:, 5:] = 0
    inputs["mask"][:, :5] = 1
    other = {**inputs, "ids": inputs["ids"].copy()}
    other["ids"][:, 5:] = 1
    shape = (2, WIDTH)
    one, two = engine.run(inputs)["pooled"], engine.run(other)["pooled"]
    assert one.shape == two.shape == shape
    np.testing.assert_allclose(one, two, rtol=1e-5, atol=1e-5)


def test_another_generation_is_refused_before_loading(published: Published) -> None:
    key = published.plan.key
    others = ("cuda-sm90", "cuda-sm89") if key.generation.startswith("cuda") else ("cpu-x86_64-v2",)
    other = next(generation for generation in others if generation != key.generation)
    with pytest.raises(EngineIncompatibleError) as caught:
        published.load(probe_device(override=other))
    assert str(caught.value) == (
        f"engine {key.digest()[:12]} of kind {key.kind} was built for {key.generation}, this "
        f"device is {other}; build it: smelt build MODEL --generation {other} --kind {key.kind}"
    )


def test_another_library_version_is_refused_before_loading(published: Published) -> None:
    key = published.plan.key
    library, wanted = next(iter(key.toolchain.items()))
    device = probe_device(override=key.generation)
    other = device.model_copy(update={"toolchain": {library: "0.1"}})
    with pytest.raises(EngineIncompatibleError, match="this device has 0.1") as caught:
        published.load(other)
    assert f"{library} {wanted}" in str(caught.value)


def test_the_manifest_says_what_is_published(published: Published) -> None:
    output = published.output
    case = published.case
    assert bool(output.files) is case.has_files
    assert output.needs_master is case.reads_master
    assert all(path.is_file() for path in output.files.values())
