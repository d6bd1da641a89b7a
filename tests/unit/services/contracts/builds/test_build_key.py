"""The build key: one digest per identity, whatever the order or process; each field counts."""

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from services.contracts.builds.build_key import BuildKey
from services.contracts.hardware.kinds import EngineKind, Precision
from services.contracts.model.recipe import Bucket, DimRange

BUCKET = Bucket(dims={"batch": DimRange(min=1, opt=4, max=9)})
CHANGES: dict[str, Any] = {
    "master_digest": "b" * 64,
    "kind": EngineKind.INDUCTOR,
    "precision": Precision.BF16,
    "calibration_digest": "c" * 64,
    "proof_terms": "e" * 64,
    "buckets": (BUCKET,),
    "pads": {"input_ids": 1.0},
    "builder_options": {"optimization_level": "4"},
    "generation": "cuda-sm80",
    "device_name": "NVIDIA H100",
    "device_memory_gib": 79,
    "driver": "580.2",
    "toolchain": {"tensorrt": "10.15"},
    "plugin_digests": ("d" * 64,),
}
names = st.text("abcdefghij", min_size=1, max_size=4)
dims = st.dictionaries(names, st.just(DimRange(min=1, opt=2, max=3)), max_size=3)
keys = st.builds(
    BuildKey,
    master_digest=st.text("0123456789abcdef", min_size=64, max_size=64),
    kind=st.sampled_from(EngineKind),
    precision=st.sampled_from(Precision),
    buckets=st.lists(st.builds(Bucket, dims=dims), max_size=3).map(tuple),
    builder_options=st.dictionaries(names, st.text(), max_size=3),
    generation=st.sampled_from(["cuda-sm90", "cpu-x86_64-v3"]),
    toolchain=st.dictionaries(names, st.text(), max_size=3),
)


def reversed_deeply(value: Any) -> Any:
    """The same plain data with every mapping in the opposite order."""
    if isinstance(value, dict):
        return {key: reversed_deeply(each) for key, each in reversed(value.items())}
    if isinstance(value, list):
        return [reversed_deeply(each) for each in value]
    return value


@given(keys)
def test_the_order_of_fields_does_not_change_the_digest(key: BuildKey) -> None:
    other = BuildKey.model_validate_json(
        BuildKey(**reversed_deeply(key.model_dump(mode="json"))).model_dump_json()
    )
    assert other.digest() == key.digest()


@given(keys, keys)
def test_digests_are_equal_exactly_when_keys_are(first: BuildKey, second: BuildKey) -> None:
    assert (first.digest() == second.digest()) is (first == second)


@pytest.mark.parametrize("field", BuildKey.model_fields)
def test_every_field_changes_the_digest(make_key: Callable[..., BuildKey], field: str) -> None:
    changed = make_key(**{field: CHANGES[field]})
    assert changed.digest() != make_key().digest()


@pytest.mark.parametrize("field", BuildKey.model_fields)
def test_every_field_gives_its_reason(field: str) -> None:
    assert BuildKey.model_fields[field].description


def test_the_digest_is_the_same_in_another_process(make_key: Callable[..., BuildKey]) -> None:
    key = make_key(toolchain={"torch": "2.13.0", "triton": "3.7", "cuda": "13.0"})
    code = (
        "import sys; from services.contracts.builds.build_key import BuildKey\n"
        "print(BuildKey.from_json(sys.argv[1].encode()).digest())"
    )
    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", code, key.model_dump_json()],
            capture_output=True,
            text=True,
            check=True,
            env={"PYTHONHASHSEED": seed},
        )
        assert done.stdout.strip() == key.digest()


def test_a_digest_that_was_published_stays_what_it_was(make_key: Callable[..., BuildKey]) -> None:
    """A change here orphans every published engine: add fields with defaults only knowingly."""
    assert make_key().digest() == (
        "8424a3af0cccf2dc9a4979c8c79dc52fcaae77188f0141caa3f40fdb1e43518d"
    )


def test_nothing_else_enters_the_key(make_key: Callable[..., BuildKey]) -> None:
    with pytest.raises(ValidationError, match="hostname"):
        make_key(hostname="node-1")
