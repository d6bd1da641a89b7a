"""`smelt status`: what serves now, why a replica is on the fallback, and what is being built."""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import chain
from typing import Any

from services.cli.fleet.control_client import get_fleet, lacks_models
from services.cli.fleet.fleet_file import RunningFleet, require_fleet
from services.cli.fleet.gateway_workers import gateway_workers, workers_words
from services.cli.models.version_states import ready_replicas
from services.cli.output.show import show
from services.cli.registry import open_registry
from services.cli.settings import CliSettings
from services.contracts.errors import NotFoundError, NotReadyError, SmeltError
from services.contracts.external.external_model import ExternalModel
from services.contracts.hardware.facts import generation_named
from services.contracts.selection.selection import reason_words
from services.contracts.text.nearest import nearest
from services.contracts.text.text_table import Table
from services.contracts.text.words import counted, readable_time
from services.controller.events.fallback_words import (
    INTERIM,
    fallback_name,
    loading_words,
    replica_state,
)
from services.controller.explain.build_queue import queued_builds, standby_document
from services.controller.explain.failed_builds import failed_builds
from services.controller.explain.running_builds import running_builds, running_builds_text
from services.pb import fleet_v1_pb2 as fleet


def run_status(settings: CliSettings, model: str = "") -> None:
    """Print models, replicas and running builds.

    Raises:
        NotFoundError: no fleet runs here, or it has no such model.
        NotReadyError: its controller does not answer.
    """
    # A controller that is named wins over this host's own fleet.
    running = None if settings.controller else require_fleet(settings.run_dir)
    address = running.controller if running else settings.controller
    snapshot = _of_model(_snapshot(settings, address, running), model)
    where = running.model_dump() if running else {"controller": address}
    document = status_document(where | {"store_url": snapshot.store_url}, snapshot)
    document |= builds_document(settings, snapshot)
    workers = document["gateway_workers"] = gateway_workers(running) if running else None
    elsewhere = [f"controller {address}   store {snapshot.store_url}"]
    page_url = document["page_url"] = running.page_url(settings) if running else ""
    lines = where_lines(running, workers) if running else elsewhere
    page = [f"page {page_url}"] if page_url else []
    show(document, chain(lines, page, _text(document)))


def _text(document: dict[str, Any]) -> Iterator[str | Table]:
    if document["fault"]:
        yield f"the controller cannot read or change store and cluster: {document['fault']}"
    if document["standby"]:
        yield document["standby"]["reason"]
    models = [
        (m["name"], str(m["version"]), m["state"], _replicas_words(m)) for m in document["models"]
    ]
    yield Table("Models", ("model", "version", "state", "replicas"), models)
    # Below the tables: sentences in a column of them cannot be read on a narrow screen.
    for m in document["models"]:
        if m["reason"]:
            yield f"{m['name']} version {m['version']}: {m['reason']}"
    replicas = [
        (
            f"{r['model']} v{r['version']}",
            r["state"],
            r["generation"],
            _serves_with(r),
            r["replica"],
        )
        for r in document["replicas"]
    ]
    columns = ("model", "state", "generation", "serves with", "replica")
    yield Table("Replicas", columns, replicas, wide=("replica",))
    yield from (r["loading"] for r in document["replicas"])
    yield from queue_lines(document["models"])
    yield from fallback_lines(document["replicas"], document["failed_builds"])
    yield from running_builds_text(document["builds"])
    if document["builds_unknown"]:
        yield f"what is being built is not known: {document['builds_unknown']}"
    names = {m["name"] for m in document["models"]}
    if names:
        which = names.pop() if len(names) == 1 else "MODEL"
        yield f"which engine serves, and why nothing better does: smelt why {which}"


def _snapshot(
    settings: CliSettings, address: str, running: RunningFleet | None
) -> fleet.FleetSnapshot:
    try:
        return get_fleet(address, settings)
    except NotReadyError as error:
        if running is None or not running.troubles:
            raise
        # Gateways go on with the replicas that they know.
        words = "; ".join(process_lines(running))
        raise NotReadyError(f"{words}\n{error}") from error


def _of_model(snapshot: fleet.FleetSnapshot, model: str) -> fleet.FleetSnapshot:
    """What a fleet has of one model; raises NotFoundError where it has none of that name."""
    known = {served.name for served in snapshot.models}
    if not model:
        return snapshot
    if model not in known and not lacks_models(snapshot):
        raise NotFoundError(
            f"model '{model}' is not in this fleet{nearest(model, known)}; it has "
            f"{', '.join(sorted(known)) or 'none'}; what the store has: smelt models list"
        )
    found = fleet.FleetSnapshot()
    found.CopyFrom(snapshot)
    del found.models[:], found.replicas[:]
    found.models.extend(each for each in snapshot.models if each.name == model)
    found.replicas.extend(each for each in snapshot.replicas if each.model_name == model)
    return found


def process_lines(running: RunningFleet) -> list[str]:
    """A line for each process that does not run now, and for each that was started again."""
    away = [
        f"{name} does not run ({fault}); it is being started again"
        for name, fault in sorted(running.troubles.items())
    ]
    again = [
        f"{name} was started again {counted(each.num, 'time')}, last at "
        f"{readable_time(each.last_at)}: it {each.why}"
        for name, each in sorted(running.restarts.items())
    ]
    return away + again


def fallback_lines(
    replicas: Iterable[dict[str, Any]], failed: Iterable[dict[str, Any]] = ()
) -> list[str]:
    """Why model versions serve on the fallback, and on ONNX Runtime's; each reason once.

    Args:
        replicas: as documents.
        failed: versions of whose engines none can come, as `failed_builds` has them.
    """
    known = {_subject(each): each["words"] for each in failed}
    found = (
        f"{_subject(r)}: {words}"
        for r in replicas
        for why in [known.get(_subject(r)) or reason_words(r["fallback_reason"])]
        for words in (why, r["fallback_refuted"], r["interim"])
        if words
    )
    return list(dict.fromkeys(found))


def _subject(document: dict[str, Any]) -> str:
    return f"{document['model']} version {document['version']} on {document['generation']}"


def queue_lines(models: Iterable[dict[str, Any]]) -> list[str]:
    """Where the builds of models stand that no replica serves yet."""
    return [
        f"{m['name']} version {m['version']} on {build['generation']}: {build['words']}"
        for m in models
        if not m["num_ready"] and not m["external"]
        for build in m["builds"]
    ]


def where_lines(running: RunningFleet, workers: dict[str, int] | None = None) -> list[str]:
    """Where the fleet listens, and where it can be looked at; `workers` as `gateway_workers`."""
    words = workers_words(running, workers)
    grpc = f"gRPC {running.grpc_address}" + (f" ({words})" if words else "")
    http = f"   HTTP {running.http_address}" if running.http_address else ""
    addresses = f"{grpc}{http}   metrics {running.metrics_address}"
    lines = [f"{addresses}   store {running.store_url}"]
    if running.prometheus_url:
        boards = f"   Grafana {running.grafana_url}" if running.grafana_url else ""
        lines.append(f"Prometheus {running.prometheus_url}{boards}")
    if running.boards_hint:
        lines.append(running.boards_hint)
    return lines + process_lines(running)


def status_document(where: dict[str, Any], snapshot: fleet.FleetSnapshot) -> dict[str, Any]:
    """The fleet as plain data, after where it can be found."""
    return where | {
        "models": [_model(model, snapshot) for model in snapshot.models],
        "replicas": [_replica(report) for report in snapshot.replicas],
        "replica_metrics_addresses": list(snapshot.metrics_addresses),
        "fault": snapshot.fault,
        "standby": standby_document(snapshot),
    }


def builds_document(settings: CliSettings, snapshot: fleet.FleetSnapshot) -> dict[str, Any]:
    """What is being built for the fleet's models by its store; or why that is not known."""
    try:
        store = settings.model_copy(update={"store_url": snapshot.store_url})
        registry = open_registry(store)
        builds: list[dict[str, Any]] = []
        failed: list[dict[str, Any]] = []
        # One by one: a model that is gone must not hide the builds of the others.
        for name in sorted({m.name for m in snapshot.models if not m.external_json}):
            with suppress(NotFoundError):  # it was removed a moment ago
                builds += running_builds(registry, [name])
                failed += failed_builds(registry, name, snapshot)
    except SmeltError as error:
        # The fleet may be another machine's, on a store that this one cannot read.
        return {"builds": [], "builds_unknown": str(error), "failed_builds": []}
    return {"builds": builds, "builds_unknown": "", "failed_builds": failed}


def _model(model: fleet.ServedModel, snapshot: fleet.FleetSnapshot) -> dict[str, Any]:
    num_ready = len(ready_replicas(snapshot, model.name, model.version))
    return {
        "name": model.name,
        "version": model.version,
        "state": model.state,
        "reason": model.reason,
        "external": ExternalModel.from_json(model.external_json).url if model.external_json else "",
        "num_ready": num_ready,
        # With `num_replicas: auto` the controller knows of the least alone.
        "num_wanted": max(model.num_replicas_wanted, num_ready),
        "builds": list(queued_builds(snapshot, model.name, model.version).values()),
    }


def _replicas_words(model: dict[str, Any]) -> str:
    external = model["external"]
    return f"external: {external}" if external else f"{model['num_ready']}/{model['num_wanted']}"


def _replica(report: fleet.ReplicaReport) -> dict[str, Any]:
    return {
        "replica": report.replica_id,
        "model": report.model_name,
        "version": report.model_version,
        "state": replica_state(report),
        "state_since": report.state_since or None,
        "loading": loading_words(report),
        "generation": generation_named(report.device_facts_json),
        "engine_kind": report.engine_kind,
        "engine_precision": report.engine_precision,
        "engine_digest": report.engine_digest,
        "engine_generation": report.engine_generation,
        "fallback": fallback_name(report) if report.fallback_reason else "",
        "fallback_reason": report.fallback_reason,
        "fallback_refuted": report.fallback_refuted,
        "interim": INTERIM if report.is_fallback_interim else "",
        "detail": report.detail,
        "process_id": report.process_id,
        "addresses": list(report.addresses),
    }


def _serves_with(replica: dict[str, Any]) -> str:
    if not replica["engine_digest"]:
        return f"fallback ({replica['fallback']})" if replica["fallback"] else "-"
    return f"{replica['engine_kind']} {replica['engine_precision']} {replica['engine_digest'][:12]}"
