"""Generations on which every planned engine of a model failed for good: no queue holds them."""

from collections.abc import Iterator
from typing import Any

from services.contracts.registry.registry import Registry
from services.controller.build.key_status import KeyState
from services.controller.explain.why_case import Case, replicas_of
from services.pb import fleet_v1_pb2 as fleet

_GIVEN_UP = (KeyState.PROOF_FAILED, KeyState.QUARANTINED)


def failed_builds(
    registry: Registry, name: str, snapshot: fleet.FleetSnapshot
) -> Iterator[dict[str, Any]]:
    """One document for each version of a model and generation, with why its first key failed.

    Args:
        registry: on the store.
        name: of the model.
        snapshot: of the fleet; the store is read only where its replicas serve on the fallback.

    Raises:
        NotFoundError: the store has no such version.
    """
    reports = (each for each in snapshot.replicas if each.model_name == name)
    for number in sorted({each.model_version for each in reports if each.fallback_reason}):
        version = registry.model_version(name, number)
        plans = registry.build_plans(name, number)
        for generation, replicas in (replicas_of(snapshot, version) or {}).items():
            made = [plan for plan in plans if plan.node_class.generation == generation]
            if not made or not all(replica.fallback_reason for replica in replicas):
                continue
            case = Case(registry, version, made, replicas=replicas, build=None, trust=None)
            if words := _words(case):
                yield {
                    "model": name,
                    "version": number,
                    "generation": generation,
                    "words": words,
                }


def _words(case: Case) -> str:
    """Why the first key failed, up to what can be done; "" while any may still be proven."""
    if not case.statuses or any(each.state not in _GIVEN_UP for each in case.statuses):
        return ""
    first = case.statuses[0]
    more = f" (and {len(case.statuses) - 1} more)" if case.statuses[1:] else ""
    why = first.reason.partition(";")[0]
    return f"{first.planned.words}{more}: {first.state.words}: {why}"
