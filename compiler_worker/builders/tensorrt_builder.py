"""Build half of kind `tensorrt`: a typed ONNX graph to a plan, one profile per bucket."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from compiler_worker.builders.base import Builder, BuildResult, BuildSpec
from compiler_worker.builders.failures import MAX_LOG_LINES, build_errors
from compiler_worker.builders.quantiser import quantiser_options
from compiler_worker.builders.tensorrt_api import BuildSession, TensorrtApi, api_for
from compiler_worker.builders.tensorrt_api import unavailable_reason as api_unavailable_reason
from compiler_worker.builders.tensorrt_graphs import (
    graph_file,
    has_any,
    lowered_file,
    precision_reason,
)
from compiler_worker.builders.typed_graphs import check_ranges
from compiler_worker.progress import Progress
from services.contracts.builds.build_key import BuildKey
from services.contracts.builds.compile_caches import CacheScope
from services.contracts.errors import BuildError
from services.contracts.hardware.facts import Generation
from services.contracts.hardware.kinds import Precision
from services.contracts.kserve.tensor_spec import TensorSpec
from services.contracts.model.recipe import Bucket
from services.contracts.store.kept_files import keep
from services.engines.shapes import shape_at, union_of
from services.engines.tensorrt_engine import PLAN
from services.engines.tensorrt_runtime import Messages

logger = logging.getLogger(__name__)

TIMINGS = "timing.cache"


class TensorrtBuilder(Builder):
    """Builder for GPUs: ahead of time with tensorrt_rtx, on the device with tensorrt."""

    is_ai_onnx_only = True

    def unavailable_reason(self, generation: Generation, precision: Precision) -> str:
        """Why this machine cannot build that engine, or ""."""
        return api_unavailable_reason(generation) or precision_reason(generation, precision)

    def options(self, generation: Generation, precision: Precision) -> dict[str, str]:
        """The target and the typing; precision itself is in the graph."""
        return {
            "target": f"SM{generation.major}{generation.minor}",
            "tf32": "off",
            "typing": "strong",
            **quantiser_options(precision),
        }

    def toolchain(self, generation: Generation) -> dict[str, str]:
        """The library that builds; a plan loads in the same version only."""
        api = api_for(generation)
        return {api.library: api.version}

    def is_device_bound(self, generation: Generation) -> bool:
        """Only plans that were tuned on the device."""
        return not api_for(generation).is_ahead_of_time

    def cache_scope(self, key: BuildKey) -> CacheScope | None:
        """One device's and driver's: the timings of kernels are kept."""
        return CacheScope(
            compiler=key.kind,
            generation=key.generation,
            device_name=key.device_name,
            device_memory_gib=key.device_memory_gib,
            driver=key.driver,
            toolchain=key.toolchain,
            flags=key.builder_options,
        )

    def _build(
        self, plan: BuildSpec, generation: Generation, workspace: Path, progress: Progress
    ) -> BuildResult:
        """Parse, add a profile per bucket, build.

        An op that TensorRT refuses although ONNX defines it by simpler ones is lowered to
        those, and the refusal becomes a finding.
        """
        check_ranges(plan.master.inputs, union_of(plan.key.buckets))
        api = api_for(generation)
        with build_errors(f"{api.library} failed"):
            graph = graph_file(plan, workspace)
            try:
                findings = _build_plan(api, plan, graph, workspace / PLAN, progress)
            except BuildError as refusal:
                # Nothing that a lowering would change: the refusal is of something else.
                if not has_any(graph):
                    raise
                progress(f"lowering what {api.library} refused")
                lowered = lowered_file(graph, workspace)
                findings = _build_plan(api, plan, lowered, workspace / PLAN, progress)
                findings = (f"built from a lowered graph, because: {refusal}", *findings)
        return BuildResult(files={PLAN: workspace / PLAN}, needs_master=False, findings=findings)


def _build_plan(
    api: TensorrtApi, plan: BuildSpec, graph: Path, target: Path, progress: Progress
) -> tuple[str, ...]:
    """Build one graph file into a plan file; the library's warnings.

    Raises:
        BuildError: with the library's message.
    """
    messages = Messages()
    session = api.session(messages, plan.key.builder_options)
    progress(f"parsing the graph for {plan.key.generation}")
    if not session.parser.parse_from_file(str(graph)):
        raise _refusal(api, "parse", [*_parser_errors(session), *messages.errors], messages)
    # One profile each: kernels are tuned for its typical sizes, and a replica picks the profile.
    for bucket in plan.key.buckets:
        session.config.add_optimization_profile(_profile(session, plan.master.inputs, bucket))
    progress(f"building with {api.library} {api.version} for {plan.key.generation}")
    # tensorrt_rtx times nothing when it builds ahead of time, and keeps nothing in such a cache.
    timings = None if api.is_ahead_of_time else plan.compile_cache
    use_timing_cache(session.config, timings)
    data = session.builder.build_serialized_network(session.network, session.config)
    if data is None:
        raise _refusal(api, "build", messages.errors, messages)
    target.write_bytes(data)
    keep_timing_cache(session.config, timings)
    return tuple(messages.warnings)


def _refusal(api: TensorrtApi, step: str, errors: Sequence[str], messages: Messages) -> BuildError:
    reason = errors[0] if errors else "no reason was given"
    tail = (*messages.warnings, *errors)[-MAX_LOG_LINES:]
    return BuildError(
        f"{api.library} {api.version} refused to {step} for {api.generation}: {reason}",
        log_tail=tail,
    )


def _parser_errors(session: BuildSession) -> list[str]:
    return [str(session.parser.get_error(i)) for i in range(session.parser.num_errors)]


def _profile(session: BuildSession, inputs: Sequence[TensorSpec], bucket: Bucket) -> object:
    """Smallest, typical and largest shape of every input in one bucket."""
    profile = session.builder.create_optimization_profile()
    ends = [
        {name: getattr(dim, end) for name, dim in bucket.dims.items()}
        for end in ("min", "opt", "max")
    ]
    for spec in inputs:
        profile.set_shape(spec.name, *(shape_at(spec, sizes) for sizes in ends))
    return profile


def use_timing_cache(config: Any, folder: Path | None) -> None:
    """Have a build begin with the timings of earlier ones, and collect its own; None does not.

    The folder is for one device name, memory, driver, version and set of flags (`shared_cache`):
    timings of another device would choose kernels that are slow here.
    """
    if folder is None:
        return
    known = folder / TIMINGS
    data = known.read_bytes() if known.is_file() else b""
    if not config.set_timing_cache(config.create_timing_cache(data), ignore_mismatch=False):
        logger.warning("the timing cache is not for this device or version, and is not used")
        config.set_timing_cache(config.create_timing_cache(b""), ignore_mismatch=False)


def keep_timing_cache(config: Any, folder: Path | None) -> None:
    """Write the timings for the builds to come, whole or not at all."""
    cache = config.get_timing_cache() if folder else None
    if folder and cache is not None:
        keep(folder / TIMINGS, lambda part: part.write_bytes(bytes(cache.serialize())))
