"""The check before loading, as a table of what fits and what does not."""

from pathlib import Path

import pytest

from services.contracts.errors import EngineIncompatibleError
from services.contracts.hardware.facts import DeviceFacts
from services.contracts.hardware.kinds import EngineKind
from services.engines.base import LoadSpec
from services.engines.compatibility import refuse_incompatible
from tests.conformance.tiny_model import master_record
from tests.documents import small_key, small_manifest

TORCH = {"torch": "2.13.0+cpu"}


def spec_for(
    built_for: str,
    device: str,
    *,
    wanted: dict[str, str] | None = None,
    found: dict[str, str] | None = None,
    kind: EngineKind = EngineKind.INDUCTOR,
) -> LoadSpec:
    master = master_record()
    key = small_key(
        master_digest=master.digest,
        kind=kind,
        generation=built_for,
        toolchain=TORCH if wanted is None else wanted,
    )
    manifest = small_manifest(key, inputs=master.inputs, outputs=master.outputs, needs_master=True)
    facts = DeviceFacts(
        generation=device,
        name="a device",
        memory_gib=1,
        toolchain=TORCH if found is None else found,
    )
    return LoadSpec(
        manifest=manifest,
        master=master,
        directory=Path("nowhere"),
        master_path=Path("nowhere/model.onnx"),
        device=facts,
    )


@pytest.mark.parametrize(
    ("built_for", "device"),
    [
        ("cuda-sm90", "cuda-sm90"),
        ("cpu-x86_64-v3", "cpu-x86_64-v3"),
        ("cpu-x86_64-v3", "cpu-x86_64-amx"),
        ("cpu-aarch64-generic", "cpu-aarch64-generic"),
    ],
)
def test_fitting_generations_pass(built_for: str, device: str) -> None:
    refuse_incompatible(spec_for(built_for, device), EngineKind.INDUCTOR)


@pytest.mark.parametrize(
    ("built_for", "device"),
    [
        ("cuda-sm89", "cuda-sm90"),
        ("cuda-sm120", "cuda-sm121"),
        ("cpu-x86_64-avx512", "cpu-x86_64-v3"),
        ("cpu-x86_64-v3", "cuda-sm90"),
        ("cpu-x86_64-v3", "cpu-aarch64-generic"),
    ],
)
def test_other_generations_are_refused(built_for: str, device: str) -> None:
    with pytest.raises(EngineIncompatibleError, match=f"for {built_for}, this device is {device}"):
        refuse_incompatible(spec_for(built_for, device), EngineKind.INDUCTOR)


def test_the_message_names_the_command_that_mends_it() -> None:
    spec = spec_for("cuda-sm89", "cuda-sm90", kind=EngineKind.TENSORRT)
    with pytest.raises(EngineIncompatibleError) as caught:
        refuse_incompatible(spec, EngineKind.TENSORRT)
    digest = spec.manifest.key.digest()[:12]
    assert str(caught.value) == (
        f"engine {digest} of kind tensorrt was built for cuda-sm89, this device is cuda-sm90; "
        "build it: smelt build MODEL --generation cuda-sm90 --kind tensorrt"
    )


def test_a_kind_of_another_platform_is_not_proposed() -> None:
    spec = spec_for("cuda-sm89", "cpu-x86_64-v3", kind=EngineKind.TENSORRT)
    with pytest.raises(EngineIncompatibleError) as caught:
        refuse_incompatible(spec, EngineKind.TENSORRT)
    assert str(caught.value).endswith("smelt build MODEL --generation cpu-x86_64-v3")


@pytest.mark.parametrize(
    ("found", "shown"),
    [({"torch": "2.14.0+cpu"}, "2.14.0+cpu"), ({"torch": "2.13.0"}, "2.13.0"), ({}, "none")],
)
def test_other_library_versions_are_refused(found: dict[str, str], shown: str) -> None:
    spec = spec_for("cpu-x86_64-v3", "cpu-x86_64-v3", found=found)
    with pytest.raises(EngineIncompatibleError) as caught:
        refuse_incompatible(spec, EngineKind.INDUCTOR)
    assert f"was built with torch 2.13.0+cpu, this device has {shown}; build it" in str(
        caught.value
    )


def test_libraries_that_the_engine_does_not_need_do_not_matter() -> None:
    found = {**TORCH, "openvino": "1"}
    refuse_incompatible(
        spec_for("cpu-x86_64-v3", "cpu-x86_64-v3", found=found), EngineKind.INDUCTOR
    )


def test_an_engine_of_another_kind_is_refused() -> None:
    spec = spec_for("cpu-x86_64-v3", "cpu-x86_64-v3", kind=EngineKind.OPENVINO)
    with pytest.raises(EngineIncompatibleError, match="given to the loader of kind inductor"):
        refuse_incompatible(spec, EngineKind.INDUCTOR)
