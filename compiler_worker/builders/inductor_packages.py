"""AOTInductor: one package per CPU engine, for the whole box around its buckets."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from compiler_worker.builders.base import BuildOutput, BuildPlan
from compiler_worker.builders.graphs import export_dynamic, fx_graph
from compiler_worker.progress import Progress
from services.engines.compile_cache import keep_headers_in_cache
from services.engines.inductor_package import PACKAGE
from services.engines.shapes import union_of


def build_package(
    plan: BuildPlan, config: Mapping[str, Any], workspace: Path, progress: Progress
) -> BuildOutput:
    """Import, export with dynamic dimensions, compile to a package with its weights inside."""
    from torch._inductor import aoti_compile_and_package

    progress("importing the master")
    module = fx_graph(plan.master_path, plan.key.precision)
    progress("exporting with dynamic dimensions")
    program = export_dynamic(module, plan.master.inputs, union_of(plan.key.buckets))
    progress("compiling C++")
    target = workspace / PACKAGE
    keep_headers_in_cache()
    aoti_compile_and_package(program, package_path=str(target), inductor_configs=dict(config))
    return BuildOutput(files={PACKAGE: target}, needs_master=False)
