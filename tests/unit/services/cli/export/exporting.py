"""The recipe of the exported model, what stands for its plans, and what runs commands."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from services.contracts.builds.build_key import BuildKey
from services.contracts.hardware.facts import DeviceFacts
from services.contracts.hardware.kinds import EngineKind, Precision
from services.contracts.model.manifest import EngineManifest, ModelVersion, Proof, ProofOutcome
from services.contracts.model.recipe import Recipe
from services.contracts.registry.registry import Registry
from services.contracts.terms import proof_terms

RECIPE = Recipe.from_yaml("""
buckets:
  - dims: {batch: {min: 1, opt: 2, max: 2}, sequence: {min: 1, opt: 8, max: 8}}
  - dims: {batch: {min: 1, opt: 4, max: 4}, sequence: {min: 1, opt: 16, max: 16}}
batching:
  max_delay_ms: 2.5
  max_queue: 50
  priority_levels: 2
  default_priority: 2
  default_queue_policy: {default_timeout_ms: 100}
  queue_policies: {1: {max_queue: 7}}
num_replicas: 2
response_cache: true
labels: [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p]
""")
Run = Callable[..., str]


def publish_plan(
    registry: Registry,
    version: ModelVersion,
    generation: str,
    outcome: ProofOutcome,
    folder: Path,
    **toolchain: str,
) -> str:
    """Publish what stands for a plan; its digest."""
    libraries = toolchain or {"tensorrt": "10.14"}
    key: dict[str, Any] = {
        "master_digest": version.master.digest,
        "kind": EngineKind.TENSORRT,
        "precision": Precision.FP32,
        "buckets": version.buckets,
        "proof_terms": proof_terms(version.recipe, Precision.FP32, version.samples),
        "generation": generation,
        "toolchain": libraries,
    }
    plan = folder / "engine.plan"
    plan.write_text(f"a plan for {generation} {outcome}")
    device = DeviceFacts(
        generation=generation, name="GPU", memory_gib=24, driver="1", toolchain=libraries
    )
    manifest = EngineManifest(
        key=BuildKey(**key),
        files={},
        inputs=version.master.inputs,
        outputs=version.master.outputs,
        needs_master=False,
        build_duration_s=1,
        created_at="2026-01-01T00:00:00+00:00",
    )
    is_run = outcome is not ProofOutcome.NOT_RUN
    proof = Proof(
        outcome=outcome,
        reason="" if outcome is ProofOutcome.PASSED else "as it is",
        device=device if is_run else None,
        created_at="2026-01-01T00:00:00+00:00",
    )
    return registry.publish_engine(manifest, {"engine.plan": plan}, proof).digest
