"""`smelt models remove`, `unload` and `load`."""

from services.cli.fleet.control_client import notify_fleet
from services.cli.output.show import show
from services.cli.registry import open_registry_to_publish, who_asks
from services.cli.settings import CliSettings


def run_models_remove(settings: CliSettings, name: str, version: int | None) -> None:
    """Withdraw versions of a model, also from a running fleet.

    Args:
        settings: where store and fleet are.
        name: of the model.
        version: None for all.

    Raises:
        NotFoundError: no such model or version.
    """
    registry = open_registry_to_publish(settings, must_exist=True)
    is_external = bool(registry.external_numbers(name))
    if is_external:
        found = dict.fromkeys(registry.remove_external(name, version, who=who_asks()), "")
    else:
        found = registry.remove_model(name, version, who=who_asks())
    removed = list(found)
    left = registry.external_numbers(name) if is_external else registry.version_numbers(name)
    unread = {str(number): fault for number, fault in found.items() if fault}
    if not left:
        # A version that is added later is to serve, whatever was unloaded before.
        registry.set_served(name, is_served=True, who=who_asks())
    samples = {k: w for k, w in registry.sample_windows(name).items() if w.version in found}
    registry.delete_samples(samples if left else registry.sample_keys(name))
    notify_fleet(settings)
    then = f"{_versions(left[-1:])} is to serve from now on" if left else "nothing is left to serve"
    text = f"{name}: {_versions(removed)} removed; {then}\n"
    text += (
        "Its server gets no more requests"
        if is_external
        else "Its engines stay in the store: adding the same model again, with the same recipe, "
        "makes a next version, which serves with them at once"
    )
    text += "".join(f"\nversion {number} could not be read: {unread[number]}" for number in unread)
    if num_samples := sum(window.num_samples for window in samples.values()):
        text += f"\n{num_samples} samples of its requests were deleted"
    document = {"name": name, "removed": removed, "left": left, "unread": unread}
    deleted = {"num_samples_deleted": num_samples}
    show({**document, **deleted}, [text])


def run_models_serve(settings: CliSettings, name: str, *, is_served: bool) -> None:
    """Load or unload a model, also in a running fleet.

    Args:
        settings: where store and fleet are.
        name: of the model.
        is_served: False unloads it.

    Raises:
        NotFoundError: no such model.
    """
    registry = open_registry_to_publish(settings, must_exist=True)
    registry.require_version(name)
    is_changed = registry.set_served(name, is_served=is_served, who=who_asks())
    notify_fleet(settings)
    before = "" if is_changed else " (unchanged)"
    if is_served:
        words = f"is to be served{before}; follow it: smelt status"
    else:
        words = f"is unloaded{before}; undo it with: smelt models load {name}"
    document = {"name": name, "is_served": is_served, "is_changed": is_changed}
    show(document, [f"{name} {words}"])


def _versions(numbers: list[int]) -> str:
    word = "version" if len(numbers) == 1 else "versions"
    return f"{word} {', '.join(map(str, numbers))}"
