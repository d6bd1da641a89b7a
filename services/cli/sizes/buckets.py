"""`smelt buckets`: what sizes requests have, what the buckets waste on them, and better ones."""

from collections.abc import Iterator, Sequence
from typing import Any

import yaml

from services.cli.fleet.control_client import fleet_on_store
from services.cli.output.show import show
from services.cli.registry import open_registry
from services.cli.settings import CliSettings
from services.cli.sizes.bucket_advice import (
    SizeCounts,
    best_edges,
    edges_of,
    proposed_buckets,
    waste,
)
from services.cli.sizes.observed_sizes import ObservedSizes, observed_sizes
from services.contracts.errors import NotFoundError
from services.contracts.model.manifest import ModelVersion
from services.contracts.model.recipe import Bucket, InputRole
from services.contracts.text.text_table import Table

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
    as_json: bool,
) -> None:
    """Print what was seen and what is advised.

    Args:
        settings: of the command line.
        name: of the model.
        version: the newest by default.
        num: buckets to propose; 0 for as many lengths as the recipe has, at least some.
        metrics: `host:port` of metrics endpoints; by default those that the controller names.
        as_json: print one document in place of tables.

    Raises:
        NotFoundError: no such model or version, no fleet here, or no request was seen.
        NotReadyError: the controller or no endpoint answers.
    """
    model = open_registry(settings).model_version(name, version)
    seen = observed_sizes(metrics or _endpoints(settings), name, model.version)
    document = advice_document(model, seen, num)
    show(document, _text(document), as_json=as_json)


def advice_document(model: ModelVersion, seen: ObservedSizes, num: int) -> dict[str, Any]:
    """Sizes, waste and proposal, as plain data.

    Args:
        model: with its buckets of now.
        seen: sizes of its requests.
        num: most buckets to propose.

    Raises:
        NotFoundError: no request of the model was seen.
    """
    batch_dim = model.recipe.batching.batch_dim
    buckets = model.buckets
    dims = {dim: each for dim, each in sorted(seen.dims.items()) if each.counts}
    if not dims:
        raise NotFoundError(
            f"no sizes were seen of {model.name} version {model.version}: its replicas ran no "
            "request yet, it has no dynamic dimension, or --metrics names a page that is not of "
            "Ray's agents, where replicas count (smelt status --json names those)"
        )
    num_requests = round(max(each.num_requests for each in dims.values()))
    rows = dims.pop(batch_dim or "", None)
    advised = {dim: _advice(dim, each, buckets, num) for dim, each in dims.items()}
    proposal: list[Bucket] = []
    if advised:
        # One dimension at a time: the one whose padding costs most.
        worst = max(advised, key=lambda dim: float(advised[dim]["waste_now"]))
        edges = advised[worst]["proposed"]
        proposal = proposed_buckets(buckets, worst, edges, seen.dims, batch_dim)
    ran = seen.real + seen.padded
    return {
        "model": model.name,
        "version": model.version,
        "num_requests": num_requests,
        "caution": _caution(num_requests),
        "is_padded": _is_padded(model),
        "measured_waste": seen.padded / ran if ran else 0.0,
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
        f"only {num_requests} {were} seen since the replicas started: wait for {_FEW_REQUESTS} or "
        "more of the usual traffic before you change the recipe"
    )


def _distribution(seen: SizeCounts) -> dict[str, Any]:
    return {
        **seen.quantiles,
        "largest": seen.largest,
        "mean": seen.total / seen.num_requests,
        "counts": {str(bound): round(n) for bound, n in sorted(seen.counts.items())},
    }


def _advice(dim: str, seen: SizeCounts, buckets: Sequence[Bucket], num: int) -> dict[str, Any]:
    now = edges_of(buckets, dim)
    # What is taken today has to be taken tomorrow.
    largest = now[-1] if now else seen.largest
    proposed = best_edges(seen, num or max(len(now), _DEFAULT_NUM), largest)
    return {
        **_distribution(seen),
        "largest": min(seen.largest, largest),
        "now": now,
        "waste_now": waste(seen, now or [largest]),
        "proposed": proposed,
        "waste_proposed": waste(seen, proposed),
    }


def _endpoints(settings: CliSettings) -> list[str]:
    snapshot = fleet_on_store(settings)
    if snapshot is None:
        raise NotFoundError(
            f"no fleet serves from store {settings.store_url}, so the sizes of its requests are "
            "not known: start one (smelt up), set SMELT_CONTROLLER, or give --metrics HOST:PORT"
        )
    return list(snapshot.metrics_addresses)


def _text(document: dict[str, Any]) -> Iterator[str | Table]:
    yield (
        f"{document['model']} version {document['version']}: {document['num_requests']} requests, "
        f"{document['measured_waste']:.1%} of what the engines computed was padding"
    )
    if document["caution"]:
        yield f"Caution: {document['caution']}"
    yield from _size_tables(document)
    if not document["is_padded"] and not document["measured_waste"]:
        yield (
            "No input of the recipe is a mask, so each request runs at its own length: the waste "
            "shown would be that of a model with one (role: mask)"
        )
    if not document["recipe"]:
        yield "Only the batch is dynamic: there are no other lengths to make buckets for"
        return
    yield _waste_table(document["dimensions"])
    yield "For the recipe:"
    yield yaml.safe_dump(document["recipe"], sort_keys=False, default_flow_style=None).rstrip()


def _size_tables(document: dict[str, Any]) -> Iterator[Table]:
    sizes = dict(document["dimensions"])
    if rows := document["rows"]:
        sizes[f"{rows['dimension']} (rows of a request)"] = rows
    names = ("p50", "p90", "p99", "largest")
    means = [(dim, f"{a['mean']:.1f}", *(str(a[n]) for n in names)) for dim, a in sizes.items()]
    yield Table("Sizes", ("dimension", "mean", *names), means)
    counts = [
        (dim, bound, str(count), f"{count / sum(a['counts'].values()):.1%}")
        for dim, a in sizes.items()
        for bound, count in a["counts"].items()
    ]
    yield Table("Requests by size", ("dimension", "up to", "requests", "share"), counts)


def _waste_table(advised: dict[str, Any]) -> Table:
    title = "Waste, each request at the largest size of its bucket"
    columns = ("dimension", "buckets now", "waste", "proposed", "waste")
    rows = [
        (
            dim,
            _list(a["now"]),
            f"{a['waste_now']:.1%}",
            _list(a["proposed"]),
            f"{a['waste_proposed']:.1%}",
        )
        for dim, a in advised.items()
    ]
    return Table(title, columns, rows)


def _list(edges: Sequence[int]) -> str:
    return ", ".join(map(str, edges)) or "none"
