"""`smelt models list`: models, their versions, and which of them serve."""

from collections.abc import Sequence
from typing import Any

from services.cli.models.external import external_document
from services.cli.models.version_states import fleet_or_why_not, with_states
from services.cli.output.show import show
from services.cli.registry import open_registry
from services.cli.settings import CliSettings
from services.contracts.model.manifest import ModelVersion
from services.contracts.text.text_table import Table
from services.contracts.text.words import readable_size

_MASTER_COLUMNS = ("size", "master", "opset", "source")
_WIDE = ("versions", "master", "opset", "source")


def run_models_list(settings: CliSettings, *, is_each_version: bool) -> None:
    """Print the models with their newest versions, or all versions.

    Raises:
        NotFoundError: no store is there.
    """
    registry = open_registry(settings)
    snapshot, why_not = fleet_or_why_not(settings)
    found: dict[str, dict[int, dict[str, Any]]] = {}
    unread: list[dict[str, Any]] = []
    for name in registry.model_names():
        versions, faults = registry.readable_versions(name)
        found[name] = {each.version: version_document(each) for each in versions}
        # A document that cannot be read must not hide those that can.
        unread += [{"name": name, "version": n, "fault": faults[n]} for n in faults]
    for name in registry.external_names():
        externals = registry.external_versions(name)
        found[name] = {each.version: external_document(each) for each in externals}
    models = [
        document
        for name, documents in found.items()
        for document in with_states(snapshot, name, documents, is_each_version=is_each_version)
    ]
    table = _versions_table(models) if is_each_version else _models_table(models)
    text: list[str | Table] = [table, why_not, *map(_unread_words, unread)]
    show({"models": models, "unread": unread}, text)


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
