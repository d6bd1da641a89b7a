"""All that the store holds of one model version, by generation, as plain data."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from compiler_worker.measures.accuracy_words import distances
from services.cli.advise.advise import Advised, devices_of, model_advice, proven_speeds
from services.cli.fleet.control_client import fleet_on_store
from services.cli.planning.plan_profile import DeviceOffer
from services.cli.report.roofline_points import roofline_points
from services.cli.settings import CliSettings
from services.cli.why.why import with_precisions
from services.contracts.builds.build_record import BuildRecord
from services.contracts.hardware.facts import DeviceFacts
from services.contracts.model.document import Document
from services.contracts.model.manifest import ModelVersion, Proof, PublishedEngine, Timing
from services.contracts.registry.registry import Registry
from services.contracts.selection.joint_order import engine_history
from services.contracts.selection.joint_run import JointRun
from services.contracts.selection.speed_gate import deciding
from services.controller.explain.proof_words import proof_words
from services.controller.explain.why_cases import explained_cases

_FIGURES = {"p50_s", "p95_s", "throughput", "peak_memory_bytes"}


def report_document(
    settings: CliSettings,
    registry: Registry,
    version: ModelVersion,
    offers: Mapping[str, DeviceOffer],
) -> dict[str, Any]:
    """Every generation that is planned, serves or has engines; without any, this host's.

    Args:
        settings: name the store and, where one runs on it, the fleet.
        registry: of the store.
        version: of the model.
        offers: prices by generation.

    Raises:
        StoreError: its samples are encrypted with a key that is not given.
    """
    own = Advised(registry, version, is_sampled=True)
    names = (each for each in registry.model_names() if each != version.name)
    others = [Advised(registry, registry.model_version(e), is_sampled=False) for e in names]
    found = explained_cases(
        registry, version, "", fleet_on_store(settings), settings.store_url, settings.trust_root
    )
    cases = {case["generation"]: with_precisions(case, version) for case in found}
    engines = registry.engines(version.master.digest)
    proven_on = [each.proof.device for each in engines if each.proof.device]
    devices = devices_of([own]) if cases or not engines else {}
    devices |= {each.generation: each for each in proven_on}
    advice = model_advice(own, devices, proven_speeds([own, *others]))
    generations = []
    for each in sorted(cases.keys() | devices.keys()):
        here = [engine for engine in engines if engine.manifest.key.generation == each]
        device = devices.get(each)
        generations.append(
            {
                "generation": each,
                "price_per_h": offers[each].price_per_h if each in offers else None,
            }
            | _generation(registry, own, cases.get(each), here, device)
            | {"advice": next((a for a in advice["generations"] if a["generation"] == each), None)}
        )
    return {
        "model": version.name,
        "version": version.version,
        "created_at": version.created_at,
        "source": version.source,
        "master": version.master.digest,
        "advice": advice | {"generations": []},
        "has_prices": bool(offers),
        "generations": generations,
    }


def _generation(
    registry: Registry,
    own: Advised,
    case: dict[str, Any] | None,
    engines: Sequence[PublishedEngine],
    device: DeviceFacts | None,
) -> dict[str, Any]:
    """What is known on one of them.

    Args:
        registry: of the store.
        own: the version.
        case: as `smelt why` has it; None where nothing is planned.
        engines: for the generation.
        device: one of it; None when none is known.
    """
    planned = [key["digest"] for key in case["planned"]] if case else []
    by_digest = {each.digest: each for each in engines}
    # The best first, and what is not planned any more last.
    digests = list(dict.fromkeys([*planned, *by_digest]))
    records = {each: registry.build_records(each) for each in digests}
    published = [by_digest[each] for each in digests if each in by_digest]
    runs = registry.joint_runs(own.version.master.digest)
    sides = list(_sides(published, runs))
    proofs = [_proof(by_digest.get(each), records[each], own.version) for each in digests]
    return {
        "why": case,
        "sides": sides,
        "proofs": [each for each in proofs if each],
        "builds": [
            _build(record, digest, by_digest.get(digest))
            for digest, attempts in records.items()
            for record in attempts
        ],
        "roofline": roofline_points(own.proto, sides, device) if device else None,
    }


def _sides(
    engines: Iterable[PublishedEngine], runs: Sequence[JointRun]
) -> Iterator[dict[str, Any]]:
    """Eager and the fallback as they were timed beside the first engine, and every engine."""
    is_first = True
    for each in engines:
        generation = each.manifest.key.generation
        timings = deciding(engine_history(each, generation, runs))
        if not timings:
            continue
        source = _source(each, timings, runs)
        key = each.manifest.key
        if is_first:
            beside = source | {"precision": "fp32", "digest": ""}
            eager = [(t, t.eager) for t in timings if t.eager]
            fallback = [(t, t.fallback) for t in timings if t.fallback]
            yield {"name": "eager", "shapes": [_shape(t, side) for t, side in eager]} | beside
            yield {"name": "fallback", "shapes": [_shape(t, side) for t, side in fallback]} | beside
        is_first = False
        shapes = [_shape(t, t) for t in timings]
        name = f"{key.kind} {key.precision}"
        own = {"precision": key.precision.value, "digest": each.digest}
        yield {"name": name, "shapes": shapes} | source | own


def _shape(timing: Timing, side: Document) -> dict[str, Any]:
    where = {"bucket": timing.bucket, "sizes": timing.sizes}
    return where | dict.fromkeys(_FIGURES) | side.model_dump(include=_FIGURES)


def _source(
    engine: PublishedEngine, timings: Sequence[Timing], runs: Sequence[JointRun]
) -> dict[str, Any]:
    """Where an engine's timings are from: the run that counts, or its proof."""
    mine = (run for run in reversed(runs) if engine.digest in run.digests)
    run = next((each for each in mine if each.timings(engine.digest) == timings), None)
    measured = run or engine.proof
    return {
        "measured_by": "joint run" if run else "proof",
        "measured_at": measured.created_at,
        "device": measured.device.name if measured.device else "",
        "fallback": measured.fallback,
    }


def _proof(
    engine: PublishedEngine | None, records: Sequence[BuildRecord], version: ModelVersion
) -> dict[str, Any] | None:
    """An engine's newest proof, or the one that the last attempt at it failed; None without one."""
    failed = [each for each in records if each.proof]
    if engine:
        key, proof = engine.manifest.key, engine.proof
    elif failed and failed[-1].proof:
        key, proof = failed[-1].key, failed[-1].proof
    else:
        return None
    limits = distances(key.precision, version.recipe)
    return {
        "digest": key.digest(),
        "name": f"{key.kind} {key.precision}",
        "device": proof.device.name if proof.device else "",
        "words": proof_words(proof),
        "checks": list(_checks(proof, limits)),
        "power": [each.model_dump(mode="json") for each in proof.power],
    } | proof.model_dump(
        mode="json", include={"outcome", "reason", "samples", "duration_s", "created_at"}
    )


def _checks(proof: Proof, limits: Mapping[str, float]) -> Iterator[dict[str, Any]]:
    """What was measured beside what is allowed, of distances the largest over all shapes."""
    for output in dict.fromkeys(each.output for each in proof.checks):
        checks = [each for each in proof.checks if each.output == output]
        fault = next((each.fault for each in checks if each.fault), "")
        allowed = proof.worst.allowed.get(output) if proof.worst else None
        for name, limit in (allowed.model_dump(include=set(limits)) if allowed else limits).items():
            yield _check(output, name, max(getattr(e, name) for e in checks), limit, fault)
    for column in proof.columns:
        yield _check(column.output, "column", column.column, column.column_bound, column.fault)
        yield _check(column.output, "gain", column.gain, column.gain_bound, column.fault)
    for each in proof.agreements:
        yield _check(each.output, "agreement", each.share, each.bound, each.fault)
    for task in proof.tasks:
        fault = "" if task.is_passed else task.detail or "missed"
        yield _check(task.name, "task", task.value, task.bound, fault)


def _check(what: str, measure: str, found: float, limit: float, fault: str) -> dict[str, Any]:
    return {"what": what, "measure": measure, "found": found, "limit": limit, "fault": fault}


def _build(record: BuildRecord, digest: str, engine: PublishedEngine | None) -> dict[str, Any]:
    proof = record.proof or (engine.proof if engine and record.outcome.is_good else None)
    return {
        "digest": digest,
        "name": f"{record.key.kind} {record.key.precision}",
        "device": proof.device.name if proof and proof.device else "",
        "toolchain": record.key.toolchain,
    } | record.model_dump(
        mode="json", include={"outcome", "stage", "reason", "stage_durations_s", "started_at"}
    )
