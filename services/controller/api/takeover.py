"""Which version answers while the newest of its model has no engine yet. Pure.

A new version begins on its fallback, often several times slower than the engine of the version
before: replicas that are loaded for engines would refuse requests from then on. So as long as an
engine of the new one is on its way, the one before answers what names no version.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable

from services.contracts.hardware.facts import generation_named
from services.pb import fleet_v1_pb2 as fleet

# Whether an engine of a version may come on a generation, by name, number and generation.
IsComing = Callable[[str, int, str], bool]


def answering_versions(
    models: Iterable[fleet.ServedModel],
    replicas: Iterable[fleet.ReplicaReport],
    is_coming: IsComing,
) -> dict[str, int]:
    """The older version that answers still, by model; others are answered for by the newest.

    Args:
        models: all versions; where one has a weight, its owner decides.
        replicas: of all of them.
        is_coming: says whether an engine is on its way.
    """
    versions: dict[str, list[fleet.ServedModel]] = defaultdict(list)
    for model in models:
        versions[model.name].append(model)
    newest = {
        name: max(each.version for each in known)
        for name, known in versions.items()
        # An external one is as fast when it begins as later.
        if len(known) > 1
        and not any(each.weight or each.is_unloaded or each.external_json for each in known)
    }
    with_engine = _with_engine(each for each in replicas if each.model_name in newest)
    answering: dict[str, int] = {}
    for (name, version), generations in with_engine.items():
        number = newest[name]
        late = generations - with_engine.get((name, number), set())
        if version < number and any(is_coming(name, number, each) for each in late):
            answering[name] = max(version, answering.get(name, 0))
    return answering


def as_answering(model: fleet.ServedModel, answering: int) -> fleet.ServedModel:
    """A version as it is shown while an older one, or itself, answers for its model."""
    shown = fleet.ServedModel()
    shown.CopyFrom(model)
    if model.version == answering:
        shown.weight = 1.0
    elif model.version > answering and not model.reason:
        shown.reason = (
            f"version {answering} answers what names no version until an engine of this one is "
            "proven, or none is to come"
        )
    return shown


def _with_engine(replicas: Iterable[fleet.ReplicaReport]) -> dict[tuple[str, int], set[str]]:
    """The generations on which a ready replica of a version has an engine."""
    found: dict[tuple[str, int], set[str]] = defaultdict(set)
    for replica in replicas:
        if replica.state == fleet.REPLICA_STATE_READY and replica.engine_digest:
            subject = replica.model_name, replica.model_version
            found[subject].add(generation_named(replica.device_facts_json))
    return found
