"""`smelt advise`: what to try first for a model, what to expect, and whether that came true."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from compiler_worker.plans.refusals import foreign_op, graph_refusal
from services.cli.advise.advice_text import advice_text, record_text
from services.cli.advise.expectation import Expectation, Graph, ProvenSpeed, expectations
from services.cli.advise.graph_features import graph_class, graph_remarks
from services.cli.advise.outcome import Proofs
from services.cli.advise.roofline import BucketWork, DevicePeak, bucket_work, device_peak
from services.cli.output.show import show
from services.cli.registry import open_registry
from services.cli.settings import CliSettings
from services.cli.sizes.bucket_advice import edges_of, waste
from services.cli.sizes.buckets import sampled_sizes
from services.contracts.builds.build_plan import BuildPlan
from services.contracts.hardware.facts import DeviceFacts, Generation
from services.contracts.hardware.kinds import EngineKind, Precision
from services.contracts.model.manifest import ModelVersion
from services.contracts.model.precisions import precisions_on
from services.contracts.registry.registry import Registry
from services.engines.device.device_probe import probe_device

# What a request of one caller takes beside its run: served_speed_h200.
_REQUEST_S = 0.6e-3
_SMALL = 0.1


class Advised:
    """One version: its graph, what a run of it has to do, and its proofs."""

    def __init__(self, registry: Registry, version: ModelVersion) -> None:
        """Read the graph, without its weights."""
        import onnx

        self.version = version
        path = registry.materialise_graph(version.master)
        self.proto = onnx.load(path, load_external_data=False)
        sampled = sampled_sizes(registry, version)
        self.seen = dict(sampled.dims) if sampled else {}
        self.works = {name: (s, bucket_work(self.proto, s)) for name, s in self._sizes().items()}
        usual = self.usual.flops_by_op
        self.graph = Graph(version.name, graph_class(usual), sum(usual.values()))
        self.proofs = Proofs(registry, version.master.digest)
        self.plans = registry.build_plans(version.name, version.version)

    @property
    def usual(self) -> BucketWork:
        """Of a run at the usual sizes."""
        return self.works["usual"][1]

    def _sizes(self) -> dict[str, dict[str, int]]:
        """Usual ones are medians of samples, else those that the first bucket is best at."""
        first, last = self.version.buckets[0].dims, self.version.buckets[-1].dims
        usual = {dim: span.opt for dim, span in first.items()}
        usual |= {dim: each.at_share(0.5) for dim, each in self.seen.items() if dim in usual}
        return {"usual": usual, "largest": {dim: span.max for dim, span in last.items()}}


def run_advise(
    settings: CliSettings, name: str, generation: str = "", *, as_json: bool, is_wide: bool = False
) -> None:
    """Print advice for a model, or how advice did for all models.

    Args:
        settings: of the command line.
        name: of the model; "" for the record over all.
        generation: only this one; "" for those that the store has plans for, or this host's.
        as_json: print one document in place of tables.
        is_wide: print all columns.

    Raises:
        NotFoundError: no such model.
        InvalidRequestError: that is no generation.
    """
    registry = open_registry(settings)
    names = dict.fromkeys([*([name] if name else []), *registry.model_names()])
    advised = {each: Advised(registry, registry.model_version(each)) for each in names}
    proven = [speed for each in advised.values() for speed in each.proofs.speeds(each.graph)]
    devices = _devices(advised.values(), generation)
    chosen = [advised[name]] if name else advised.values()
    documents = [advice_document(each, devices, proven) for each in chosen]
    if name:
        show(documents[0], advice_text(documents[0]), as_json=as_json, is_wide=is_wide)
    else:
        record = record_document(documents)
        show(record, record_text(record), as_json=as_json, is_wide=is_wide)


def _devices(advised: Iterable[Advised], generation: str) -> dict[str, DeviceFacts | None]:
    """By generation, the device that a plan was made on; None of one made elsewhere."""
    found: dict[str, DeviceFacts | None] = {}
    for plan in (plan for each in advised for plan in each.plans):
        where = plan.node_class.generation
        found[where] = plan.facts or found.get(where)
    if generation:
        return {str(Generation.parse(generation)): found.get(generation)}
    here = probe_device()
    return found or {here.generation: here}


def advice_document(
    advised: Advised, devices: Mapping[str, DeviceFacts | None], proven: Sequence[ProvenSpeed]
) -> dict[str, Any]:
    """Advice as plain data.

    Args:
        advised: the version.
        devices: by generation.
        proven: engines of the store.
    """
    version = advised.version
    traffic = {
        dim: {
            "p50": each.at_share(0.5),
            "largest": each.largest,
            "num_different": len(each.counts),
            "waste": waste(each, edges_of(version.buckets, dim) or [each.largest]),
        }
        for dim, each in sorted(advised.seen.items())
    }
    return {
        "model": version.name,
        "version": version.version,
        "num_ops": len(advised.proto.graph.node),
        "num_parameters": version.master.num_parameters,
        "class": advised.graph.graph_class,
        "flops_by_op": advised.usual.flops_by_op,
        "not_counted": advised.usual.not_counted,
        "traffic": traffic,
        "remarks": list(graph_remarks(advised.proto, version.master)),
        "generations": [
            _on_generation(advised, generation, facts, proven)
            for generation, facts in sorted(devices.items())
        ],
    }


def record_document(documents: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """How advice did where engines are proven."""
    rows = [
        {"model": document["model"], "class": document["class"], "generation": each["generation"]}
        | {"first": each["try"][0], "outcome": each["outcome"]}
        for document in documents
        for each in document["generations"]
        if each["outcome"]
    ]
    judged = [row["outcome"]["is_right"] for row in rows if row["outcome"]["is_right"] is not None]
    return {"num_right": sum(judged), "num_judged": len(judged), "models": rows}


def _on_generation(
    advised: Advised, generation: str, facts: DeviceFacts | None, proven: Sequence[ProvenSpeed]
) -> dict[str, Any]:
    parsed = Generation.parse(generation)
    plans = [p for p in advised.plans if p.node_class.generation == generation]
    plan = plans[-1] if plans else None
    found = expectations(advised.graph, parsed, proven)
    reasons = {each[:2]: _refusal(advised, parsed, plan, *each[:2]) for each in found}
    tried = [_beside_itself(advised, each) for each in found if not reasons[each[:2]]]
    outcome = advised.proofs.outcome(generation, tried[0], plan) if tried else None
    peak = device_peak(generation, facts.name if facts else "")
    precisions = dict.fromkeys((Precision.FP32, *(each.precision for each in tried[:1])))
    return {
        "generation": generation,
        "peak": peak.source if peak else "",
        "runs": [
            {"sizes": sizes, "flops": work.flops, "bytes": work.num_bytes}
            | {"least_s": {p: peak.least_s(work, p) if peak else None for p in precisions}}
            | {"limit": _limit(work, peak)}
            for sizes, work in advised.works.values()
        ],
        "try": [each._asdict() for each in tried],
        "left_out": [
            {"kind": kind, "precision": precision, "reason": reason}
            for (kind, precision), reason in reasons.items()
            if reason
        ],
        "remarks": list(_remarks(advised, peak, facts)),
        "outcome": outcome._asdict() if outcome else None,
    }


def _refusal(
    advised: Advised,
    generation: Generation,
    plan: BuildPlan | None,
    kind: EngineKind,
    precision: Precision,
) -> str:
    """Why an engine is not for a version; as its plan says where there is one."""
    version = advised.version
    recipe = version.recipe
    skipped = {(e.kind, e.precision): e.reason for e in plan.skipped} if plan else {}
    wanted = precisions_on(generation, recipe, has_calibration=version.calibration is not None)
    if reason := skipped.get((kind, precision)):
        return reason
    if kind not in recipe.kinds or precision not in wanted:
        return "the recipe leaves it out"
    refused = version.fallback_verdict.refused if version.fallback_verdict else ""
    return wanted[precision] or graph_refusal(
        kind, version.master, lambda: foreign_op(advised.proto), lambda: refused
    )


def _beside_itself(advised: Advised, each: Expectation) -> Expectation:
    """What to expect where torch cannot compute the model: ONNX Runtime is the fallback then."""
    verdict = advised.version.fallback_verdict
    if verdict is None or not verdict.refused or each.kind is not EngineKind.ONNXRUNTIME:
        return each
    return each._replace(low=1.0, middle=1.0, high=1.0, why="the fallback is ONNX Runtime too")


def _limit(work: BucketWork, peak: DevicePeak | None) -> str:
    """What a run in fp32 waits for."""
    if peak is None:
        return ""
    is_busy = work.flops / peak.flops_per_s[Precision.FP32] > work.num_bytes / peak.bytes_per_s
    return "products" if is_busy else "memory"


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
            f"a run needs {1000 * least_s:.1g} ms or somewhat more, the request around it "
            f"{1000 * _REQUEST_S:g} ms: engines change little that a client sees, and computing "
            "it in the client is quicker"
        )
