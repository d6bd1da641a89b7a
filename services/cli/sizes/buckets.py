"""`smelt buckets`: what sizes requests have, what the buckets waste on them, and better ones."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain
from typing import Any

from services.cli.fleet.control_client import fleet_on_store, notify_fleet
from services.cli.output.show import print_remark, show
from services.cli.planning.measured_version import measured_version
from services.cli.registry import open_registry, open_registry_to_publish
from services.cli.settings import CliSettings
from services.cli.sizes.best_shapes import Shape, ShapeSearch
from services.cli.sizes.bucket_advice import (
    DEFAULT_ROWS,
    SizeCounts,
    edges_of,
    proposed_buckets,
    shapes_of,
    waste,
)
from services.cli.sizes.buckets_text import buckets_text
from services.cli.sizes.measured_cost import BY_ELEMENTS, MeasuredCost, measured_cost
from services.cli.sizes.observed_sizes import ObservedSizes, observed_sizes
from services.cli.sizes.worthwhile import kept_words, share_moved
from services.contracts.errors import InvalidRequestError, NotFoundError, NotReadyError
from services.contracts.model.manifest import ModelVersion
from services.contracts.model.recipe import Bucket, InputRole
from services.contracts.registry.registry import Registry
from services.telemetry.buckets import SIZE_BUCKETS

_DEFAULT_NUM = 4
# With fewer, a tenth of the requests is what a handful of clients happened to send.
_FEW_REQUESTS = 100


def run_buckets(
    settings: CliSettings,
    name: str,
    *,
    version: int | None = None,
    num: int = 0,
    metrics: Sequence[str] = (),
    is_applied: bool = False,
) -> None:
    """Print what was seen and what is advised, and publish that where it is asked for.

    Args:
        settings: of the command line.
        name: of the model.
        version: by default the newest with timed engines; with `is_applied`, the newest.
        num: shapes to propose at most; 0 for as many as the recipe has, at least 4.
        metrics: `host:port` of metrics endpoints; by default samples of requests, or where there
            are none the endpoints that the controller names.
        is_applied: publish the next version of the model, with the buckets proposed.

    Raises:
        NotFoundError: no such model or version, no fleet here, or no request was seen.
        NotReadyError: the controller or no endpoint answers.
    """
    registry = open_registry(settings)
    # Changes are made to the newest: of an older one they would take back those between.
    number = registry.model_version(name, version).version if is_applied else version
    model, note = measured_version(registry, name, number)
    seen = None if metrics else sampled_sizes(registry, model)
    if seen:
        # Samples do not say what rows shared a batch; the replicas that are here do.
        with suppress(NotFoundError, NotReadyError):
            seen.batches = observed_sizes(_endpoints(settings), name, model.version).batches
    else:
        seen = observed_sizes(metrics or _endpoints(settings), name, model.version)
    document = advice_document(model, seen, num, partial(measured_cost, registry, model))
    published = _published(settings, model, document) if is_applied else None
    document |= {"published": published, "note": note}
    show(document, chain([note], buckets_text(document)))


def sampled_sizes(registry: Registry, model: ModelVersion) -> ObservedSizes | None:
    """Lengths of samples, by the share of rows that each stands for; None without any.

    A remark says which samples cannot be taken: without it they look as if none were there.
    """
    from services.contracts.traffic.drift import lengths_of
    from services.contracts.traffic.fitting_rows import windows_for

    found = ObservedSizes(is_sampled=True)
    windows, left_out = windows_for(registry, model)
    if left_out:
        print_remark(f"samples of {model.name}: {left_out.removeprefix('; ')}")
    rows = registry.sampled_rows(windows)
    share = len(rows) / sum(row.weight for row in rows) if rows else 0.0
    for row in rows:
        for dim, size in lengths_of(row.arrays, model).items():
            seen = found.dims[dim]
            seen.counts[size] = seen.counts.get(size, 0.0) + row.weight * share
            seen.total += size * row.weight * share
    return found if found.dims else None


def _published(settings: CliSettings, model: ModelVersion, document: dict[str, Any]) -> int:
    """The number of the next version, with the buckets proposed; the present one's for the same."""
    if not document["dimensions"]:
        raise InvalidRequestError(
            f"{model.name}: nothing is applied: only the number of rows is dynamic, so "
            "there are no lengths to make buckets for; set the rows of a batch in the recipe"
        )
    if document["caution"]:
        raise InvalidRequestError(f"{model.name}: nothing is applied: {document['caution']}")
    if document["recipe"] is None:
        return model.version
    buckets = tuple(Bucket.model_validate(each) for each in document["recipe"]["buckets"])
    recipe = model.recipe.model_copy(update={"buckets": buckets})
    registry = open_registry_to_publish(settings, must_exist=True)
    published = registry.add_changed_version(model, {"recipe": recipe})
    notify_fleet(settings)
    return published.version


def advice_document(
    model: ModelVersion,
    seen: ObservedSizes,
    num: int,
    cost_of: Callable[[str], MeasuredCost | None] = lambda _: None,
) -> dict[str, Any]:
    """Sizes, waste and proposal, as plain data.

    Args:
        model: with its buckets of now.
        seen: sizes of its requests.
        num: most buckets to propose.
        cost_of: what runs take by the size in a dimension, and where that was measured.

    Raises:
        NotFoundError: no request of the model was seen.
        InvalidRequestError: so few buckets cannot take what the present ones take.
    """
    batch_dim = model.recipe.batching.batch_dim
    buckets = model.buckets
    dims = {dim: each for dim, each in sorted(seen.dims.items()) if each.counts}
    if not dims:
        raise NotFoundError(
            f"no sizes were seen of {model.name} version {model.version}: "
            "its replicas ran no request since they started, or it has no dynamic dimension; with "
            "--metrics, name pages of Ray's agents, which smelt status --json shows"
        )
    num_requests = round(max(each.num_requests for each in dims.values()))
    rows = dims.pop(batch_dim or "", None)
    advised = {dim: _advice(dim, seen, model, num, cost_of(dim)) for dim in dims}
    proposal: list[Bucket] = []
    ran = seen.real + seen.padded
    # Samples do not tell what they were computed beside.
    padded = None if seen.is_sampled else seen.padded / ran if ran else 0.0
    for dim, each in advised.items():
        # Who asks for fewer buckets than there are has a reason.
        is_fewer = 0 < num < len(each["shapes_now"])
        is_padded = _is_padded(model) or bool(padded)
        each["kept"] = "" if is_fewer else kept_words(dim, each, is_padded=is_padded)
    if worthwhile := [dim for dim, each in advised.items() if not each["kept"]]:
        # One dimension at a time: the one whose padding costs most.
        worst = max(worthwhile, key=lambda dim: float(advised[dim]["waste_now"]))
        shapes = advised[worst]["shapes_proposed"]
        proposal = proposed_buckets(buckets, worst, shapes, seen.dims, batch_dim)
    return {
        "model": model.name,
        "version": model.version,
        "num_requests": num_requests,
        "caution": _caution(num_requests),
        "is_padded": _is_padded(model),
        "measured_waste": padded,
        # Replicas batch requests, so rows are those that clients send, not those that run.
        "rows": _distribution(rows) | {"dimension": batch_dim} if rows else None,
        "dimensions": advised,
        "recipe": {"buckets": [b.model_dump(mode="json") for b in proposal]} if proposal else None,
    }


def _is_padded(model: ModelVersion) -> bool:
    """Whether requests of different lengths share a batch: one input is their mask."""
    return any(each.role is InputRole.MASK for each in model.recipe.inputs.values())


def _caution(num_requests: int) -> str:
    """A warning on a proposal that rests on few requests; "" on others."""
    if num_requests >= _FEW_REQUESTS:
        return ""
    were = "request was" if num_requests == 1 else "requests were"
    return (
        f"only {num_requests} {were} seen: wait for {_FEW_REQUESTS} or more of the usual traffic "
        "before you change the recipe"
    )


def _distribution(seen: SizeCounts) -> dict[str, Any]:
    counts: dict[int, float] = {}
    for size, number in seen.counts.items():
        # Samples have exact sizes, too many to show.
        bound = next((round(each) for each in SIZE_BUCKETS if each >= size), size)
        counts[bound] = counts.get(bound, 0.0) + number
    return {
        **seen.quantiles,
        "largest": seen.largest,
        "mean": seen.total / seen.num_requests,
        "counts": {str(bound): round(n) for bound, n in sorted(counts.items())},
    }


def _advice(
    dim: str,
    observed: ObservedSizes,
    model: ModelVersion,
    num: int,
    measured: MeasuredCost | None,
) -> dict[str, Any]:
    batch_dim = model.recipe.batching.batch_dim
    seen = observed.dims[dim]
    now = edges_of(model.buckets, dim)
    # What is taken today has to be taken tomorrow.
    shapes = shapes_of(model.buckets, dim, batch_dim) or [Shape(seen.largest, DEFAULT_ROWS.max)]
    largest = shapes[-1].size
    may_grow = all(batch_dim in bucket.dims for bucket in model.buckets)
    cost = measured or BY_ELEMENTS
    is_saved = measured is not None and measured.curve.pads_to_largest
    least = max((b.dims[dim].min for b in model.buckets if dim in b.dims), default=1)
    # A bucket of one size alone pads whatever computes it.
    is_exact = measured is not None and not is_saved and least <= 1
    search = ShapeSearch(
        shapes,
        seen.counts,
        observed.batches,
        cost,
        may_grow=may_grow,
        is_exact=is_exact,
        is_delayed=model.recipe.batching.max_delay_ms > 0,
    )
    proposed = search.best(num or max(len(shapes), _DEFAULT_NUM))
    edges = sorted({shape.size for shape in proposed})
    times = [search.mean_s(shapes), search.mean_s(proposed)]
    return {
        **_distribution(seen),
        "largest": min(seen.largest, largest),
        "now": now,
        "waste_now": waste(seen, now or [largest]),
        "proposed": edges,
        "waste_proposed": waste(seen, edges),
        "shapes_now": shapes,
        "shapes_proposed": proposed,
        "moved": share_moved(seen, shapes, proposed),
        # More rows are faster anywhere.
        "is_exact": is_exact and {s.rows for s in proposed} <= {s.rows for s in shapes},
        "measured_on": measured.name if measured else "",
        "rows_per_s": [1 / each if is_saved else None for each in times],
        "speedup": times[0] / times[1],
    }


def _endpoints(settings: CliSettings) -> list[str]:
    snapshot = fleet_on_store(settings)
    if snapshot is None:
        raise NotFoundError(
            f"no fleet serves from store {settings.store_url}, so the sizes of its requests are "
            "not known: start one (smelt up), set SMELT_CONTROLLER, or give --metrics HOST:PORT"
        )
    return list(snapshot.metrics_addresses)
