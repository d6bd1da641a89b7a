"""The RPCs of both services, with the comments of the protos."""

import re
from pathlib import Path

from services.gateway.api.disabled_rpcs import disabled_reason, disabled_reasons
from services.gateway.api.metadata import EXTENSIONS, MetadataServicer
from tests.reference.text import page, table

PROTOS = Path(__file__).resolve().parents[2] / "protos" / "services" / "pb"
_SERVICE = re.compile(r"^service \w+ \{\n(.*?)^\}", re.MULTILINE | re.DOTALL)
_PART = re.compile(r"((?:^ *// .*\n)+)((?:^ *rpc .*\n)+)", re.MULTILINE)
_CAPITAL = re.compile(r"(?<!^)(?=[A-Z])")
_RPC = re.compile(r"rpc (\w+)\((stream )?(\w+)\) returns \((stream )?(\w+)\)")

INTRODUCTION = (
    "Clients use `inference.GRPCInferenceService`, KServe's open inference protocol (v2) with "
    "Triton's extensions, names and field numbers, so that `tritonclient` and perf_analyzer work "
    "unchanged; `grpc.health.v1.Health` and server reflection are served too. Answers are always "
    "`raw_output_contents`, one entry for each output. RPCs that are off answer UNIMPLEMENTED and "
    "name the setting that switches them on. `extensions` of ServerMetadata lists what works: "
    "{extensions}, and what was switched on."
)
FLEET = (
    "`smelt.fleet.v1.FleetControl` is the control plane: replicas, gateways and the command "
    "`smelt` call the controller. Every call carries the fleet's token."
)


def rpcs_page() -> str:
    rows = [(*row, _reason(row[0].strip("`"))) for row in _rows("open_inference_v2.proto")]
    needs = table(("RPC", "request", "answer", "what for", "off by default"), rows)
    fleet = table(("RPC", "request", "answer", "what for"), _rows("fleet_v1.proto"))
    return page(
        "RPCs",
        INTRODUCTION.format(extensions=", ".join(f"`{name}`" for name in EXTENSIONS)),
        f"## inference.GRPCInferenceService\n\n{needs}",
        f"## smelt.fleet.v1.FleetControl\n\n{FLEET}\n\n{fleet}",
    )


def _reason(name: str) -> str:
    """Why an RPC is off by default; "" for one that every gateway answers."""
    is_answered = hasattr(MetadataServicer, _CAPITAL.sub("_", name).lower())
    return "" if is_answered else disabled_reason(name, disabled_reasons() | {"": ""})


def _rows(proto: str) -> list[tuple[str, str, str, str]]:
    (body,) = _SERVICE.findall((PROTOS / proto).read_text())
    return [
        (f"`{name}`", _message(given, asked), _message(taken, answer), _words(comment))
        for comment, rpcs in _PART.findall(body)
        for name, given, asked, taken, answer in _RPC.findall(rpcs)
    ]


def _message(stream: str, name: str) -> str:
    return f"{stream}`{name}`"


def _words(comment: str) -> str:
    return " ".join(line.strip().removeprefix("// ") for line in comment.splitlines())
