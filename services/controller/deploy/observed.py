"""What the reconcile loop reads of the store: which versions are wanted, and their engines."""

import logging
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from services.contracts.errors import SmeltError
from services.contracts.model.manifest import ModelVersion, PublishedEngine
from services.contracts.registry.registry import Registry
from services.controller.external.external_watch import WantedExternal
from services.controller.interfaces import DeploymentKey

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Observed:
    """The store at one moment.

    Attributes:
        versions: the newest of each model that can be read, by name.
        weights: of versions that share requests, by model and version.
        others: those and older ones that are deployed still.
        names: of all models, those that cannot be read too.
        unloaded: names of those that are not to be served for now.
        engine_keys: of all engines, proofs, signatures and joint runs, by master.
        externals: all versions of external models, as they were where they cannot be read.
        unread: names of those that cannot be.
    """

    versions: dict[str, ModelVersion] = field(default_factory=dict)
    weights: dict[tuple[str, int], float] = field(default_factory=dict)
    others: dict[tuple[str, int], ModelVersion] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)
    unloaded: set[str] = field(default_factory=set)
    engine_keys: dict[str, tuple[str, ...]] = field(default_factory=dict)
    externals: list[WantedExternal] = field(default_factory=list)
    unread: set[str] = field(default_factory=set)

    def wanted(self) -> list[ModelVersion]:
        """The versions that are to be deployed: the newest, and those that share requests."""
        sharing = [version for key, version in self.others.items() if key in self.weights]
        wanted = [*self.versions.values(), *sharing]
        return [version for version in wanted if version.name not in self.unloaded]

    def selecting(self) -> list[ModelVersion]:
        """All versions that replicas may be there for."""
        return [*self.versions.values(), *self.others.values()]


class StoreView:
    """Reads models and engines; remembers documents of versions that were removed since."""

    def __init__(self, source: Registry) -> None:
        self._source = self._moment = source
        self._documents: dict[tuple[str, int], ModelVersion] = {}
        self._externals: list[WantedExternal] = []

    def look(self, deployed: Iterable[DeploymentKey]) -> Observed:
        """The store now, and of what is deployed that which it has no more; blocks.

        Raises:
            StoreError: it cannot be read, or another one is in its place: a volume that is not
                mounted must not look as if all models had been removed.
        """
        self._source.require_same_store()
        source = self._moment = self._source.at_one_moment()
        observed = Observed(names=set(source.model_names()), unloaded=source.unloaded_models())
        for name in sorted(observed.names):
            _read_newest(source, name, observed)
        for name in source.external_names():
            _read_external(source, name, observed, self._externals)
        self._externals = observed.externals
        for name, number in {*(key[:2] for key in deployed), *observed.weights}:
            newest = observed.versions.get(name)
            if newest is None or newest.version != number:
                other = self._other_version(source, name, number)
                # Of a model that was removed nothing is shown any more; a version that was is,
                # until another one serves in its place.
                if other is not None and name in observed.names:
                    observed.others[name, number] = other
        for master in {version.master.digest for version in observed.selecting()}:
            keys = [*source.engine_keys(master), *source.joint_run_keys(master)]
            observed.engine_keys[master] = tuple(keys)
        self._documents = {(v.name, v.version): v for v in observed.versions.values()}
        self._documents |= observed.others
        return observed

    def engines(self, masters: Collection[str]) -> dict[str, list[PublishedEngine]]:
        """All engines of each master at the moment of the last look; blocks."""
        self._moment.prefetch_engines(masters)
        return {master: self._moment.engines(master) for master in masters}

    def _other_version(self, source: Registry, name: str, number: int) -> ModelVersion | None:
        try:
            return source.model_version(name, number)
        except SmeltError:
            return self._documents.get((name, number))


def _read_newest(source: Registry, name: str, observed: Observed) -> None:
    try:
        version = source.model_version(name)
        weights = source.version_weights(name)
    except SmeltError as error:
        # A newer compiler's document must not keep the other models from serving.
        logger.error("model '%s' is left as it is: %s", name, error)
        return
    observed.versions[name] = version
    for number, weight in weights.items():
        # A version that was removed shares nothing any more.
        if _is_there(source, name, number):
            observed.weights[name, number] = weight


def _read_external(
    source: Registry, name: str, observed: Observed, known: Collection[WantedExternal]
) -> None:
    is_unloaded = name in observed.unloaded
    try:
        weights = source.version_weights(name)
        for model in source.external_versions(name):
            weight = weights.get(model.version, 0.0)
            observed.externals.append(WantedExternal(model, weight, is_unloaded))
    except SmeltError as error:
        # An application that runs must not end because the store was slow.
        before = (each for each in known if each.model.name == name)
        observed.externals.extend(each._replace(is_unloaded=is_unloaded) for each in before)
        if not is_unloaded:
            observed.unread.add(name)
        logger.error("external model '%s' is left as it is: %s", name, error)


def _is_there(source: Registry, name: str, number: int) -> bool:
    try:
        return source.model_version(name, number).version == number
    except SmeltError:
        return False
