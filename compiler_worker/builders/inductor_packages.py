"""AOTInductor: one package per CPU engine, for the whole box around its buckets."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compiler_worker.builders.base import BuildOutput, BuildPlan
from compiler_worker.builders.cached_cxx import launcher
from compiler_worker.builders.graphs import export_dynamic, fx_graph
from compiler_worker.fx_rewrites.names import rewrites_for
from compiler_worker.progress import Progress
from services.engines.compile_cache import keep_headers_in_cache
from services.engines.inductor_package import PACKAGE
from services.engines.shapes import union_of

if TYPE_CHECKING:
    from torch import fx
    from torch.export import ExportedProgram

CXX = "g++"


def build_package(
    plan: BuildPlan, config: Mapping[str, Any], workspace: Path, progress: Progress
) -> BuildOutput:
    """Import, export with dynamic dimensions, compile to a package with its weights inside."""
    import torch
    from torch._inductor import aoti_compile_and_package

    from compiler_worker.fx_rewrites.rewrite import rewritten

    progress("importing the master")
    module = fx_graph(plan.master_path, plan.key.precision)
    progress("exporting with dynamic dimensions")
    program = _exported(plan, module)
    progress("rewriting the graph")
    program = rewritten(program, rewrites_for("cpu"), lambda graph: _exported(plan, graph)).program
    progress("compiling C++")
    target = workspace / PACKAGE
    keep_headers_in_cache()
    settings = {**config, **_compiler(plan.compile_cache)}
    # With gradients, Inductor gives oneDNN no weights to arrange beforehand: products took 1.2 to
    # 2.1 times as long (MiniLM fp32 at 1x16 and 8x128, 2 threads, torch 2.13).
    with torch.no_grad():
        aoti_compile_and_package(program, package_path=str(target), inductor_configs=settings)
    return BuildOutput(files={PACKAGE: target}, needs_master=False)


def _compiler(compile_cache: Path | None) -> dict[str, Any]:
    """The setting by which torch finds the compiler: one that remembers, with a cache."""
    return {} if compile_cache is None else {"cpp.cxx": (None, str(launcher(compile_cache, CXX)))}


def _exported(plan: BuildPlan, module: "fx.GraphModule") -> "ExportedProgram":
    return export_dynamic(module, plan.master.inputs, union_of(plan.key.buckets))
