"""From a model version and what is wanted to build keys: a table of planned and skipped."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from compiler_worker.builders.base import Builder
from compiler_worker.builders.select import build_place, builder_for
from compiler_worker.devices import Devices, main_device
from compiler_worker.model_checks.recipe_check import check_recipe
from services.contracts.builds.build_key import BuildKey
from services.contracts.builds.code_digest import build_code
from services.contracts.errors import InvalidRecipeError
from services.contracts.hardware.facts import Generation
from services.contracts.hardware.kinds import EngineKind, Precision
from services.contracts.model.batching import Batching
from services.contracts.model.default_buckets import default_buckets, dynamic_dims
from services.contracts.model.dim_limits import DimLimits, limits_fault
from services.contracts.model.manifest import MasterRecord, ModelVersion
from services.contracts.model.precisions import precisions_on
from services.contracts.model.recipe import Bucket, Recipe
from services.contracts.terms import calibration_digest, proof_terms
from services.contracts.text.nearest import nearest


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What to build; empty means the default.

    Attributes:
        generations: default: this machine's.
        kinds, precisions: default: the recipe's.
        keys: digests; only these, also those that failed or are proven before.
        is_first: stop once one engine is proven; the others are another run's.
        is_untried: leave out what failed when it was tried last.
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


@dataclass(frozen=True, kw_only=True)
class SkippedBuild:
    """A combination that is not built here, and why."""

    generation: str
    kind: EngineKind
    precision: Precision
    reason: str


@dataclass(frozen=True, kw_only=True)
class BuildTable:
    """Everything that was considered: keys to build, and what was skipped with its reason."""

    planned: tuple[BuildKey, ...] = ()
    skipped: tuple[SkippedBuild, ...] = field(default=())


def plan_builds(
    version: ModelVersion,
    wanted: Wanted,
    devices: Devices,
    find_builder: Callable[[EngineKind], Builder] = builder_for,
    refusal: Callable[[EngineKind], str] = lambda _: "",
) -> BuildTable:
    """Decide for every generation, kind and precision whether this machine builds it.

    Args:
        version: what is served, and by which recipe.
        wanted: generations, kinds and precisions.
        devices: what this machine has.
        find_builder: builder of a kind.
        refusal: why a kind cannot take the master at all; called where nothing else is against it.

    Raises:
        InvalidRecipeError: the recipe names dimensions, inputs or outputs that the master has
            not.
    """
    check_recipe(version.master, version.recipe)
    buckets = buckets_of(version.master, version.recipe, version.dim_limits)
    planned: list[BuildKey] = []
    skipped: list[SkippedBuild] = []
    for generation, kind, precision in _combinations(version, wanted, devices):
        builder = find_builder(kind)
        reason = builder.unavailable_reason(generation, precision)
        if not reason and precision.is_calibrated and version.calibration is None:
            reason = _no_calibration(version)
        if not reason and wanted.is_elsewhere and builder.is_device_bound(generation):
            reason = f"it is tuned on the device that runs it: a {generation} node must be there"
        reason = reason or refusal(kind)
        if reason:
            skipped.append(
                SkippedBuild(
                    generation=str(generation), kind=kind, precision=precision, reason=reason
                )
            )
            continue
        key = BuildKey(
            master_digest=version.master.digest,
            kind=kind,
            precision=precision,
            calibration_digest=calibration_digest(version, precision),
            buckets=buckets,
            pads={name: each.pad for name, each in version.recipe.inputs.items() if each.pad},
            proof_terms=proof_terms(version.recipe, precision, version.samples),
            builder_options={
                "code": build_code(kind),
                **builder.options(generation, precision),
                **version.recipe.builder_options(kind),
            },
            generation=str(generation),
            toolchain=builder.toolchain(generation),
        )
        planned.append(_bound(key, builder, generation, devices))
    return BuildTable(
        planned=tuple(sorted(planned, key=build_place)),
        skipped=tuple(skipped),
    )


def _no_calibration(version: ModelVersion) -> str:
    asked = version.recipe.calibration
    waits = "waits for samples of its requests"
    lacks = "was added without a calibration set: add it again"
    return f"version {version.version} {waits if asked and asked.traffic else lacks}"


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


def _combinations(
    version: ModelVersion, wanted: Wanted, devices: Devices
) -> Iterator[tuple[Generation, EngineKind, Precision]]:
    for kind in wanted.kinds or version.recipe.kinds:
        for generation in wanted.generations or (main_device(devices).parsed_generation,):
            for precision in wanted.precisions or _built_on(generation, version):
                yield generation, kind, precision


def _built_on(generation: Generation, version: ModelVersion) -> list[Precision]:
    has_calibration = version.calibration is not None
    found = precisions_on(generation, version.recipe, has_calibration=has_calibration)
    return [precision for precision, reason in found.items() if not reason]


def _bound(key: BuildKey, builder: Builder, generation: Generation, devices: Devices) -> BuildKey:
    """The key with this machine's device in it, where the engine depends on it."""
    if not builder.is_device_bound(generation):
        return key
    device = devices[generation.platform]
    facts = {
        "device_name": device.name,
        "device_memory_gib": device.memory_gib,
        "driver": device.driver,
    }
    return key.model_copy(update=facts)
