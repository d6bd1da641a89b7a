"""What was added, for its owner."""

import math
from collections.abc import Iterator, Sequence

import yaml

from compiler_worker.builders.expected_speed import EXPECTED
from compiler_worker.inputs.integer_draws import undescribed
from compiler_worker.measures.accuracy_words import accuracy_words
from compiler_worker.model_checks.accepted_blindness import accepted_words
from compiler_worker.plans.graph_refusals import GraphOps, graph_refusal, ops_of_graph
from services.contracts.hardware.kinds import Precision
from services.contracts.kserve.tensors import strings_among
from services.contracts.model.default_buckets import dynamic_dims
from services.contracts.model.manifest import ModelVersion
from services.contracts.model.precisions import admitted_precisions
from services.contracts.model.recipe import Bucket
from services.contracts.registry.registry import Registry
from services.engines.shapes import ranges_text

_DYNAMIC = "for other sizes export it with dynamic ones (torch.onnx.export: dynamic_shapes)"


def added_words(registry: Registry, version: ModelVersion, *, has_sizes: bool) -> Iterator[str]:
    """What was added, how it is served, and how close its engines must be.

    Args:
        registry: has the version's graph.
        version: that was published.
        has_sizes: whether its owner names sizes.
    """
    master = version.master
    buckets = version.buckets
    # Those of trees are attributes of their ops.
    size = f": {master.num_parameters:,} parameters" if master.num_parameters else ""
    yield f"{version.name} version {version.version}{size}"
    yield from (f"input {name}: {values.words}" for name, values in master.input_values.items())
    yield from undescribed(master, version.recipe)
    if buckets[0].dims and not has_sizes:
        ranges = " or ".join(ranges_text(bucket.dims) for bucket in buckets)
        yield (
            f"serves {ranges}; for other sizes add it again with a recipe that has some: --recipe "
            f"FILE, as in {_as_recipe(buckets)}"
        )
    if not dynamic_dims(master.inputs):
        fixed = ", ".join(f"{each.name} {list(each.shape)}" for each in master.inputs)
        yield f"serves {fixed} alone: no dimension is dynamic; {_DYNAMIC}"
    yield from accuracy_words(version.recipe, built_precisions(registry, version))
    yield from accepted_words(version.recipe)
    if version.fallback_verdict:
        yield version.fallback_verdict.words


def _as_recipe(buckets: Sequence[Bucket]) -> str:
    line = {"buckets": [bucket.model_dump() for bucket in buckets]}
    return yaml.safe_dump(line, default_flow_style=True, sort_keys=False, width=math.inf).strip()


def built_precisions(registry: Registry, version: ModelVersion) -> tuple[Precision, ...]:
    """Those of the recipe that some kind of engine has for the version's graph, on some device.

    Args:
        registry: has the graph, which is not read where the importer takes it.
        version: with the verdict on that.
    """
    admitted = admitted_precisions(version.recipe, has_calibration=version.calibration is not None)
    verdict = version.fallback_verdict
    if verdict and not verdict.refused:
        return admitted
    import onnx

    graph = registry.materialise_graph(version.master)
    ops = ops_of_graph(onnx.load(graph, load_external_data=False))
    # Without a verdict other ops than those of ai.onnx are taken for what the importer refuses.
    refused = verdict.refused if verdict else ops.foreign
    known = _known(ops, version, refused) if refused else admitted
    return tuple(precision for precision in admitted if precision in known)


def _known(ops: GraphOps, version: ModelVersion, refused: str) -> set[Precision]:
    master = version.master
    if strings_among(master.inputs, master.outputs):
        return {Precision.FP32}
    return {
        row.precision
        for rows in EXPECTED.values()
        for row in rows
        if row.kind in version.recipe.kinds
        and not graph_refusal(row.kind, row.precision, master, lambda: ops, lambda: refused)
    }
