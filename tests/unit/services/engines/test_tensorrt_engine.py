"""What the run half of TensorRT refuses before it touches a plan, and which profile it takes."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from services.contracts.errors import EngineError, EngineIncompatibleError, InvalidRequestError
from services.contracts.hardware.kinds import EngineKind
from services.engines import tensorrt_engine
from services.engines.base import LoadSpec
from services.engines.tensorrt_engine import PLAN, TensorrtEngine
from services.engines.tensorrt_runtime import Messages, installed_libraries, logger_of
from tests.conformance.tiny_model import draw_inputs
from tests.conformance.workshop import BUCKETS
from tests.unit.services.engines.test_compatibility import spec_for

RTX = {"tensorrt_rtx": "1.7.1.116"}


class ILogger:
    """The base of loggers in a library's module."""


LIBRARY = SimpleNamespace(__name__="a tensorrt", ILogger=ILogger)


def garbage_for(folder: Path, built_for: str, device: str, found: dict[str, str]) -> LoadSpec:
    (folder / PLAN).write_bytes(b"garbage")
    spec = spec_for(built_for, device, wanted=RTX, found=found, kind=EngineKind.TENSORRT)
    return replace(spec, directory=folder)


def test_the_generation_is_compared_before_any_byte_is_read(tmp_path: Path) -> None:
    spec = garbage_for(tmp_path, "cuda-sm80", "cuda-sm90", RTX)
    (tmp_path / PLAN).unlink()
    with pytest.raises(EngineIncompatibleError, match="for cuda-sm80, this device is cuda-sm90"):
        TensorrtEngine.load(spec)


def test_the_library_version_is_compared_before_any_byte_is_read(tmp_path: Path) -> None:
    spec = garbage_for(tmp_path, "cuda-sm90", "cuda-sm90", {"tensorrt_rtx": "1.8"})
    (tmp_path / PLAN).unlink()
    with pytest.raises(EngineIncompatibleError, match="tensorrt_rtx 1.7.1.116, .* has 1.8"):
        TensorrtEngine.load(spec)


def test_a_missing_library_is_named(tmp_path: Path) -> None:
    spec = garbage_for(tmp_path, "cuda-sm90", "cuda-sm90", {})
    with pytest.raises(EngineIncompatibleError, match="tensorrt_rtx 1.7.1.116, .* has none"):
        TensorrtEngine.load(spec)


def test_without_a_device_the_kind_is_unavailable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensorrt_engine, "first_cuda_device", lambda: None)
    with pytest.raises(EngineError, match="cannot be loaded here: no CUDA device"):
        TensorrtEngine.load(garbage_for(tmp_path, "cuda-sm90", "cuda-sm90", RTX))


def test_without_a_library_the_kind_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensorrt_engine, "installed_libraries", list)
    assert TensorrtEngine.unavailable_reason() == (
        "neither of the Python packages tensorrt and tensorrt_rtx is installed"
    )


@pytest.mark.skipif("tensorrt_rtx" not in installed_libraries(), reason="needs the extra rtx")
def test_what_the_library_says_is_in_the_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytes that are no plan, or a host without a driver: an EngineError either way."""
    monkeypatch.setattr(TensorrtEngine, "unavailable_reason", lambda: "")
    with pytest.raises(EngineError, match="(?i)tensorrt") as caught:
        TensorrtEngine.load(garbage_for(tmp_path, "cuda-sm90", "cuda-sm90", RTX))
    assert not isinstance(caught.value, EngineIncompatibleError)


class FakePlan:
    """A plan whose contexts note their profiles, and whose tensors have given sizes."""

    def __init__(self, itemsizes: dict[str, int]) -> None:
        self.itemsizes = itemsizes
        self.profiles: list[int] = []
        self.logger = logger_of(LIBRARY, Messages())
        self.failing_step = self.words = ""

    def create_execution_context(self) -> "Context":
        return Context(self)

    def get_tensor_dtype(self, name: str) -> Any:
        return SimpleNamespace(itemsize=self.itemsizes[name])


class Context:
    """Stands for an execution context, of which a step may fail with words for the logger."""

    def __init__(self, plan: FakePlan) -> None:
        self.plan = plan

    def set_optimization_profile_async(self, profile: int, stream: int) -> None:
        self.plan.profiles.append(profile)

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        return (2, 3, 4)

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
        return self._is_done("set_input_shape")

    def set_tensor_address(self, name: str, address: int) -> bool:
        return self._is_done("set_tensor_address")

    def execute_async_v3(self, stream: int) -> bool:
        return self._is_done("execute_async_v3")

    def _is_done(self, step: str) -> bool:
        if step != self.plan.failing_step:
            return True
        self.plan.logger.log(SimpleNamespace(name="ERROR"), self.plan.words)
        return False


def engine_with(
    monkeypatch: pytest.MonkeyPatch, itemsizes: dict[str, int]
) -> tuple[TensorrtEngine, FakePlan]:
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=0))
    spec = spec_for("cuda-sm90", "cuda-sm90", wanted=RTX, found=RTX, kind=EngineKind.TENSORRT)
    key = spec.manifest.key.model_copy(update={"buckets": BUCKETS})
    manifest = spec.manifest.model_copy(update={"key": key})
    plan = FakePlan(itemsizes)
    engine = TensorrtEngine(replace(spec, manifest=manifest), plan, plan.logger)
    assert plan.profiles == [0, 1]
    return engine, plan


SIZES = {"ids": 8, "mask": 8, "hidden": 4, "pooled": 4}


def test_a_request_outside_every_profile_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, _ = engine_with(monkeypatch, SIZES)
    with pytest.raises(InvalidRequestError, match="outside every bucket"):
        engine.run(draw_inputs(9, 1))


def test_a_plan_with_other_datatypes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        EngineError, match="'hidden' has 2 bytes per element in the plan, FP32 has 4"
    ):
        engine_with(monkeypatch, {**SIZES, "hidden": 2})


@pytest.mark.parametrize("step", ["set_input_shape", "set_tensor_address", "execute_async_v3"])
def test_a_run_that_fails_says_why_and_each_reason_once(
    monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    monkeypatch.setattr(torch.Tensor, "cuda", lambda tensor: tensor)
    monkeypatch.setattr(torch, "empty", lambda size, dtype, device: torch.zeros(size, dtype=dtype))
    engine, plan = engine_with(monkeypatch, SIZES)
    # Another engine loads beside it: the library's logger has another listener from then on.
    logger_of(LIBRARY, Messages())
    plan.failing_step = step
    for words in ("first reason", "second reason"):
        plan.words = words
        with pytest.raises(EngineError, match=f"run: {step} returned false: {words}$"):
            engine.run(draw_inputs(2, 3))


def test_of_messages_that_all_differ_the_newest_are_kept() -> None:
    messages = Messages()
    for number in range(3000):
        messages.add("WARNING", f"at address {number}")
    assert len(messages.warnings) == 1000
    assert messages.warnings[-1] == "at address 2999"


def test_messages_are_kept_once_by_severity() -> None:
    messages = Messages()
    for severity, text in [
        ("WARNING", "w"),
        ("ERROR", "e"),
        ("INTERNAL_ERROR", "i"),
        ("WARNING", "w"),
        ("INFO", "n"),
    ]:
        messages.add(severity, text)
    assert (messages.warnings, messages.errors) == (["w"], ["e", "i"])


def test_a_library_has_one_logger_whose_listener_changes() -> None:
    first, second = Messages(), Messages()
    logger = logger_of(LIBRARY, first)
    assert logger_of(LIBRARY, second) is logger
    logger.log(SimpleNamespace(name="ERROR"), "late")
    assert (first.errors, second.errors) == ([], ["late"])
