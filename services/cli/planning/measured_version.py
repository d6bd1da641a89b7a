"""Which version of a model figures are of: one that was measured, and none that is being built."""

from collections.abc import Collection

from services.contracts.model.manifest import ModelVersion
from services.contracts.registry.registry import Registry
from services.contracts.selection.selection import recipe_fault


def measured_version(
    registry: Registry, name: str, number: int | None, generations: Collection[str] = ()
) -> tuple[ModelVersion, str]:
    """The version that is asked for, by default the newest with engines that were timed.

    Args:
        registry: of the store.
        name: of the model.
        number: of the version; None for the default.
        generations: on which it was timed; of any without.

    Returns:
        The version, the newest one where none was timed; and a line where a newer one was not.

    Raises:
        NotFoundError: no such model or version.
    """
    newest = registry.model_version(name, number)
    known = [newest] if number else reversed(registry.readable_versions(name)[0])
    found = next((each for each in known if _is_measured(registry, each, generations)), newest)
    if found.version == newest.version:
        return newest, ""
    return found, (
        f"{name}: version {found.version} is used, the newest with timed engines; version "
        f"{newest.version} has none yet"
    )


def _is_measured(registry: Registry, version: ModelVersion, generations: Collection[str]) -> bool:
    return any(
        engine.proof.timings and not recipe_fault(engine, version)
        for engine in registry.engines(version.master.digest)
        if not generations
        or (engine.proof.device and engine.proof.device.generation in generations)
    )
