"""External models on the command line: added, listed and explained."""

from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from services.cli.fleet.control_client import fleet_on_store, notify_fleet
from services.cli.fleet.fleet_file import START_ONE
from services.cli.output.show import show
from services.cli.registry import open_registry_to_publish
from services.cli.settings import CliSettings
from services.contracts.errors import InvalidRequestError
from services.contracts.external.external_model import ExternalModel
from services.contracts.registry.registry import Registry
from services.contracts.text.words import NO_FLEET


class RemoteModel(NamedTuple):
    """What the server calls it, and files of what runs it; see `ExternalModel`."""

    url: str
    name: str
    version: str
    token: str
    args: Path | None = None
    manifest: Path | None = None


def run_add_external(
    settings: CliSettings, name: str, remote: RemoteModel, *, has_options: bool
) -> None:
    """Publish the next version of an external model; its server is not called here.

    Args:
        settings: where store and fleet are.
        name: of the model.
        remote: the server, and what it calls the model.
        has_options: options of models with a master were given.

    Raises:
        InvalidRequestError: a value is wrong, or options do not fit.
    """
    if has_options:
        raise InvalidRequestError(
            f"{remote.url}: an external model is served as its server has it; leave out --recipe, "
            "--samples, --tokenizer, --pooling and --normalize"
        )
    try:
        draft = ExternalModel(
            name=name,
            version=0,
            url=remote.url,
            remote_name=remote.name,
            remote_version=remote.version,
            args=_read_yaml("--args", remote.args) if remote.args else {},
            manifest=_read_yaml("--manifest", remote.manifest) if remote.manifest else (),
            token=remote.token,
        )
    except ValidationError as error:
        fault = error.errors()[0]
        option, *path = fault["loc"] or [""]
        where = f"--{option}: " if option else ""
        where += f"{'.'.join(map(str, path))}: " if path else ""
        raise InvalidRequestError(where + fault["msg"].removeprefix("Value error, ")) from error
    registry = open_registry_to_publish(settings)
    version = registry.add_external_version(draft)
    is_noticed = notify_fleet(settings)
    then = f"whether it answers: smelt why {name}" if is_noticed else f"{NO_FLEET}; {START_ONE}"
    line = f"{name} version {version.version} is {version.words}"
    show(external_document(version), [line, then])


def _read_yaml(option: str, path: Path) -> Any:
    # Its library is for files of people alone.
    from services.contracts.model.yaml_text import YamlFault, value_from_yaml, values_from_yaml

    try:
        text = path.read_text()
        return values_from_yaml(text) if option == "--manifest" else value_from_yaml(text) or {}
    except (OSError, UnicodeDecodeError, YamlFault) as error:
        words = error.strerror if isinstance(error, OSError) else error
        raise InvalidRequestError(f"{option} {path}: {words}") from error


def external_document(version: ExternalModel) -> dict[str, Any]:
    """A version as plain data; `source` is where versions with a master have theirs."""
    fields = version.model_dump(mode="json")
    return fields | {"source": version.url, "protocol": version.protocol.value}


def explain_external(
    settings: CliSettings, registry: Registry, name: str, version: int | None
) -> None:
    """`smelt why` of an external model.

    Args:
        settings: where the fleet is.
        registry: on the store.
        name: of a model that is external.
        version: the newest by default.

    Raises:
        NotFoundError: it has no such version.
    """
    explained = registry.external_version(name, registry.require_version(name, version))
    snapshot = fleet_on_store(settings)
    found = [
        (model.state, model.reason)
        for model in (snapshot.models if snapshot else ())
        if (model.name, model.version) == (name, explained.version)
    ]
    state, reason = found[0] if found else ("", "")
    what = f"{name} version {explained.version} is {explained.words}"
    words = f": {state}" if state else ""
    lines = [
        what + words + (f", {reason}" if reason else ""),
        "it has no master: no engine is built for it, and nothing is planned",
        snapshot.fault if snapshot else f"{NO_FLEET}; {START_ONE}",
    ]
    where = {"model": name, "version": explained.version, "generations": []}
    external = external_document(explained) | {"state": state, "reason": reason}
    show(where | {"external": external}, lines)
