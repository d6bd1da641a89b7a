"""The outcome of a build, as lines of text and as one document for programs."""

from typing import Any

from compiler_worker.building.pipeline import BuildReport
from compiler_worker.plans.plan_document import skipped_lines
from services.contracts.builds.build_key import BuildKey
from services.contracts.builds.build_record import BuildRecord
from services.contracts.model.manifest import Proof, PublishedEngine
from services.contracts.selection.joint_run import JointRun
from services.contracts.selection.selection import mean_speedup
from services.contracts.selection.speed_gate import is_wild, rejection_reason
from services.contracts.text.words import readable_ratio, worker_command


def report_document(report: BuildReport) -> dict[str, Any]:
    """Everything, as plain data."""
    return {
        "records": [record.model_dump(mode="json") for record in report.records],
        "up_to_date": [engine_document(engine) for engine in report.up_to_date],
        "skipped": [
            {"generation": plan.node_class.generation, **skipped.model_dump()}
            for plan in report.plans
            for skipped in plan.skipped
        ],
        "joint_runs": [run.model_dump(mode="json") for run in report.joint_runs],
    }


def report_lines(report: BuildReport, store_url: str) -> list[str]:
    """One line per engine or reason; `store_url` is for the commands among them."""
    return [
        *(_record_line(record, store_url) for record in report.records),
        *(engine_line(engine) for engine in report.up_to_date),
        *(line for plan in report.plans for line in skipped_lines(plan)),
        *(_joint_line(run, report) for run in report.joint_runs),
    ]


def engine_document(engine: PublishedEngine) -> dict[str, Any]:
    """A published engine as plain data."""
    return engine.model_dump(mode="json")


def engine_line(engine: PublishedEngine) -> str:
    """One line about a published engine."""
    timings = engine.proof.timings
    # An interval that wide decides nothing, and a number would be read as one that does.
    speedup = 0.0 if is_wild(timings) else mean_speedup(timings)
    words = (
        _proof_words(engine.proof),
        f"{readable_ratio(speedup)} x eager" if speedup else "",
        rejection_reason(timings),
    )
    facts = ", ".join(filter(None, words))
    return f"{_key_words(engine.manifest.key)} {engine.digest[:12]} {facts}"


def _record_line(record: BuildRecord, store_url: str) -> str:
    seconds = sum(record.stage_durations_s.values())
    words = record.reason or (rejection_reason(record.proof.timings) if record.proof else "")
    digest = record.key.digest()[:12]
    if record.proof and record.proof.worst:
        words += f"; its worst sample again: {worker_command(store_url, 'replay', digest)}"
    reason = f": {words}" if words else ""
    return f"{_key_words(record.key)} {digest} {record.outcome} in {seconds:.1f} s{reason}"


def _joint_line(run: JointRun, report: BuildReport) -> str:
    """The time of each engine where all ran in turns, the fastest first."""
    built = {record.key.digest(): record.key for record in report.records}
    known = built | {engine.digest: engine.manifest.key for engine in report.up_to_date}
    names = {digest: f"{key.kind} {key.precision} " for digest, key in known.items()}
    times = ", ".join(
        f"{names.get(digest, '')}{digest[:12]} {run.mean_s(digest) * 1e3:.3f} ms"
        for digest in sorted(run.digests, key=run.mean_s)
    )
    return f"{run.device.generation:<24} timed together: {times}"


def _proof_words(proof: Proof) -> str:
    return f"{proof.outcome}: {proof.reason}" if proof.reason else proof.outcome.value


def _key_words(key: BuildKey) -> str:
    return f"{key.generation:<24} {key.kind:<12} {key.precision}"
