"""`smelt models list`: models, their versions, and which of them serve."""

from collections.abc import Iterator, Sequence
from typing import Any

from services.cli.models.external import listed_externals
from services.cli.models.version_states import fleet_or_why_not, version_states
from services.cli.output.show import show
from services.cli.registry import open_registry
from services.cli.settings import CliSettings
from services.contracts.model.manifest import ModelVersion
from services.contracts.text.text_table import Table
from services.contracts.text.words import readable_size
from services.pb import fleet_v1_pb2 as fleet

_MASTER_COLUMNS = ("size", "master", "opset", "source")
_WIDE = ("versions", "master", "opset", "source")


def run_models_list(
    settings: CliSettings, *, is_each_version: bool, as_json: bool, is_wide: bool = False
) -> None:
    """Print the models with their newest versions, or all versions.

    Args:
        settings: where store and fleet are.
        is_each_version: one row for each version.
        as_json: print one document.
        is_wide: show columns that do not fit the terminal.

    Raises:
        NotFoundError: no store is there.
    """
    registry = open_registry(settings)
    snapshot, why_not = fleet_or_why_not(settings)
    models: list[dict[str, Any]] = []
    unread: list[dict[str, Any]] = []
    for name in registry.model_names():
        versions, faults = registry.readable_versions(name)
        document = _version_documents if is_each_version else _model_documents
        if versions:
            models += document(versions, snapshot)
        # A document that cannot be read must not hide those that can.
        unread += [{"name": name, "version": n, "fault": faults[n]} for n in faults]
    models += listed_externals(registry, snapshot, is_each_version=is_each_version)
    table = _versions_table(models) if is_each_version else _models_table(models)
    text: list[str | Table] = [table, why_not, *map(_unread_words, unread)]
    show({"models": models, "unread": unread}, text, as_json=as_json, is_wide=is_wide)


def version_document(version: ModelVersion) -> dict[str, Any]:
    """A version as plain data."""
    return {
        "name": version.name,
        "version": version.version,
        "master_digest": version.master.digest,
        "opset": version.master.opset,
        "num_parameters": version.master.num_parameters,
        "num_bytes": sum(ref.num_bytes for ref in version.master.files.values()),
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


def _version_documents(
    versions: Sequence[ModelVersion], snapshot: fleet.FleetSnapshot | None
) -> Iterator[dict[str, Any]]:
    """Each version; without a fleet, its state is null."""
    states = version_states(snapshot, versions[0].name, [v.version for v in versions])
    for version in versions:
        state = states.get(version.version)
        yield version_document(version) | {"state": state and state.words}


def _model_documents(
    versions: Sequence[ModelVersion], snapshot: fleet.FleetSnapshot | None
) -> Iterator[dict[str, Any]]:
    """The newest version; without a fleet, what serves is null."""
    numbers = [version.version for version in versions]
    states = version_states(snapshot, versions[0].name, numbers)
    serving = [number for number, state in states.items() if state.is_serving]
    yield version_document(versions[-1]) | {
        "versions": numbers,
        "serving": None if snapshot is None else serving,
    }


def _unread_words(version: dict[str, Any]) -> str:
    name = version["name"]
    number = version["version"]
    return (
        f"{name} version {number} cannot be read: {version['fault']}; withdraw it: "
        f"smelt models remove {name} --version {number}"
    )


def _models_table(models: Sequence[dict[str, Any]]) -> Table:
    rows = [
        (m["name"], str(m["version"]), str(len(m["versions"])), _serving(m), *_master(m))
        for m in models
    ]
    columns = ("model", "newest", "versions", "serving", *_MASTER_COLUMNS)
    return Table("Models", columns, rows, _WIDE)


def _versions_table(versions: Sequence[dict[str, Any]]) -> Table:
    rows = [(v["name"], str(v["version"]), v["state"] or "?", *_master(v)) for v in versions]
    return Table("Versions", ("model", "version", "state", *_MASTER_COLUMNS), rows, _WIDE)


def _serving(model: dict[str, Any]) -> str:
    serving = model["serving"]
    return "?" if serving is None else ", ".join(map(str, serving)) or "none"


def _master(version: dict[str, Any]) -> tuple[str, str, str, str]:
    if "protocol" in version:  # it is external
        return "-", "-", "-", version["source"]
    digest = version["master_digest"][:12]
    size = readable_size(version["num_bytes"])
    return size, digest, str(version["opset"]), version["source"]
