"""`smelt advise`: what to try first for a model, what to expect, and whether that came true."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from compiler_worker.builders.select import builder_for
from compiler_worker.plans.graph_refusals import graph_refusal, ops_of_graph
from services.cli.advise.advice_text import advice_text, least_ms, record_text
from services.cli.advise.expectation import Graph, ProvenSpeed, expectations, over_onnxruntime
from services.cli.advise.graph_features import graph_class, graph_remarks
from services.cli.advise.outcome import Proofs
from services.cli.advise.roofline import DevicePeak, bucket_work, device_peak
from services.cli.advise.timed_here import NOWHERE, TimedHere, timed_here
from services.cli.output.show import print_remark, show
from services.cli.registry import open_registry
from services.cli.settings import CliSettings
from services.cli.sizes.bucket_advice import edges_of, waste
from services.cli.sizes.buckets import sampled_sizes
from services.contracts.errors import SmeltError
from services.contracts.hardware.facts import DeviceFacts, Generation
from services.contracts.hardware.kinds import EngineKind, Precision
from services.contracts.model.manifest import ModelVersion
from services.contracts.model.precisions import precisions_on
from services.contracts.registry.registry import Registry
from services.contracts.selection.fallback_verdict import rounding_fault
from services.engines.device.device_probe import probe_device

# What a request of one caller takes beside its run: served_speed_h200.
_REQUEST_S = 0.6e-3
_SMALL = 0.1


class Advised:
    """One version: its graph, what a run of it has to do, its plans and proofs."""

    def __init__(self, registry: Registry, version: ModelVersion, *, is_sampled: bool) -> None:
        """Read the graph, without its weights.

        Args:
            registry: of the store.
            version: what is advised on.
            is_sampled: read the samples of its requests too.
        """
        import onnx

        self.version = version
        path = registry.materialise_graph(version.master)
        self.proto = onnx.load(path, load_external_data=False)
        sampled = sampled_sizes(registry, version) if is_sampled else None
        self.seen = dict(sampled.dims) if sampled else {}
        # Medians of samples, or else what the first bucket is best at.
        usual = {dim: span.opt for dim, span in version.buckets[0].dims.items()}
        usual |= {dim: each.at_share(0.5) for dim, each in self.seen.items() if dim in usual}
        largest = {dim: span.max for dim, span in version.buckets[-1].dims.items()}
        self.works = [(sizes, bucket_work(self.proto, sizes)) for sizes in (usual, largest)]
        self.usual = self.works[0][1]
        counted = graph_class(self.proto, self.usual.flops_by_op), self.usual.flops
        self.graph = Graph(version.name, version.master.digest, *counted)
        self.proofs = Proofs(registry, version.master.digest)
        self.plans = registry.build_plans(version.name, version.version)
        verdict = version.fallback_verdict
        # Where torch cannot compute it, ONNX Runtime is the fallback.
        self.refused = verdict.refused if verdict else ""
        self.untried = verdict.rounding_untried if verdict else ""


def run_advise(
    settings: CliSettings, name: str, generation: str = "", *, is_measured: bool = False
) -> None:
    """Print advice for a model, or how advice did for all models.

    Args:
        settings: of the command line.
        name: of the model; "" for the record over all.
        generation: only this one; "" for those that the store has plans for, or this host's.
        is_measured: engines that need no build are timed here, where this host is one of those.

    Raises:
        NotFoundError: no such model.
        InvalidRequestError: that is no generation, or this host has none to be measured.
        StoreError: samples are not what their window names.
    """
    registry = open_registry(settings)
    own = [Advised(registry, registry.model_version(name), is_sampled=True)] if name else []
    advised = [*own, *other_models(registry, name)]
    # Engines are a master's: one with two names counts once.
    by_master = {each.graph.master: each for each in reversed(advised)}
    masters = [each for each in advised if each is by_master[each.graph.master]]
    proven = [speed for each in masters for speed in each.proofs.speeds(each.graph)]
    devices = devices_of(advised, generation)
    chosen = own or masters
    versions = [each.version for each in chosen] if is_measured else []
    timed = timed_here(settings, registry, versions, devices) if versions else {}
    documents = [
        model_advice(each, devices, proven, timed.get(each.graph.master, {})) for each in chosen
    ]
    document = documents[0] if name else record_document(documents)
    text = advice_text(document) if name else record_text(document)
    show(document, text)


def other_models(registry: Registry, name: str) -> Iterator[Advised]:
    """Every model of the store but this one; those that cannot be read are remarks."""
    for each in registry.model_names():
        if each == name:
            continue
        try:
            yield Advised(registry, registry.model_version(each), is_sampled=False)
        except SmeltError as error:
            print_remark(f"{each} is skipped: {error}")


def devices_of(advised: Iterable[Advised], generation: str) -> dict[str, DeviceFacts | None]:
    """By generation, the device that a plan was made on; None of one made elsewhere."""
    found: dict[str, DeviceFacts | None] = {}
    for plan in (plan for each in advised for plan in each.plans):
        where = plan.node_class.generation
        found[where] = plan.facts or found.get(where)
    if generation:
        return {str(Generation.parse(generation)): found.get(generation)}
    here = probe_device()
    return found or {here.generation: here}


def model_advice(
    advised: Advised,
    devices: Mapping[str, DeviceFacts | None],
    proven: Sequence[ProvenSpeed],
    timed: Mapping[str, TimedHere] = NOWHERE,
) -> dict[str, Any]:
    """Advice as plain data.

    Args:
        advised: the version.
        devices: by generation.
        proven: engines of the store.
        timed: by generation, engines that need no build.
    """
    version = advised.version
    return {
        "model": version.name,
        "version": version.version,
        "num_ops": len(advised.proto.graph.node),
        "num_parameters": version.master.num_parameters,
        "class": advised.graph.graph_class,
        "flops_by_op": advised.usual.flops_by_op,
        "not_counted": advised.usual.not_counted,
        "traffic": {
            dim: {"p50": each.at_share(0.5), "largest": each.largest}
            | {"num_different": len(each.counts)}
            | {"waste": waste(each, edges_of(version.buckets, dim) or [each.largest])}
            for dim, each in sorted(advised.seen.items())
        },
        "remarks": [*graph_remarks(advised.proto, version.master), *_untried(advised)],
        "generations": [
            _on_generation(advised, generation, facts, proven, timed.get(generation, {}))
            for generation, facts in sorted(devices.items())
        ],
    }


def record_document(documents: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """How advice did where engines are proven."""
    rows = [
        {"model": document["model"], "generation": each["generation"]}
        | {"first": each["try"][0], "outcome": each["outcome"]}
        for document in documents
        for each in document["generations"]
        if each["outcome"]
    ]
    judged = [row["outcome"]["is_right"] for row in rows if row["outcome"]["is_right"] is not None]
    return {"num_right": sum(judged), "num_judged": len(judged), "models": rows}


def _on_generation(
    advised: Advised,
    generation: str,
    facts: DeviceFacts | None,
    proven: Sequence[ProvenSpeed],
    timed: TimedHere,
) -> dict[str, Any]:
    plans = [each for each in advised.plans if each.node_class.generation == generation]
    skipped = {(e.kind, e.precision): e.reason for e in plans[-1].skipped} if plans else {}
    # Without a plan nothing says yet what a host lacks; this one can be asked.
    is_here = not plans and generation == probe_device().generation
    left_out: dict[str, list[str]] = {}
    tried = []
    found = expectations(advised.graph, Generation.parse(generation), proven, timed)
    for each in over_onnxruntime(found) if advised.refused else found:
        kind, precision = each[:2]
        reason = skipped.get((kind, precision)) or _refusal(advised, generation, kind, precision)
        if is_here and not reason:
            reason = builder_for(kind).unavailable_reason(Generation.parse(generation), precision)
        if reason:
            left_out.setdefault(reason, []).append(f"{kind} {precision}")
        else:
            tried.append(each)
    # What promises less and may be proven stands before what is expected to be refused.
    fault_of = partial(rounding_fault, advised.version.fallback_verdict)
    tried.sort(key=lambda each: bool(fault_of(each.precision)))
    plan = plans[-1] if plans else None
    peak = device_peak(generation, facts.name if facts else "")
    precisions = dict.fromkeys((Precision.FP32, *(each.precision for each in tried[:1])))
    return {
        "generation": generation,
        "peak": peak.source if peak else "",
        "runs": [
            {"sizes": sizes, "flops": work.flops, "bytes": work.num_bytes}
            | {"least_s": {p: peak.least_s(work, p) if peak else None for p in precisions}}
            | {"limit": peak.limit(work) if peak else ""}
            for sizes, work in advised.works
        ],
        "try": [each._asdict() | {"rounding": fault_of(each.precision)} for each in tried],
        "left_out": left_out,
        "remarks": list(_remarks(advised, peak, facts)),
        "outcome": advised.proofs.outcome(generation, tried[0], plan) if tried else None,
    }


def _untried(advised: Advised) -> Iterator[str]:
    if advised.untried:
        yield f"whether rounding alone is refused was not tried of {advised.untried}"


def _refusal(advised: Advised, generation: str, kind: EngineKind, precision: Precision) -> str:
    """Why an engine is not for a version, as far as that is known without a plan."""
    version = advised.version
    has_set = version.calibration is not None
    where = Generation.parse(generation)
    wanted = precisions_on(where, version.recipe, has_calibration=has_set)
    if kind not in version.recipe.kinds or precision not in wanted:
        return "the recipe does not ask for it"
    return wanted[precision] or graph_refusal(
        kind,
        precision,
        version.master,
        lambda: ops_of_graph(advised.proto),
        lambda: advised.refused,
    )


def _remarks(advised: Advised, peak: DevicePeak | None, facts: DeviceFacts | None) -> Iterator[str]:
    """What the model's size says against it."""
    gib = 4 * advised.version.master.num_parameters / 2**30
    if facts and gib > facts.memory_gib:
        yield (
            f"Smelt is the wrong tool: weights of {gib:.0f} GiB in fp32, a device of "
            f"{facts.memory_gib} GiB, and a replica has one device"
        )
    least_s = peak.least_s(advised.usual, Precision.FP32) if peak else None
    if least_s is not None and least_s < _SMALL * _REQUEST_S:
        yield (
            f"a run needs {least_ms(least_s)} ms or somewhat more, the request around it "
            f"{1000 * _REQUEST_S:g} ms: engines change little that a client sees, and computing "
            "it in the client is quicker"
        )
