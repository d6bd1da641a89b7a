"""`smelt engines`: published engines with their proof and speed."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, groupby
from typing import Any

from services.cli.output.show import OUTPUT_FORM, print_json, show, times
from services.cli.registry import open_registry
from services.cli.settings import CliSettings
from services.contracts.model.manifest import ModelVersion, ProofOutcome, PublishedEngine
from services.contracts.registry.registry import Registry
from services.contracts.selection.joint_order import deciding_timings
from services.contracts.selection.joint_run import JointRun
from services.contracts.selection.own_engines import own_engines
from services.contracts.selection.selection import (
    GATED,
    fastest_first,
    gate_reason,
    joint_order_of,
    mean_speedup,
    recipe_fault,
)
from services.contracts.selection.speed_gate import (
    is_wild,
    rejection_reason,
    speed_over_fallback,
)
from services.contracts.text.durations import milliseconds
from services.contracts.text.text_table import Table
from services.contracts.text.words import readable_size
from services.controller.explain.running_builds import running_builds, running_builds_text

COLUMNS = ("kind", "proof", "p50", "x eager", "x fallback", "size", "build", "engine")
_PROOF_WORDS = {
    ProofOutcome.PASSED: "proven",
    ProofOutcome.FAILED: "failed",
    ProofOutcome.NOT_RUN: "not proven",
}


def run_engines(settings: CliSettings, model: str) -> None:
    """Print the engines of one model's newest version, or of all masters.

    Raises:
        NotFoundError: no such model.
    """
    registry = open_registry(settings)
    if OUTPUT_FORM.get().as_json:
        print_json(engines_document(registry, model))
        return
    names = [model] if model else registry.model_names()
    builds = running_builds_text(running_builds(registry, names))
    show(None, chain(engines_text(registry, names), builds))


def engines_document(registry: Registry, model: str) -> dict[str, Any]:
    """Masters in use, each with all of its engines: full key, manifest and newest proof.

    A model's `engines` are the digests of those that are for its recipe; what `other_recipe`
    holds was built of the same master for another one, and never serves this version; nor does
    what `slower_than_fallback` holds now, nor `not_measurable` unless it did before.

    Raises:
        NotFoundError: no such model.
    """
    names = [model] if model else registry.model_names()
    masters: dict[str, dict[str, Any]] = {}
    for version in (registry.model_version(name) for name in names):
        digest = version.master.digest
        engines = registry.engines(digest)
        runs = registry.joint_runs(digest)
        # Models may share a master: its engines are listed once.
        entry = masters.setdefault(
            digest,
            {
                "digest": digest,
                "models": [],
                "engines": [engine.model_dump(mode="json") for engine in engines],
                "joint_runs": [run.model_dump(mode="json") for run in runs],
            },
        )
        entry["models"].append(_model_document(version, engines, runs))
    return {"masters": list(masters.values()), "building": running_builds(registry, names)}


def _model_document(
    version: ModelVersion, engines: Sequence[PublishedEngine], runs: Sequence[JointRun]
) -> dict[str, Any]:
    faults = {engine.digest: recipe_fault(engine, version) for engine in engines}
    return {
        "name": version.name,
        "version": version.version,
        "engines": [digest for digest, fault in faults.items() if not fault],
        "other_recipe": {digest: fault for digest, fault in faults.items() if fault},
        **{
            reason.value: {
                e.digest: fault
                for e in engines
                if (fault := _rejection_reason(e, version, runs))
                and gate_reason(deciding_timings(e, runs)) is reason
            }
            for reason in GATED
        },
    }


def engines_text(registry: Registry, names: Iterable[str]) -> Iterator[str | Table]:
    """The engines of the newest version of models."""
    for version in map(registry.model_version, names):
        digest = version.master.digest
        engines = own_engines(registry, version)
        yield from _version_text(version, engines, registry.joint_runs(digest))


def _version_text(
    version: ModelVersion,
    engines: Sequence[PublishedEngine],
    runs: Sequence[JointRun],
) -> Iterator[str | Table]:
    """A table of engines for each generation, in the order in which a replica tries them.

    Those that another recipe asked for have tables of their own: they never serve this version.
    """
    faults = {engine.digest: recipe_fault(engine, version) for engine in engines}
    generations = sorted({engine.manifest.key.generation for engine in engines})
    here = {g: [e for e in engines if e.manifest.key.generation == g] for g in generations}
    joint = {
        g: joint_order_of((e for e in here[g] if not faults[e.digest]), g, runs)
        for g in generations
    }
    # By the joint run where there is one: figures of proofs are of different hours.
    by_speed = (e for g in generations for e in fastest_first(here[g], joint[g]))
    ordered = sorted(by_speed, key=lambda e: bool(faults[e.digest]))
    title = f"Engines of {version.name} version {version.version}"
    groups = groupby(ordered, lambda e: (bool(faults[e.digest]), e.manifest.key.generation))
    for (is_other, generation), group in groups:
        whose = " for another recipe" if is_other else ""
        rows = [_row(engine, runs) for engine in group]
        yield Table(f"{title} on {generation}{whose}", COLUMNS, rows, wide=("size", "build"))
    if not ordered:
        yield Table(title, COLUMNS, ())
    for generation, order in joint.items():
        if order.words:
            yield f"engines for {generation} were {order.words}: that run is their order"
    for engine in ordered:
        fault = "" if faults[engine.digest] else _rejection_reason(engine, version, runs)
        if fault:
            yield f"engine {engine.digest[:12]} is passed over: {fault}"


def _rejection_reason(
    engine: PublishedEngine, version: ModelVersion, runs: Sequence[JointRun]
) -> str:
    return rejection_reason(deciding_timings(engine, runs), version.recipe, version.name)


def _row(engine: PublishedEngine, runs: Sequence[JointRun]) -> tuple[str, ...]:
    key = engine.manifest.key
    timings = deciding_timings(engine, runs)
    num_bytes = engine.manifest.num_bytes
    smallest = min(timings, key=lambda t: t.p50_s, default=None)
    return (
        f"{key.kind} {key.precision}",
        _PROOF_WORDS[engine.proof.outcome],
        milliseconds(smallest.p50_s, decimals=2) + " ?" * is_wild(timings) if smallest else "-",
        times(mean_speedup(timings) if timings else None, is_wild=is_wild(timings)),
        times(speed_over_fallback(timings), is_wild=is_wild(timings)),
        readable_size(num_bytes) if num_bytes else "-",
        f"{engine.manifest.build_duration_s:.1f} s",
        engine.digest[:12],
    )
