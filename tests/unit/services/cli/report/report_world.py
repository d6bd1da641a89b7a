"""Stores with a real graph and made proofs, of which reports are written."""

from pathlib import Path
from typing import Any

from services.contracts.builds.build_record import BuildOutcome
from services.contracts.hardware.facts import DeviceFacts
from services.contracts.hardware.kinds import EngineKind, Precision
from services.contracts.hardware.node_class import NodeClass
from services.contracts.model.manifest import (
    OutputCheck,
    Proof,
    ProofOutcome,
    SideTiming,
    TaskCheck,
    Timing,
)
from services.contracts.model.recipe import Recipe
from services.contracts.registry.registry import Registry
from services.contracts.selection.proof_checks import AgreementCheck, ColumnCheck, PowerCheck
from services.contracts.store.object_store import open_store
from services.contracts.terms import proof_terms
from tests.conformance.tiny_model import master_record, save_master, tiny_model
from tests.unit.services.controller import build_world as world

MASTER = "c" * 64
SIZES = ({"batch": 1, "sequence": 16}, {"batch": 8, "sequence": 128})


def store_with_model(folder: Path) -> Registry:
    """Version 1 of model `m`, whose graph is there, without any engine."""
    store = open_store(str(folder / "store"))
    registry = Registry(store, folder / "cache")
    graph = store.put_blob(save_master(tiny_model(), folder))
    registry.add_model_version(
        name="m",
        master=master_record(MASTER).model_copy(update={"files": {"model.onnx": graph}}),
        recipe=Recipe(),
        source="m.onnx",
        source_fingerprint="0",
    )
    return registry


def add_generation(registry: Registry, generation: str, words: str = "too far off") -> None:
    """An engine that is proven and timed, one that failed its proof, and one that was not built.

    Args:
        registry: of the store.
        generation: for which they are.
        words: that stand wherever a store has text.
    """
    toolchain = {"openvino": f"2026.4 {words}"}
    device = DeviceFacts(
        generation=generation, name=f"Device {words}", memory_gib=64, toolchain=toolchain
    )
    version = registry.model_version("m")
    fields = {
        "master_digest": MASTER,
        "generation": generation,
        "buckets": version.buckets,
        "proof_terms": proof_terms(version.recipe, Precision.FP32, None),
    }
    proven, refused, broken = (
        world.key(kind, **fields | changes)
        for kind, changes in (
            (EngineKind.OPENVINO, {"toolchain": toolchain}),
            (EngineKind.INDUCTOR, {"precision": Precision.BF16}),
            (EngineKind.ONNXRUNTIME, {}),
        )
    )
    files = {"engine": Path(__file__)}
    registry.publish_engine(world.manifest(proven), files, _proof(device, words))
    failed = _proof(device, words, outcome=ProofOutcome.FAILED, reason=words, timings=())
    for record in (
        world.record(proven, BuildOutcome.PROVEN, stage_durations_s={"build": 2.0, "prove": 61.0}),
        world.record(refused, BuildOutcome.PROOF_FAILED, reason=words, proof=failed),
        world.record(broken, reason=f"no compiler: {words}"),
    ):
        registry.record_build(record)
    registry.write_plan(
        world.plan((proven, refused, broken), facts=device, node_class=NodeClass.from_facts(device))
    )


def _proof(device: DeviceFacts, words: str, **changes: Any) -> Proof:
    fault = words if changes else ""
    check = OutputCheck(
        bucket="b",
        sizes=SIZES[0],
        output=f"y {words}",
        rel_l2=3e-6,
        max_abs=4e-6,
        cosine_distance=5e-12,
        fault=fault,
    )
    fields: dict[str, Any] = {
        "device": device,
        "reference": f"eager {words}",
        "checks": (check, check.model_copy(update={"sizes": SIZES[1], "rel_l2": 7e-6})),
        "columns": (
            ColumnCheck(
                output="y",
                column=0.25,
                column_bound=0.5,
                place="",
                gain=0.125,
                gain_bound=0.75,
                num_rows=9,
            ),
        ),
        "agreements": (AgreementCheck(output="z", share=0.96875, bound=0.9, num_elements=32),),
        "tasks": (
            TaskCheck(name="overlap", value=0.875, bound=0.98, is_passed=False, detail=words),
        ),
        "power": (PowerCheck(output="y", refused=("sign flipped",), blind=(f"gain {words}",)),),
        "samples": {"full": 6, "given": 8},
        "notes": (words,),
        "fallback": f"as {words}",
        "kernels": {"eager": (31, "PyTorch"), "engine": (9, f"OpenVINO {words}")},
        "timings": tuple(_timing(sizes, 10.0**-i) for i, sizes in enumerate(reversed(SIZES))),
    }
    return world.proof(**fields | changes)


def _timing(sizes: dict[str, int], times: float) -> Timing:
    eager, fallback, engine = (
        SideTiming(
            p50_s=times * p50_s,
            p95_s=1.5 * times * p50_s,
            throughput=sizes["batch"] / (times * p50_s),
            peak_memory_bytes=num_bytes,
        )
        for p50_s, num_bytes in ((0.04, 50_000_000), (0.02, 80_000_000), (0.01, 70_000_000))
    )
    return Timing(
        bucket="b",
        sizes=sizes,
        eager_p50_s=eager.p50_s,
        eager=eager,
        fallback=fallback,
        **engine.model_dump(exclude={"ratio"}),
    )
