"""Engines of one model, among those of a master that several models may share."""

from services.contracts.model.manifest import ModelVersion, PublishedEngine
from services.contracts.registry.registry import Registry
from services.contracts.selection.selection import recipe_fault


def own_engines(registry: Registry, version: ModelVersion) -> list[PublishedEngine]:
    """Engines of a version's master that a version of its model asks for, or has planned.

    What else there is of the master was built for other models, on terms of their recipes.

    Args:
        registry: of the store.
        version: of the model.
    """
    engines = registry.engines(version.master.digest)
    if not any(recipe_fault(engine, version) for engine in engines):
        return engines
    known, _ = registry.readable_versions(version.name)
    versions = [each for each in known if each.master.digest == version.master.digest]
    plans = (plan for each in versions for plan in registry.build_plans(each.name, each.version))
    planned = {each.digest for plan in plans for each in plan.planned}
    return [
        engine
        for engine in engines
        if engine.digest in planned or not all(recipe_fault(engine, each) for each in versions)
    ]
