"""From a model version and a generation to build keys: a plan of planned and skipped."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from compiler_worker.builders.base import Builder
from compiler_worker.builders.select import build_place, builder_for
from compiler_worker.devices import Devices
from compiler_worker.model_checks.recipe_check import check_recipe
from services.contracts.builds.build_key import BuildKey
from services.contracts.builds.build_plan import BuildPlan, PlannedKey, SkippedKey
from services.contracts.builds.code_digest import build_code, proof_code
from services.contracts.errors import InvalidRecipeError
from services.contracts.hardware.facts import DeviceFacts, Generation
from services.contracts.hardware.kinds import EngineKind, Precision
from services.contracts.hardware.node_class import NodeClass
from services.contracts.model.batching import Batching
from services.contracts.model.default_buckets import default_buckets, dynamic_dims
from services.contracts.model.dim_limits import DimLimits, limits_fault
from services.contracts.model.manifest import MasterRecord, ModelVersion
from services.contracts.model.precisions import precisions_on
from services.contracts.model.recipe import Bucket, Recipe
from services.contracts.terms import calibration_digest, proof_terms
from services.contracts.text.moments import timestamp
from services.contracts.text.nearest import nearest


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What to build; empty means the default.

    Attributes:
        generations: default: this machine's.
        kinds, precisions: default: the recipe's.
        keys: digests; only these, also those that failed or are proven before.
        is_first: stop once one engine is proven; the others are another run's.
        is_untried: skip what failed when it was tried last.
        is_elsewhere: for nodes that are not there yet, whatever this machine is: nothing that
            is tuned on a device.
        compiler: what the launcher of this run calls its compiler; plans repeat it.
    """

    generations: tuple[Generation, ...] = ()
    kinds: tuple[EngineKind, ...] = ()
    precisions: tuple[Precision, ...] = ()
    keys: tuple[str, ...] = ()
    is_first: bool = False
    is_untried: bool = False
    is_elsewhere: bool = False
    compiler: str = ""


def plan_for(
    version: ModelVersion,
    generation: Generation,
    devices: Devices,
    find_builder: Callable[[EngineKind], Builder] = builder_for,
    *,
    precisions: Sequence[Precision] = (),
    is_elsewhere: bool = False,
    compiler: str = "",
    refusal: Callable[[EngineKind, Precision], str] = lambda *_: "",
) -> BuildPlan:
    """Decide for every kind and precision of the recipe whether this machine builds it.

    Args:
        version: what is served, and by which recipe.
        generation: the one that is planned for.
        devices: what this machine has.
        find_builder: builder of a kind.
        precisions: beside those that the recipe has built on the generation.
        is_elsewhere: the engines are for other nodes, whatever devices this machine has.
        compiler: what the launcher of this run calls its compiler; "" when unknown.
        refusal: why a kind cannot take the master so; called where nothing else is against it.

    Raises:
        InvalidRecipeError: the recipe names dimensions, inputs or outputs that the master has
            not.
    """
    check_recipe(version.master, version.recipe)
    buckets = buckets_of(version.master, version.recipe, version.dim_limits)
    # A class of nodes is the device and its driver where one is here; for others only its
    # generation is known.
    local = (d for d in devices.values() if d.generation == str(generation) and not is_elsewhere)
    facts = next(local, None)
    planned: list[PlannedKey] = []
    skipped: list[SkippedKey] = []
    every = dict.fromkeys((*built_on(generation, version), *precisions))
    for kind, precision in product(version.recipe.kinds, every):
        builder = find_builder(kind)
        reason = _reason(version, generation, precision, builder, is_elsewhere=is_elsewhere)
        if reason := reason or refusal(kind, precision):
            skipped.append(SkippedKey(kind=kind, precision=precision, reason=reason))
            continue
        key = _key(version, kind, precision, generation, builder, buckets)
        if is_bound := builder.is_device_bound(generation):
            key = key.model_copy(update=_device_fields(devices[generation.platform]))
        # Only TensorRT compiles for a device that is not there; what it tunes is for one.
        is_anywhere = facts is None or (kind is EngineKind.TENSORRT and not is_bound)
        planned.append(PlannedKey(key=key, is_anywhere=is_anywhere))
    return BuildPlan(
        model=version.name,
        version=version.version,
        node_class=NodeClass.from_facts(facts) if facts else NodeClass(generation=str(generation)),
        facts=facts,
        compiler=compiler,
        proof_code=proof_code(),
        planned=tuple(sorted(planned, key=lambda each: build_place(each.key, version))),
        skipped=tuple(skipped),
        created_at=timestamp(),
    )


def _reason(
    version: ModelVersion,
    generation: Generation,
    precision: Precision,
    builder: Builder,
    *,
    is_elsewhere: bool,
) -> str:
    """Why an engine is not built here, whatever the graph; "" where it is."""
    if reason := builder.unavailable_reason(generation, precision):
        return reason
    if precision.is_calibrated and version.calibration is None:
        asked = version.recipe.calibration
        waits = "waits for samples of its requests"
        lacks = "was added without a calibration set: add it again"
        return f"version {version.version} {waits if asked and asked.traffic else lacks}"
    if is_elsewhere and builder.is_device_bound(generation):
        return f"it is tuned on the device that runs it: a {generation} node must be there"
    return ""


def buckets_of(
    master: MasterRecord, recipe: Recipe, limits: Mapping[str, DimLimits] | None = None
) -> tuple[Bucket, ...]:
    """The recipe's buckets, checked; without any, those by default.

    Args:
        master: whose dynamic dimensions are covered.
        recipe: its buckets; may be none.
        limits: by dimension, what the source of the master allows; None allows all sizes.

    Raises:
        InvalidRecipeError: a bucket names other dimensions than the master's dynamic ones, lets
            a request have no rows, or leaves the limits of the source.
    """
    _check_buckets(recipe, dynamic_dims(master.inputs))
    rows = recipe.batching.batch_dim
    for bucket in recipe.buckets:
        if rows in bucket.dims and bucket.dims[rows].min == 0:
            raise InvalidRecipeError(
                f"recipe: bucket {bucket.label}: '{rows}' counts the rows of a request, and one of "
                "none is refused: expected min of at least 1, got 0"
            )
        if fault := limits_fault(bucket, limits or {}):
            # What an exporter made of the source may mean something else beyond them.
            raise InvalidRecipeError(f"recipe: bucket {bucket.label}: {fault}")
    return recipe.buckets or default_buckets(master.inputs, rows, limits)


def check_dims(recipe: Recipe, dims: Sequence[str]) -> None:
    """Raise InvalidRecipeError where an owner's recipe names others than these dynamic dimensions.

    Requests of a version that was published with a wrong `batch_dim` are not joined; its engines
    are built all the same (`buckets_of`).
    """
    rows = recipe.batching.batch_dim
    # A model without rows has a recipe by default too.
    if rows is not None and rows not in (*dims, Batching().batch_dim):
        raise InvalidRecipeError(
            f"recipe: batching.batch_dim: '{rows}' is no dynamic dimension of the model"
            f"{nearest(rows, dims)}; expected one of {', '.join(dims) or 'none'}, or null"
        )
    _check_buckets(recipe, dims)


def _check_buckets(recipe: Recipe, dims: Sequence[str]) -> None:
    for bucket in recipe.buckets:
        faults = [
            f"'{dim}' is no dynamic dimension of the model{nearest(dim, dims)}"
            for dim in bucket.dims
            if dim not in dims
        ]
        faults += [f"no range for '{dim}'" for dim in dims if dim not in bucket.dims]
        if faults:
            raise InvalidRecipeError(
                f"recipe: bucket {bucket.label}: {faults[0]}; expected a range for each of "
                f"{', '.join(dims) or 'none'}, got {', '.join(bucket.dims) or 'none'}"
            )


def built_on(generation: Generation, version: ModelVersion) -> list[Precision]:
    """The precisions that a recipe has built on a generation."""
    has_calibration = version.calibration is not None
    found = precisions_on(generation, version.recipe, has_calibration=has_calibration)
    return [precision for precision, reason in found.items() if not reason]


def _key(
    version: ModelVersion,
    kind: EngineKind,
    precision: Precision,
    generation: Generation,
    builder: Builder,
    buckets: tuple[Bucket, ...],
) -> BuildKey:
    recipe = version.recipe
    return BuildKey(
        master_digest=version.master.digest,
        kind=kind,
        precision=precision,
        calibration_digest=calibration_digest(version, precision),
        buckets=buckets,
        pads={name: each.pad for name, each in recipe.inputs.items() if each.pad},
        proof_terms=proof_terms(recipe, precision, version.samples),
        builder_options={
            "code": build_code(kind),
            **builder.options(generation, precision),
            **recipe.builder_options(kind),
        },
        generation=str(generation),
        toolchain=builder.toolchain(generation),
    )


def _device_fields(device: DeviceFacts) -> dict[str, Any]:
    """What an engine depends on that is tuned on a device, for its key."""
    return {
        "device_name": device.name,
        "device_memory_gib": device.memory_gib,
        "driver": device.driver,
    }
