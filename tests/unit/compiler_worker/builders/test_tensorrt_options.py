"""What a recipe asks of TensorRT, and its timing cache, with the library's own objects."""

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from compiler_worker.builders.tensorrt_api import api_for
from compiler_worker.builders.tensorrt_builder import TIMINGS, keep_timing_cache, use_timing_cache
from services.contracts.errors import InvalidRecipeError
from services.contracts.hardware.facts import Generation
from services.contracts.hardware.kinds import EngineKind
from services.contracts.model.recipe import Recipe
from services.engines.tensorrt_runtime import Messages

trt = pytest.importorskip("tensorrt_rtx", reason="install tensorrt-rtx-cu13")
ASKED = "tensorrt: {optimization_level: 5, workspace_gib: 0.5}"


def config_for(options: dict[str, str]) -> Any:
    return api_for(Generation.parse("cuda-sm89")).session(Messages(), options).config


@pytest.fixture
def deprecated() -> Iterator[None]:
    """tensorrt_rtx says of its timing cache that it does nothing; its calls are the same."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        yield


def test_a_recipe_chooses_level_and_workspace() -> None:
    options = Recipe.from_yaml(ASKED).builder_options(EngineKind.TENSORRT)
    assert options == {"optimization_level": "5", "workspace_gib": "0.5"}
    config = config_for(options)
    assert config.builder_optimization_level == 5
    assert config.get_memory_pool_limit(trt.MemoryPoolType.WORKSPACE) == 2**29


def test_without_a_wish_nothing_enters_the_key() -> None:
    assert Recipe().builder_options(EngineKind.TENSORRT) == {}
    assert Recipe.from_yaml(ASKED).builder_options(EngineKind.INDUCTOR) == {}
    assert config_for({}).builder_optimization_level == 3


def test_a_level_that_there_is_not_is_refused() -> None:
    with pytest.raises(InvalidRecipeError, match="optimization_level"):
        Recipe.from_yaml("tensorrt: {optimization_level: 6}")


@pytest.mark.usefixtures("deprecated")
@pytest.mark.parametrize("known", [None, b"", b"no timings at all"])
def test_timings_are_kept_and_bad_ones_ignored(tmp_path: Path, known: bytes | None) -> None:
    if known is not None:
        (tmp_path / TIMINGS).write_bytes(known)
    config = config_for({})
    use_timing_cache(config, tmp_path)
    assert config.get_timing_cache() is not None
    keep_timing_cache(config, tmp_path)
    assert len((tmp_path / TIMINGS).read_bytes()) > len(known or b"")
    assert [path.name for path in tmp_path.iterdir()] == [TIMINGS]


def test_a_build_ahead_of_time_has_no_timings(tmp_path: Path) -> None:
    config = config_for({})
    use_timing_cache(config, None)
    keep_timing_cache(config, None)
    assert list(tmp_path.iterdir()) == []
