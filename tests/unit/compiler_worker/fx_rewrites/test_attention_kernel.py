"""The attention kernel itself, in Triton's interpreter on the CPU, beside the plain mathematics."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from .interpreted_attention import (
    DTYPES,
    FORMS,
    LARGE_GRID,
    LAYOUT_SHAPE,
    LAYOUTS,
    NAN_PLACES,
    SIZES,
)

ROOT = Path(__file__).parents[4]
# Half a step of float16 near 2; sums of up to 70 products in float32.
MAX_DISTANCE = {"float16": 2e-3, "float32": 5e-6}
Told = dict[str, Any]


@pytest.fixture(scope="module")
def told() -> Told:
    """What a process tells that runs the kernel interpreted."""
    require_triton()
    command = [sys.executable, "-m", f"{__package__}.interpreted_attention"]
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run(
        command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found: Told = json.loads(done.stdout)
    return found


def require_triton() -> None:
    """Skip, saying what to install; under CI=true a missing Triton is a failure."""
    if importlib.util.find_spec("triton") is not None:
        return
    message = (
        "triton is not installed: `make test` installs it, or pip install -r requirements-dev.lock"
    )
    if os.environ.get("CI") == "true":
        pytest.fail(message)
    pytest.skip(message)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("form", FORMS)
def test_the_kernel_is_attention(told: Told, dtype: str, form: str) -> None:
    found = {sizes: told["distances"][f"{dtype}, {form}, {sizes}"] for sizes in SIZES}
    assert all(distance <= MAX_DISTANCE[dtype] for distance in found.values()), found


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_kernel_reads_the_operands_whatever_their_layout(told: Told, layout: str) -> None:
    assert told["distances"][f"float32, {layout}"] <= MAX_DISTANCE["float32"]


@pytest.mark.parametrize(("layout", "num_copies"), [("tokens", 0), ("mixed", 1), ("channels", 3)])
def test_what_lies_along_the_tokens_is_copied_and_nothing_else(
    told: Told, layout: str, num_copies: int
) -> None:
    assert told["copies"][layout] == [list(LAYOUT_SHAPE)] * num_copies


@pytest.mark.parametrize("place", NAN_PLACES)
def test_what_is_not_a_number_stays_none(told: Told, place: str) -> None:
    assert told["nan"][f"{place}, kernel"] == told["nan"][f"{place}, torch"]
    assert any(told["nan"][f"{place}, kernel"])


def test_any_number_of_heads_is_launched(told: Told) -> None:
    batch, heads, queries, block = LARGE_GRID
    assert batch * heads > 65_535
    first, *others = told["grid"]
    assert first == batch * heads * -(-queries // block)
    assert all(size <= 65_535 for size in others)
