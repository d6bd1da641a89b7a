"""AOTInductor: one package per CPU engine, for the whole box around its buckets."""

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compiler_worker.builders.base import BuildResult, BuildSpec
from compiler_worker.builders.cached_cxx import launcher
from compiler_worker.builders.graphs import export_dynamic
from compiler_worker.builders.typed_graphs import planned_graph
from compiler_worker.fx_rewrites.names import rewrites_for
from compiler_worker.progress import Progress
from services.engines.caches.compile_cache import keep_headers_in_cache
from services.engines.inductor.inductor_package import PACKAGE
from services.engines.shapes import union_of

if TYPE_CHECKING:
    from torch import fx
    from torch.export import ExportedProgram

CXX = "g++"


def build_package(
    plan: BuildSpec, config: Mapping[str, Any], workspace: Path, progress: Progress
) -> BuildResult:
    """Import, export with dynamic dimensions, compile to a package with its weights inside.

    Args:
        plan: what to build.
        config: Inductor's options by name.
        workspace: where the package is written.
        progress: called with each step in words.
    """
    from compiler_worker.fx_rewrites.rewrite import rewritten
    from compiler_worker.onnx_to_fx import graph_module_from_onnx

    progress("importing the master")
    module = graph_module_from_onnx(planned_graph(plan))
    progress("exporting with dynamic dimensions")
    program = _exported(plan, module)
    progress("rewriting the graph")
    names = rewrites_for("cpu", plan.key.precision)
    program = rewritten(program, names, lambda graph: _exported(plan, graph)).program
    progress("compiling C++")
    target = workspace / PACKAGE
    compile_package(program, target, {**config, **_compiler(plan.compile_cache)})
    return BuildResult(files={PACKAGE: target}, needs_master=False)


def compile_package(program: "ExportedProgram", target: Path, config: Mapping[str, Any]) -> None:
    """Compile to a package, with our own passes and headers.

    Args:
        program: exported with its dynamic dimensions.
        target: the `.pt2` package to write.
        config: Inductor's options by name.
    """
    import torch
    from torch._inductor import aoti_compile_and_package

    from compiler_worker.builders.packed_convolutions import PackConvolutions

    keep_headers_in_cache()
    settings = {**config, "post_grad_custom_pre_pass": PackConvolutions()}
    # With gradients, Inductor gives oneDNN no weights to arrange beforehand: products took 1.2 to
    # 2.1 times as long (MiniLM fp32 at 1x16 and 8x128, 2 threads, torch 2.13).
    with torch.no_grad(), warnings.catch_warnings():
        # It is of torch's own lowering of int8 products, not of the engine.
        warnings.filterwarnings("ignore", message="To copy construct from a tensor")
        aoti_compile_and_package(program, package_path=str(target), inductor_configs=settings)


def _compiler(compile_cache: Path | None) -> dict[str, Any]:
    """The setting by which torch finds the compiler: one that remembers, with a cache."""
    return {} if compile_cache is None else {"cpp.cxx": (None, str(launcher(compile_cache, CXX)))}


def _exported(plan: BuildSpec, module: "fx.GraphModule") -> "ExportedProgram":
    return export_dynamic(module, plan.master.inputs, union_of(plan.key.buckets))
