"""Engines of one artifact for each bucket, at its largest sizes: what kinds have in common.

Weights are arguments of an artifact. Those that are the master's own, up to a cast, or several of
them side by side, are named in the index and read from the master at load; the others (constants
that the typed graph made, convolutions with a normalisation folded in) are files of the engine.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from torch.export import ExportedProgram

from compiler_worker.builders.base import BuildResult, BuildSpec
from compiler_worker.builders.graphs import export_static
from compiler_worker.builders.weight_sorter import WeightSorter
from compiler_worker.fx_rewrites.rewrite import Rewritten, rewritten
from compiler_worker.progress import Progress
from services.engines.artifacts.artifact_index import (
    CONSTANTS,
    INDEX,
    ArtifactIndex,
    BucketArtifact,
)

# Writes an artifact of a program to a file; its weight arguments by name, in order.
Compile = Callable[[Rewritten, Path], Mapping[str, torch.Tensor]]


def build_buckets(
    plan: BuildSpec,
    module: torch.fx.GraphModule,
    rewrites: Sequence[str],
    compile_bucket: Compile,
    workspace: Path,
    progress: Progress,
    *,
    device: str,
) -> BuildResult:
    """Rewrite and compile every bucket, and write the index.

    Args:
        plan: what to build.
        module: the imported graph.
        rewrites: names of those that are applied to each bucket's program.
        compile_bucket: called for each bucket.
        workspace: where the artifacts, the index and the engine's own constants are written.
        progress: called with each step in words.
        device: of torch, that the programs are exported for.
    """
    sorter = WeightSorter(plan.master_path)
    artifacts = []
    for number, bucket in enumerate(plan.key.buckets):
        progress(f"compiling for {bucket.label}")
        # One shape: smaller requests are padded to it.
        sizes = {name: dim.max for name, dim in bucket.dims.items()}

        def export(
            graph: torch.fx.GraphModule, sizes: Mapping[str, int] = sizes
        ) -> ExportedProgram:
            return export_static(graph, plan.master.inputs, dict(sizes), device)

        found = rewritten(export(module), rewrites, export)
        file = f"bucket{number}.bin"
        weights = compile_bucket(found, workspace / file)
        refs = tuple(sorter.ref(n, w, found.joined.get(n, ())) for n, w in weights.items())
        artifacts.append(BucketArtifact(file=file, bucket=bucket, weights=refs))
    sorter.save(workspace / CONSTANTS)
    index = ArtifactIndex(artifacts=tuple(artifacts), pads=plan.key.pads)
    (workspace / INDEX).write_bytes(index.canonical_json())
    files = {path.name: path for path in sorted(workspace.iterdir())}
    return BuildResult(files=files, needs_master=True)
