"""The master as an exported torch program: what a replica's fallback compiles.

Serving never imports the compiler, so the graph is handed over as a file.
"""

from collections.abc import Sequence
from pathlib import Path

from compiler_worker.builders.failures import build_errors, recorded_warnings
from compiler_worker.builders.graphs import export_dynamic, fx_graph
from compiler_worker.builders.typed_graphs import interface_inputs
from services.contracts.hardware.kinds import Precision
from services.contracts.model.recipe import Bucket
from services.engines.shapes import union_of


def export_program(master_path: Path, buckets: Sequence[Bucket], target: Path) -> None:
    """Write the fp32 graph with weights and dynamic dimensions to a `.pt2` file, whole or not.

    Dimensions are bounded by the buckets: torch proves that the graph holds for all of that box,
    which no compiled code checks any more.

    Args:
        master_path: the master's `model.onnx`.
        buckets: what is served; the union of their ranges bounds the dimensions.
        target: the `.pt2` file; replaced if it exists.

    Raises:
        UnsupportedGraphError: the graph holds something that is not translated.
        BuildError: torch.export failed; its message is included.
    """
    import torch

    module = fx_graph(master_path, Precision.FP32)
    with recorded_warnings(), build_errors("torch.export failed"):
        program = export_dynamic(module, interface_inputs(master_path), union_of(buckets))
        # torch.export.save warns of a name that does not end so.
        part = target.with_name(f".{target.name}.part.pt2")
        torch.export.save(program, part)
    # Renamed when complete, so that no replica reads half of it.
    part.replace(target)
