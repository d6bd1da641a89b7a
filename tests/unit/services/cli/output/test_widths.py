"""Every table fits a terminal of 80 columns, with names and values as a fleet has them."""

import io
import os
import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner

from compiler_worker.profiling.report_lines import report_parts
from services.cli.main import app
from services.contracts.builds.build_lease import BuildLease
from services.contracts.events import Event, EventKind, EventPosition
from services.contracts.hardware.kinds import EngineKind, Precision
from services.contracts.model.recipe import Recipe
from services.contracts.registry.registry import Registry
from services.contracts.store.object_store import open_store
from services.contracts.terms import proof_terms
from services.contracts.text.moments import timestamp, utc_now
from services.contracts.text.text_table import Table
from services.pb import fleet_v1_pb2 as fleet
from tests.unit.compiler_worker.profiling.reports import small_report
from tests.unit.services.cli.fleet_stub import fleet_saying, replica
from tests.unit.services.controller import build_world as world

NAME = "all-minilm-l6-v2-multilingual-support"
GENERATION = "cpu-x86_64-avx512_bf16"
DEVICE = world.DEVICE.model_copy(update={"generation": GENERATION})
PRECISIONS = (Precision.FP32, Precision.INT8_WEIGHT_ONLY)
KEYS = tuple(
    world.key(
        EngineKind.ONNXRUNTIME,
        generation=GENERATION,
        precision=precision,
        proof_terms=proof_terms(Recipe(), precision, None),
    )
    for precision in PRECISIONS
)
# A rule below the heads: as wide as the table, and no narrower than any of its lines.
RULE = re.compile(r"^-+(?:  -+)*$")
COMMANDS = {
    "status": ("Models", "Replicas", f"Being built for {NAME}"),
    "models list": ("Models",),
    "models list --all-versions": ("Versions",),
    f"models weights {NAME}": (f"Weights of {NAME}",),
    f"engines {NAME}": (f"Engines of {NAME} version 1 on {GENERATION}", f"Being built for {NAME}"),
    f"why {NAME}": ("Planned",),
    f"why --keys {KEYS[0].digest()} {KEYS[1].digest()}": ("Differences",),
    "prune --older-than 1": ("unused",),
}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    """A model with a published engine and one that is being built, and the fleet that serves it."""
    made = Registry(open_store(str(tmp_path / "store")), tmp_path / "cache")
    source = f"/home/somebody/exported/models/{NAME}/model.onnx"
    for _ in range(2):
        made.add_model_version(
            name=NAME, master=world.MASTER, recipe=Recipe(), source=source, source_fingerprint="0"
        )
    node_class = world.NODE_CLASS.model_copy(update={"generation": GENERATION})
    for version in (1, 2):
        plan = world.plan(KEYS, model=NAME, version=version, node_class=node_class, facts=DEVICE)
        made.write_plan(plan)
    timings = tuple(t.model_copy(update={"p50_s": s}) for s in (0.00123, 1.2) for t in TIMINGS)
    made.publish_engine(world.manifest(KEYS[0]), {}, world.proof(device=DEVICE, timings=timings))
    made.offer_lease(KEYS[1].digest(), 1, lease())
    unused = tmp_path / "store" / "blobs" / "sha256" / ("f" * 64)
    unused.parent.mkdir(parents=True, exist_ok=True)
    unused.write_bytes(b"of nothing")
    os.utime(unused, (0, 0))
    reports = [
        replica(version, digest, **REPLICA)
        for version, digest in ((1, KEYS[0].digest()), (1, KEYS[0].digest()), (2, ""))
    ]
    reason = "2 of its 3 replicas failed to load: no space left on the device that has the cache"
    models = [
        fleet.ServedModel(
            name=NAME, version=version, state="UNAVAILABLE", reason=reason, num_replicas_wanted=3
        )
        for version in (1, 2)
    ]
    snapshot = fleet.FleetSnapshot(
        store_url=str(tmp_path / "store"), models=models, replicas=reports
    )
    monkeypatch.setenv("SMELT_HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "80")
    with fleet_saying(snapshot) as address:
        monkeypatch.setenv("SMELT_CONTROLLER", address)
        yield made


TIMINGS = world.paired(1.5, 2.5)


def lease() -> BuildLease:
    """One that was renewed now."""
    return BuildLease(
        holder="a",
        host="compiler-7f9c6b5d4-x2x9k",
        process_id=123456,
        lease_s=3000.0,
        stage="benchmark",
        stage_since=timestamp(utc_now()),
        line="compiling C++ of a long kernel",
        taken_at=timestamp(utc_now() - timedelta(seconds=1234)),
        renewed_at=timestamp(utc_now()),
    )


REPLICA = {
    "replica_id": f"smelt~{NAME}~1~{GENERATION}#ReplicaDeployment#k3jd82ks",
    "model_name": NAME,
    "device_facts_json": DEVICE.canonical_json(),
    "engine_kind": "onnxruntime",
    "engine_precision": "int8_weight_only",
}


def printed(*words: str) -> list[str]:
    result = CliRunner().invoke(app, words, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output.splitlines()


@pytest.mark.parametrize("command", COMMANDS)
def test_tables_fit(registry: Registry, command: str) -> None:
    lines = printed(*command.split())
    rules = [line for line in lines if RULE.match(line)]
    assert len(rules) == len(COMMANDS[command])
    # Long titles are folded.
    text = re.sub(r"\n +", " ", "\n".join(lines)).splitlines()
    assert set(COMMANDS[command]) <= set(text)
    assert max(map(len, rules)) <= 80
    assert not [line for line in lines if len(line) > 80 and line.startswith(COMMANDS[command])]


@pytest.mark.parametrize("command", ["models list", f"engines {NAME}", f"why {NAME}"])
def test_what_is_copied_is_in_one_piece(registry: Registry, command: str) -> None:
    text = "\n".join(printed(*command.split()))
    assert NAME in text
    assert command == "models list" or KEYS[0].digest()[:12] in text


@pytest.mark.parametrize(
    ("command", "more"),
    [
        ("status", "#ReplicaDeployment#k3jd82ks"),
        ("models list", "/model.onnx"),
        (f"engines {NAME}", "compiling C++ of a long kernel"),
        (f"why {NAME}", "x eager"),
    ],
)
def test_wide_shows_the_rest(registry: Registry, command: str, more: str) -> None:
    assert not any(more in line for line in printed(*command.split()) if not line.startswith("re"))
    assert any(more in line for line in printed(*command.split(), "--wide"))


def test_events_are_a_line_each_in_a_pipe(registry: Registry) -> None:
    why = "it differs from the float64 run of the model by more than its recipe allows, " * 3
    position = EventPosition()
    for kind in (EventKind.BUILD_FAILED, EventKind.QUARANTINED):
        event = Event(kind=kind, model=NAME, version=1, generation=GENERATION, why=why, at=world.AT)
        position = registry.append_event(event, position) or position
    # Behind them stands what is being built now.
    assert len(printed("events")) == len(printed("events", "--wide")) == 2 + 1


def test_the_tables_of_a_profile_fit() -> None:
    tables = [part for part in report_parts(small_report()) if isinstance(part, Table)]
    assert len(tables) == 3
    assert max(len(line) for table in tables for line in table.lines(80)) <= 80


@pytest.mark.parametrize("command", COMMANDS)
def test_prose_fits_a_terminal_too(
    registry: Registry, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setattr("sys.stdout", terminal := Terminal())
    app(command.split(), standalone_mode=False)
    text = terminal.getvalue()
    # What cannot be folded are names, titles, and commands that are to be pasted.
    long = [line for line in text.splitlines() if len(line) > 80 and "\x1b" not in line]
    assert text
    assert all(re.fullmatch(r" *(\S+|(\S*/)?(smelt|python[\d.]*) .*)", line) for line in long), long
