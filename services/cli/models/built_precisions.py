"""Which precisions a version can have engines in at all, as far as its graph decides that."""

from compiler_worker.builders.expected_speed import EXPECTED
from compiler_worker.plans.graph_refusals import GraphOps, graph_refusal, ops_of_graph
from services.contracts.hardware.kinds import Precision
from services.contracts.kserve.tensors import strings_among
from services.contracts.model.manifest import ModelVersion
from services.contracts.model.precisions import admitted_precisions
from services.contracts.registry.registry import Registry


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
