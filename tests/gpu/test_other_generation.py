"""Engines of another GPU generation are refused before any of their bytes are read."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from services.contracts.errors import EngineIncompatibleError
from services.contracts.hardware.facts import DeviceFacts
from services.contracts.hardware.kinds import EngineKind
from services.contracts.model.manifest import Proof, ProofOutcome, PublishedEngine
from services.contracts.selection.selection import FallbackReason, select
from services.engines.base import LoadSpec
from services.engines.inductor.inductor_engine import InductorEngine
from services.engines.loader import engine_class
from services.engines.tensorrt_engine import PLAN
from tests.conformance.tiny_model import draw_inputs
from tests.conformance.workshop import Published
from tests.gpu.cases import LOCAL

FOREIGN = "cuda-sm89" if LOCAL != "cuda-sm89" else "cuda-sm90"
RTX = {"tensorrt_rtx": "1.7.1.116"}


def with_key(spec: LoadSpec, **changes: object) -> LoadSpec:
    """The same engine under a key that differs."""
    key = spec.manifest.key.model_copy(update=changes)
    return replace(spec, manifest=spec.manifest.model_copy(update={"key": key}))


def foreign_inductor(spec: LoadSpec, folder: Path) -> LoadSpec:
    """Artifacts said to be of another SM; their bytes would end a loader that read them."""
    for name in spec.manifest.files:
        (folder / name).write_bytes(b"not to be read")
    return replace(with_key(spec, generation=FOREIGN), directory=folder)


def foreign_tensorrt(spec: LoadSpec, folder: Path) -> LoadSpec:
    """A plan of another SM, of a library that need not even be installed."""
    (folder / PLAN).write_bytes(b"not to be read")
    changes = {"generation": FOREIGN, "kind": EngineKind.TENSORRT, "toolchain": RTX}
    return replace(with_key(spec, **changes), directory=folder)


Forge = Callable[[LoadSpec, Path], LoadSpec]


@pytest.mark.parametrize("forge", [foreign_inductor, foreign_tensorrt])
def test_another_sm_is_refused_with_found_wanted_and_command(
    graphed: Published, device: DeviceFacts, tmp_path: Path, forge: Forge
) -> None:
    spec = forge(graphed.spec, tmp_path)
    key = spec.manifest.key
    with pytest.raises(EngineIncompatibleError) as caught:
        engine_class(key.kind).load(spec)
    assert str(caught.value) == (
        f"engine {key.digest()[:12]} of kind {key.kind} was built for {FOREIGN}, this device is "
        f"{device.generation}; build it: smelt build MODEL --generation {device.generation} "
        f"--kind {key.kind}"
    )


def test_a_refusal_leaves_the_device_usable(graphed: Published, tmp_path: Path) -> None:
    with pytest.raises(EngineIncompatibleError):
        InductorEngine.load(foreign_inductor(graphed.spec, tmp_path))
    engine = InductorEngine.load(graphed.spec)
    assert engine.run(draw_inputs(2, 3))["pooled"].shape[0] == 2
    engine.close()


@pytest.mark.parametrize("forge", [foreign_inductor, foreign_tensorrt])
def test_another_sm_is_passed_over_with_its_reason(
    graphed: Published, device: DeviceFacts, tmp_path: Path, forge: Forge
) -> None:
    manifest = forge(graphed.spec, tmp_path).manifest
    proof = Proof(
        outcome=ProofOutcome.PASSED,
        device=device.model_copy(update={"generation": FOREIGN}),
        created_at=manifest.created_at,
    )
    engine = PublishedEngine(digest=manifest.key.digest(), manifest=manifest, proof=proof)
    selection = select([engine], device)
    assert selection.engine is None
    assert selection.fallback_reason is FallbackReason.NO_ENGINE_FOR_GENERATION
    (rejection,) = selection.rejections
    assert rejection.detail == f"built for {FOREIGN}, this device is {device.generation}"
