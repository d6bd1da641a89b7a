"""The settings of each process: environment variables, defaults, meanings."""

import tempfile
from pathlib import Path
from typing import Any

from pydantic.fields import FieldInfo

from compiler_worker.settings import CompilerSettings
from services.cli.recipes.docstrings import attributes, sentence
from services.cli.settings import CliSettings
from services.contracts.process.settings import ProcessSettings
from services.contracts.security.fleet_security import FleetSecuritySettings
from services.controller.ray_node import RayNodeSettings
from services.controller.settings import ControllerSettings
from services.gateway.settings import GatewaySettings
from services.replica.settings import ReplicaSettings
from services.telemetry.tracing import TracingSettings
from tests.reference.text import page, table

INTRODUCTION = (
    "Settings are environment variables, read once when a process starts. `smelt up` passes its "
    "environment on to the processes that it starts, so setting a variable before `smelt up` is "
    "enough; what it decides itself (ports, addresses, store) it passes to them too. A wrong value "
    "stops the start with variable, value and what was expected. An empty default means: not set."
)
# In the order in which a reader meets the processes.
PROCESSES: tuple[tuple[str, type[ProcessSettings]], ...] = (
    ("The command smelt", CliSettings),
    ("Gateway", GatewaySettings),
    ("Controller", ControllerSettings),
    ("Replica", ReplicaSettings),
    ("Compiler", CompilerSettings),
    ("Ray of one host", RayNodeSettings),
    ("Traces", TracingSettings),
)
FLEET = (
    "The command, gateway, controller and replica each take these too, with their own prefix "
    "(`SMELT_`, `SMELT_GATEWAY_`, `SMELT_CONTROLLER_`, `SMELT_REPLICA_`)."
)


def settings_page() -> str:
    parts = [
        f"## {title}\n\n{_table(settings, list(settings.__annotations__))}"
        for title, settings in PROCESSES
    ]
    common = _table(FleetSecuritySettings, list(FleetSecuritySettings.__annotations__))
    return page("Settings", INTRODUCTION, *parts, f"## Inside the fleet\n\n{FLEET}\n\n{common}")


def _table(settings: type[ProcessSettings], names: list[str]) -> str:
    prefix = settings.env_prefix
    meanings = attributes(settings)
    rows = [
        (f"`{prefix}{name.upper()}`", _default(field), sentence(meanings.get(name, "")))
        for name, field in settings.model_fields.items()
        if name in names
    ]
    return table(("variable", "default", "meaning"), rows)


def _default(field: FieldInfo) -> str:
    value: Any = field.default
    if field.is_required():
        return "required"
    if field.default_factory is dict or value is None or value == "":
        return ""
    if field.default_factory:
        return "found at start"
    # The same on every machine, whatever its TMPDIR.
    if value == Path(tempfile.gettempdir()):
        return "the temporary folder"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"
