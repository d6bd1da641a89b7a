"""The fallback compiles at load or says why it does not; never in a request."""

import fcntl
import gc
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import torch._inductor as inductor
from torch.multiprocessing.reductions import StorageWeakRef

from services.contracts.errors import EngineError, InvalidRequestError
from services.contracts.kserve.tensor_spec import TensorSpec
from services.contracts.model.default_buckets import default_buckets
from services.contracts.model.manifest import MasterRecord
from services.contracts.model.recipe import Bucket, DimRange
from services.engines.device.device_probe import probe_device
from services.engines.fallback.fallback_engine import (
    FallbackEngine,
    FallbackMode,
    FallbackSpec,
    corners_of,
)

BUCKET = Bucket(
    dims={"batch": DimRange(min=1, opt=2, max=8), "width": DimRange(min=1, opt=4, max=6)}
)


class Scale(torch.nn.Module):
    """y = 2x + the square of the sum over the width, by way of a width that is squared."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor]:
        squares = (x.unsqueeze(1) * x.unsqueeze(2)).flatten(1)
        return (2 * x + squares.sum(1, keepdim=True),)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("program") / "program.pt2"
    dims = {0: torch.export.Dim("batch", min=1, max=8), 1: torch.export.Dim("width", min=1, max=6)}
    exported = torch.export.export(Scale(), (torch.zeros(2, 3),), dynamic_shapes=(dims,))
    torch.export.save(exported, path)
    return path


def master() -> MasterRecord:
    shape = ("batch", "width")
    return MasterRecord(
        digest="a" * 64,
        files={},
        inputs=(TensorSpec(name="x", datatype="FP32", shape=shape),),
        outputs=(TensorSpec(name="y", datatype="FP32", shape=shape),),
        opset=20,
        num_parameters=0,
    )


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """No compiler is on PATH: it is eager then, which takes less time here."""
    monkeypatch.setenv("PATH", "")


def load(program: Path, bucket: Bucket = BUCKET) -> FallbackEngine:
    return FallbackEngine.load(
        FallbackSpec(
            program_path=program,
            master=master(),
            buckets=(bucket,),
            device=probe_device(override="cpu-x86_64-v3"),
            num_threads=1,
        )
    )


def assert_right(engine: FallbackEngine, batch: int, width: int) -> None:
    x = np.random.default_rng(0).standard_normal((batch, width)).astype(np.float32)
    np.testing.assert_allclose(
        engine.run({"x": x})["y"], 2 * x + x.sum(1, keepdims=True) ** 2, rtol=1e-4, atol=1e-5
    )


needs_cxx = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++: apt install g++")


@needs_cxx
def test_it_compiles_once_and_never_in_a_request(
    program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    num_compiled, compile_graph = 0, inductor.standalone_compile

    def counted(*args: object, **kwargs: object) -> object:
        nonlocal num_compiled
        num_compiled += 1
        # No test programs of instruction sets, which take as long as the graph itself.
        assert inductor.config.cpp.vec_isa_ok
        with program.open("rb") as other, pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return compile_graph(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(inductor, "standalone_compile", counted)
    engine = load(program)
    assert (engine.mode, engine.reason) == (FallbackMode.COMPILED, "")
    assert engine.name == "torch.compile"
    # From here on nothing could be compiled: a request that needed it would fail.
    monkeypatch.setenv("PATH", "")
    for batch in range(1, 9):
        for width in range(1, 7):
            assert_right(engine, batch, width)
    assert num_compiled == 1


def test_without_a_compiler_it_is_eager_and_says_so(
    program: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PATH", "")
    engine = load(program)
    assert engine.mode is FallbackMode.EAGER
    assert engine.reason == "no C++ compiler: g++ is not on PATH"
    assert engine.name == "eager torch"
    assert "fallback runs eagerly: no C++ compiler" in caplog.text
    assert_right(engine, 3, 5)


def test_a_compiler_that_fails_leaves_it_eager_with_its_words(
    program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*args: object, **kwargs: object) -> None:
        raise RuntimeError("no kernel for this")

    monkeypatch.setattr(shutil, "which", lambda name: "/usr/bin/g++")
    monkeypatch.setattr(inductor, "standalone_compile", failing)
    engine = load(program)
    assert engine.mode is FallbackMode.EAGER
    assert engine.reason == "Inductor failed: RuntimeError: no kernel for this"
    assert_right(engine, 2, 2)


@pytest.mark.usefixtures("eager")
def test_shapes_that_the_program_was_not_exported_for_are_refused(program: Path) -> None:
    engine = load(program)
    with pytest.raises(InvalidRequestError, match="dimension 'width' is 7: .* width 1..6"):
        engine.run({"x": np.zeros((1, 7), np.float32)})


class Looked(torch.nn.Module):
    """Rows of a table of six by position, which no shape shows."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Parameter(torch.zeros(6))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor]:
        return (x + self.table[torch.arange(x.shape[1])],)


@pytest.mark.usefixtures("eager")
def test_a_graph_that_fails_at_a_size_is_refused_with_the_size(tmp_path: Path) -> None:
    path = tmp_path / "program.pt2"
    dims = {0: torch.export.Dim.AUTO, 1: torch.export.Dim.AUTO}
    exported = torch.export.export(Looked(), (torch.zeros(2, 3),), dynamic_shapes=(dims,))
    torch.export.save(exported, path)
    asked = Bucket(dims=BUCKET.dims | {"width": DimRange(min=1, opt=4, max=7)})
    with pytest.raises(EngineError, match="fails at .*'width': 7}: .*; give the recipe buckets"):
        load(path, asked)
    load(path).close()


class Fixed(torch.nn.Module):
    """y = 2x, of one shape."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor]:
        return (2 * x,)


@pytest.mark.parametrize("path_of_compiler", [os.environ["PATH"], ""])
def test_a_model_of_one_shape_is_served_at_its_buckets_by_default(
    tmp_path: Path, path_of_compiler: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", path_of_compiler)
    path = tmp_path / "program.pt2"
    torch.export.save(torch.export.export(Fixed(), (torch.zeros(2, 3),)), path)
    inputs = (TensorSpec(name="x", datatype="FP32", shape=(2, 3)),)
    outputs = (TensorSpec(name="y", datatype="FP32", shape=(2, 3)),)
    fixed = master().model_copy(update={"inputs": inputs, "outputs": outputs})
    engine = FallbackEngine.load(
        FallbackSpec(
            program_path=path,
            master=fixed,
            buckets=default_buckets(inputs, "batch"),
            device=probe_device(override="cpu-x86_64-v3"),
            num_threads=1,
        )
    )
    np.testing.assert_array_equal(engine.run({"x": np.ones((2, 3), np.float32)})["y"], 2.0)


class Cut(torch.nn.Module):
    """Every other row but of three, and no column: that there are few elements seems to matter."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor]:
        rows = torch.sym_max(x.shape[0] - 3, 0)
        columns = slice(torch.sym_min(2, x.shape[1] - 1), 0)
        return (torch.flip(x, [0, 1])[slice(0, rows, 2), columns],)


@pytest.mark.usefixtures("eager")
def test_a_guard_of_the_traced_sizes_refuses_no_others(tmp_path: Path) -> None:
    path = tmp_path / "program.pt2"
    dims = {0: torch.export.Dim("batch", min=2, max=5), 1: torch.export.Dim("width", min=2, max=6)}
    example = (torch.zeros(2, 3),)
    exported = torch.export.export(Cut(), example, dynamic_shapes=(dims,), strict=False)
    x = torch.zeros(5, 5)
    with pytest.raises(AssertionError, match="Guard failed"):
        exported.module()(x)
    torch.export.save(exported, path)
    ranges = {"batch": DimRange(min=2, opt=2, max=5), "width": DimRange(min=2, opt=4, max=6)}
    engine = load(path, Bucket(dims=ranges))
    assert engine.run({"x": x.numpy()})["y"].shape == (1, 0)


def test_a_broken_program_is_an_engine_error(tmp_path: Path) -> None:
    path = tmp_path / "program.pt2"
    path.write_bytes(b"not a program")
    with pytest.raises(EngineError, match=r"failed to load program\.pt2"):
        load(path)


def test_corners_are_all_ends_of_all_buckets_once() -> None:
    fixed = Bucket(dims={"batch": DimRange(min=8, opt=8, max=8), "width": BUCKET.dims["width"]})
    assert corners_of((BUCKET, fixed)) == [
        {"batch": 1, "width": 1},
        {"batch": 1, "width": 6},
        {"batch": 8, "width": 1},
        {"batch": 8, "width": 6},
    ]
    assert corners_of((Bucket(dims={}),)) == [{}]
    assert corners_of(()) == []
    ragged = Bucket(dims={"width": DimRange(min=0, opt=4, max=6)})
    assert corners_of((ragged,)) == [{"width": 0}, {"width": 1}, {"width": 6}]


class First(torch.nn.Module):
    """The first of each row, of which there has to be one."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor]:
        return (x.relu().select(1, 0),)


@pytest.mark.parametrize("path_of_compiler", [os.environ["PATH"], ""])
def test_a_graph_that_takes_an_element_of_what_is_empty_is_refused(
    tmp_path: Path, path_of_compiler: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compiled, it would read memory that is not its own."""
    monkeypatch.setenv("PATH", path_of_compiler)
    path = tmp_path / "program.pt2"
    dims = {0: torch.export.Dim("batch", min=1, max=8), 1: torch.export.Dim("width", min=0, max=6)}
    exported = torch.export.export(First(), (torch.zeros(2, 3),), dynamic_shapes=(dims,))
    torch.export.save(exported, path)
    ragged = Bucket(dims=BUCKET.dims | {"width": DimRange(min=0, opt=4, max=6)})
    with pytest.raises(EngineError, match="fails on empty tensors, at .*begin the buckets"):
        load(path, ragged)


class Wide(torch.nn.Module):
    """Adds weights of a size that no other module has here."""

    NUM_WEIGHTS = 4099

    def __init__(self) -> None:
        super().__init__()
        self.weights = torch.nn.Parameter(torch.ones(self.NUM_WEIGHTS), requires_grad=False)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor]:
        return (x + self.weights.sum(),)


def weights_of_wide() -> list[StorageWeakRef]:
    return [
        StorageWeakRef(each.untyped_storage())
        for each in gc.get_objects()
        if type(each) is torch.nn.Parameter and each.numel() == Wide.NUM_WEIGHTS
    ]


@pytest.mark.parametrize("path_of_compiler", [os.environ["PATH"], ""])
def test_closed_it_holds_no_weights_though_no_collector_looks_at_its_program(
    tmp_path: Path, path_of_compiler: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", path_of_compiler)
    path = tmp_path / "program.pt2"
    dims = {0: torch.export.Dim("batch", min=1, max=8), 1: torch.export.Dim("width", min=1, max=6)}
    torch.export.save(
        torch.export.export(Wide(), (torch.zeros(2, 3),), dynamic_shapes=(dims,)), path
    )
    gc.collect()
    assert not weights_of_wide()
    engine = load(path)
    weights = weights_of_wide()
    assert weights
    gc.freeze()
    try:
        engine.close()
        assert all(each.expired() for each in weights)
    finally:
        gc.unfreeze()
