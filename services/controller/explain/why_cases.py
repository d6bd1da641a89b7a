"""Every generation of a model version, explained: for `smelt why` and the controller's page."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from services.contracts.errors import NotFoundError
from services.contracts.events import Event, EventKind
from services.contracts.model.manifest import ModelVersion
from services.contracts.registry.event_log import MOST_SEARCHED
from services.contracts.registry.registry import Registry
from services.contracts.text.nearest import nearest
from services.contracts.text.words import readable_time, worker_command
from services.controller.explain.build_queue import queued_builds
from services.controller.explain.why_case import Case, replicas_of
from services.controller.explain.why_document import case_document
from services.pb import fleet_v1_pb2 as fleet

_TROUBLES = (EventKind.QUARANTINED, EventKind.BUILD_FAILED, EventKind.BUILD_WAITING)


def last_trouble(registry: Registry, model: str, generation: str, otherwise: str = "") -> str:
    """One line on the last event of a build that failed or waits.

    Args:
        registry: on the store.
        model: its name.
        generation: "" for all.
        otherwise: what is said when none is found; also that older events were not read.
    """

    def is_trouble(event: Event) -> bool:
        is_here = event.is_about(model) and generation in ("", event.generation)
        return is_here and event.kind in _TROUBLES

    found = registry.search_events(1, is_trouble)
    for _, event in found.events:
        kind = event.kind.replace("_", " ")
        return f"Last event ({kind}, {readable_time(event.at)}): {event.why}"
    unread = f"The last {MOST_SEARCHED} events tell no more, and older ones were not read."
    return " ".join(words for words in (unread if found.is_cut else "", otherwise) if words)


def drift_words(registry: Registry, version: ModelVersion) -> str:
    """One line on requests that a version is no longer calibrated for; "" when there is none."""
    calibration = version.recipe.calibration
    if calibration is None or calibration.traffic is None:
        # Nothing looks at its requests.
        return ""

    def is_drift(event: Event) -> bool:
        is_ours = (event.model, event.version) == (version.name, version.version)
        return is_ours and event.kind is EventKind.TRAFFIC_DRIFTED

    found = registry.search_events(1, is_drift)
    name = f"{version.name} version {version.version}"
    for _, event in found.events:
        return f"{name}: {event.why}"
    fix = f"see its samples: smelt samples show {version.name}"
    return f"{name}: no drift in the last {MOST_SEARCHED} events; {fix}" if found.is_cut else ""


def explained_cases(
    registry: Registry,
    version: ModelVersion,
    wanted: str,
    snapshot: fleet.FleetSnapshot | None,
    store_url: str,
    trust_root: Path | None = None,
) -> Iterator[dict[str, Any]]:
    """A document for each generation that is planned, serves or is queued.

    Args:
        registry: on the store.
        version: that is explained.
        wanted: one generation; "" for all.
        snapshot: the fleet on this store; None without one.
        store_url: for the commands in it.
        trust_root: public keys whose signatures count; None takes all.

    Raises:
        NotFoundError: nothing is known of the generation.
    """
    replicas = replicas_of(snapshot, version)
    builds = queued_builds(snapshot, version.name, version.version)
    plans = registry.build_plans(version.name, version.version)
    # Plans alone would hide generations that a fleet has and no worker has looked at yet.
    known = {plan.node_class.generation for plan in plans} | builds.keys() | (replicas or {}).keys()
    known.discard("")
    if wanted and wanted not in known:
        plan = worker_command(store_url, "plan", version.name, "--generation", wanted)
        by_hand = f"A controller makes one when such a node appears; by hand: {plan}"
        raise NotFoundError(
            f"nothing is planned for {version.name} version {version.version} on {wanted}"
            f"{nearest(wanted, sorted(known))}; there are plans for "
            f"{', '.join(sorted(known)) or 'no generation'}. "
            + last_trouble(registry, version.name, wanted, by_hand)
        )
    trust = None
    if trust_root:
        from services.contracts.security.signing import TrustRoot

        trust = TrustRoot(trust_root)
    for each in [wanted] if wanted else sorted(known):
        # One that does not know its generation yet may be of this one.
        here = None if replicas is None else [*replicas.get(each, []), *replicas.get("", [])]
        made = [plan for plan in plans if plan.node_class.generation == each]
        case = Case(registry, version, made, replicas=here, build=builds.get(each), trust=trust)
        yield {"generation": each} | case_document(case, store_url)
