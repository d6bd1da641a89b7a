"""The sections of a report, and below each where its figures are from."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from compiler_worker.measures.accuracy_words import distances
from services.cli.advise.advise import Advised
from services.cli.advise.roofline import BucketWork, bucket_work, device_peak
from services.cli.output.html_page import Chart, Element, Part
from services.cli.planning.plan_profile import DeviceOffer
from services.cli.report.engine_entries import EngineEntry, TimedSide, made
from services.contracts.hardware.facts import DeviceFacts
from services.contracts.hardware.kinds import Precision
from services.contracts.model.manifest import Proof, ProofOutcome, Timing
from services.contracts.model.recipe import Recipe
from services.contracts.text.durations import readable_duration
from services.contracts.text.text_table import Table
from services.contracts.text.words import readable_ratio, readable_size, readable_time
from services.controller.explain.proof_words import proof_words

# Over rows per second it is the hours of a million rows.
_MILLION_H = 1e6 / 3600


def ladder_parts(sides: Sequence[TimedSide], offer: DeviceOffer | None) -> Iterator[Part]:
    """Latency, rows/s, memory, kernels by size; hours of a million requests, or their price."""
    yield Element("h3", "Eager, fallback and engines")
    shapes = [(side, timing, figures) for side in sides for timing, figures in side.shapes]
    if not shapes:
        yield "No engine was timed."
        return
    labels = list(dict.fromkeys(_label(timing) for _, timing, _ in shapes))
    dims = " x ".join(shapes[0][1].sizes) or "bucket"
    for title, key, factor in (("Latency, p50 in ms", "p50_s", 1e3), ("Rows/s", "throughput", 1)):
        found = {s.name: {_label(t): factor * getattr(f, key) for t, f in s.shapes} for s in sides}
        lines = {name: [each.get(label) for label in labels] for name, each in found.items()}
        yield Chart(title, dims, lines, labels, is_log=True)
    price_per_h = offer.price_per_h if offer else 1.0
    unit = "" if offer else " h"
    rows = [
        (
            side.name,
            _label(timing),
            f"{1e3 * figures.p50_s:.2f}",
            f"{1e3 * figures.p95_s:.2f}",
            f"{figures.throughput:,.1f}",
            readable_size(figures.peak_memory_bytes) if figures.peak_memory_bytes else "-",
            side.kernels if timing is side.shapes[0][0] else "-",
            readable_ratio(price_per_h * _MILLION_H / figures.throughput) + unit,
        )
        for side, timing, figures in shapes
    ]
    columns = ("what", dims, "p50 ms", "p95 ms", "rows/s", "peak memory", "kernels", "cost")
    yield Table("By size", columns, rows)
    where = f"on a device for {price_per_h:g} an hour" if offer else "in hours of a device"
    if any(side.is_wild for side in sides):
        yield "?: timed while the machine was busy, so no figure of this line is sure."
    yield f"Cost: of a million requests of one row, {where}, busy all the time."


def _label(timing: Timing) -> str:
    return " x ".join(map(str, timing.sizes.values())) or timing.bucket


def sources(sides: Sequence[TimedSide]) -> str:
    """Where figures are from; of what was measured together, once."""
    names: dict[str, list[str]] = {}
    for side in sides:
        names.setdefault(side.source, []).append(side.name)
    return "; ".join(f"{', '.join(each)}: {source}" for source, each in names.items())


def accuracy_parts(entries: Sequence[EngineEntry], recipe: Recipe) -> Iterator[Part]:
    """Distances beside limits, what each proof could have seen, and why proofs failed."""
    yield Element("h3", "Accuracy")
    proofs = [(each.name, each.precision, each.proof) for each in entries if each.proof]
    for name, _, proof in proofs:
        if proof.outcome is not ProofOutcome.PASSED:
            outcome = proof.outcome.replace("_", " ")
            yield Element("p", f"{name}: proof {outcome}: {proof.reason}", "warning")
    columns = ("engine", "output or task", "measure", "found", "limit", "verdict")
    rows = [
        (name, what, measure, f"{value:.3g}", f"{limit:.3g}", fault or "passed")
        for name, precision, proof in proofs
        for what, measure, value, limit, fault in _checks(proof, distances(precision, recipe))
    ]
    yield Table("Distances to the reference", columns, rows)
    for name, _, proof in proofs:
        yield f"{name}: {proof_words(proof)}"
        yield Element("p", f"{name}: proof of {made(proof)}", "note")


def _checks(proof: Proof, limits: Mapping[str, float]) -> Iterator[tuple[Any, ...]]:
    """What was measured, found and allowed, and the fault; the largest distance of all shapes."""
    for output in dict.fromkeys(each.output for each in proof.checks):
        checks = [each for each in proof.checks if each.output == output]
        fault = next((each.fault for each in checks if each.fault), "")
        bounds = proof.worst.allowed.get(output) if proof.worst else None
        for name, limit in limits.items():
            allowed = getattr(bounds, name) if bounds else limit
            yield output, name, max(getattr(each, name) for each in checks), allowed, fault
    for c in proof.columns:
        yield c.output, "column", c.column, c.column_bound, c.fault
        yield c.output, "gain", c.gain, c.gain_bound, c.fault
    for a in proof.agreements:
        yield a.output, "agreement", a.share, a.bound, a.fault
    for task in proof.tasks:
        fault = "" if task.is_passed else task.detail or "missed"
        yield task.name, "task", task.value, task.bound, fault


def attempts_table(entries: Sequence[EngineEntry]) -> Table:
    """When each was built and proven, on which device, what its stages took, its files' size."""
    rows = []
    for name, _, engine, records in entries:
        num_bytes = engine.manifest.num_bytes if engine else None
        # ONNX Runtime and OpenVINO open the master.
        files = readable_size(num_bytes) if num_bytes else "the master's"
        size = "-" if num_bytes is None else files
        for record in records:
            # That of an attempt that went well is the engine's.
            proof = record.proof or (engine.proof if engine else None)
            device = proof.device.name if proof and proof.device else "-"
            stages = [f"{n} {readable_duration(s)}" for n, s in record.stage_durations_s.items()]
            toolchain = [" ".join(each) for each in record.key.toolchain.items()]
            outcome = f"{record.outcome.replace('_', ' ')} {record.reason}"
            texts = outcome, size, "\n".join(stages), device, "\n".join(toolchain)
            rows.append((name, readable_time(record.started_at), *texts))
    columns = ("engine", "began", "outcome", "files", "stages", "device", "toolchain")
    return Table("Builds and proofs", columns, rows)


def roofline_chart(own: Advised, sides: Sequence[TimedSide], device: DeviceFacts) -> Chart | None:
    """How near each comes to what the device reaches at most.

    Args:
        own: the version, with its graph.
        sides: that were timed.
        device: that they were timed on.

    Returns:
        None where the peak is not known, or the graph has no products.
    """
    peak = device_peak(device.generation, device.name)
    sizes = {timing.shape: timing.sizes for side in sides for timing, _ in side.shapes}
    works = {shape: bucket_work(own.proto, each) for shape, each in sizes.items()}
    lines = {
        side.name: [
            (work.intensity, work.flops / figures.p50_s / 1e9)
            for timing, figures in side.shapes
            if (work := works[timing.shape]).intensity
        ]
        for side in sides
    }
    found = [x for points in lines.values() for x, _ in points]
    if peak is None or not found:
        return None
    ridge = peak.flops_per_s[Precision.FP32] / peak.bytes_per_s
    low = min(*found, ridge) / 4
    high = max(*found, ridge) * 4
    steps = [low * (high / low) ** (i / 24) for i in range(25)]
    dots = list(lines)
    for precision in peak.flops_per_s:
        if any(precision in name.split() for name in ("fp32", *dots)):
            least = ((x, peak.least_s(BucketWork({"": x}, 1.0, {}), precision)) for x in steps)
            lines[f"roof in {precision}"] = [(x, x / s / 1e9) for x, s in least if s]
    return Chart("Roofline, GFLOP/s", "FLOPs of a byte, as bytes are in fp32", lines, dots=dots)
