"""`smelt engines`: published engines with their proof and speed."""

from collections.abc import Sequence
from typing import Any

from services.cli.output import megabytes, milliseconds, print_json, print_table
from services.cli.registry import open_registry
from services.cli.settings import CliSettings
from services.contracts.manifest import ProofOutcome, PublishedEngine
from services.contracts.registry import Registry
from services.contracts.selection import fastest_first, mean_speedup

COLUMNS = (
    "generation", "kind", "precision", "proof", "p50", "speed-up", "size", "build", "engine",
)  # fmt: skip
_PROOF_WORDS = {
    ProofOutcome.PASSED: "proven",
    ProofOutcome.FAILED: "failed",
    ProofOutcome.NOT_RUN: "built, not proven",
}


def run_engines(settings: CliSettings, model: str, *, as_json: bool) -> None:
    """Print the engines of one model's newest version, or of all masters.

    Raises:
        NotFoundError: no such model.
    """
    registry = open_registry(settings)
    if as_json:
        print_json(engines_document(registry, model))
        return
    for name in [model] if model else registry.model_names():
        version = registry.model_version(name)
        print_engines(f"{name} version {version.version}", registry.engines(version.master.digest))


def engines_document(registry: Registry, model: str) -> dict[str, Any]:
    """Masters in use, each with all of its engines: full key, manifest and newest proof."""
    names = [model] if model else registry.model_names()
    masters: dict[str, dict[str, Any]] = {}
    for version in (registry.model_version(name) for name in names):
        digest = version.master.digest
        entry = masters.setdefault(
            digest,
            {
                "digest": digest,
                "models": [],
                "engines": [e.model_dump(mode="json") for e in registry.engines(digest)],
            },
        )
        entry["models"].append({"name": version.name, "version": version.version})
    return {"masters": list(masters.values())}


def print_engines(title: str, engines: Sequence[PublishedEngine]) -> None:
    """The table of engines by generation, in the order in which a replica tries them."""
    ordered = sorted(fastest_first(engines), key=lambda e: e.manifest.key.generation)
    print_table(f"Engines of {title}", COLUMNS, [_row(engine) for engine in ordered])


def _row(engine: PublishedEngine) -> tuple[str, ...]:
    key, timings = engine.manifest.key, engine.proof.timings
    smallest = min(timings, key=lambda t: t.p50_s, default=None)
    return (
        key.generation,
        key.kind.value,
        key.precision.value,
        _PROOF_WORDS[engine.proof.outcome],
        milliseconds(smallest.p50_s) if smallest else "-",
        f"{mean_speedup(engine):.2f}x" if timings else "-",
        megabytes(engine.manifest.num_bytes),
        f"{engine.manifest.build_duration_s:.1f} s",
        engine.digest[:12],
    )
