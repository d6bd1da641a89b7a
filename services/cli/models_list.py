"""`smelt models list`: models, their versions, and which of them serve."""

from collections.abc import Mapping
from typing import Any

from services.cli.output import console, print_json, print_table, readable_size
from services.cli.registry import open_registry
from services.cli.settings import CliSettings
from services.cli.version_states import VersionState, fleet_or_why_not, version_states
from services.contracts.manifest import ModelVersion

_Found = tuple[ModelVersion, VersionState | None]
_UNKNOWN = "?"


def run_models_list(settings: CliSettings, *, is_each_version: bool, as_json: bool) -> None:
    """Print the newest version of each model and which versions serve, or every version."""
    registry = open_registry(settings)
    snapshot, why_not = fleet_or_why_not(settings)
    models: dict[str, list[_Found]] = {}
    for name in registry.model_names():
        versions = registry.versions(name)
        numbers = [each.version for each in versions]
        states = version_states(snapshot, name, numbers) if snapshot else {}
        models[name] = [(each, states.get(each.version)) for each in versions]
    if as_json:
        print_json({"models": _documents(models, is_each_version=is_each_version)})
    elif is_each_version:
        _print_versions(models)
    else:
        _print_models(models)
    if why_not and models and not as_json:
        console.print(why_not, markup=False, soft_wrap=True)


def version_document(version: ModelVersion) -> dict[str, Any]:
    """A version as plain data."""
    return {
        "name": version.name,
        "version": version.version,
        "master_digest": version.master.digest,
        "opset": version.master.opset,
        "num_parameters": version.master.num_parameters,
        "inputs": [spec.model_dump() for spec in version.master.inputs],
        "outputs": [spec.model_dump() for spec in version.master.outputs],
        "input_values": {
            name: values.model_dump(mode="json")
            for name, values in version.master.input_values.items()
        },
        "fallback_verdict": version.fallback_verdict
        and version.fallback_verdict.model_dump(mode="json"),
        "source": version.source,
        "created_at": version.created_at,
    }


def _documents(
    models: Mapping[str, list[_Found]], *, is_each_version: bool
) -> list[dict[str, Any]]:
    """Without a fleet, states and what serves are null."""
    if is_each_version:
        return [
            version_document(version) | {"state": state and state.words}
            for found in models.values()
            for version, state in found
        ]
    return [
        version_document(found[-1][0])
        | {"versions": [version.version for version, _ in found], "serving": _serving(found)}
        for found in models.values()
    ]


def _serving(found: list[_Found]) -> list[int] | None:
    if any(state is None for _, state in found):
        return None
    return [version.version for version, state in found if state and state.is_serving]


def _print_models(models: Mapping[str, list[_Found]]) -> None:
    columns = ("model", "newest", "versions", "serving", "master", "opset", "size", "source")
    print_table("Models", columns, [
        (name, str(found[-1][0].version), str(len(found)), _serving_words(found),
         *_master_words(found[-1][0]))
        for name, found in models.items()
    ])  # fmt: skip


def _print_versions(models: Mapping[str, list[_Found]]) -> None:
    columns = ("model", "version", "state", "master", "opset", "size", "source")
    print_table("Versions", columns, [
        (name, str(version.version), state.words if state else _UNKNOWN, *_master_words(version))
        for name, found in models.items()
        for version, state in found
    ])  # fmt: skip


def _serving_words(found: list[_Found]) -> str:
    serving = _serving(found)
    return _UNKNOWN if serving is None else ", ".join(map(str, serving)) or "none"


def _master_words(version: ModelVersion) -> tuple[str, str, str, str]:
    master = version.master
    size = readable_size(sum(ref.num_bytes for ref in master.files.values()))
    return master.digest[:12], str(master.opset), size, version.source
