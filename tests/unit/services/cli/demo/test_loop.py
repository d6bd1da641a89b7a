"""The demo follows a fleet until nothing is left to be built: a real store, and a script for it."""

import itertools
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from services.cli.demo.loop import DemoLoop
from services.cli.demo.traffic import DemoTraffic
from services.cli.demo.words import end_words
from services.cli.output import progress, show
from services.cli.output.progress import Steps
from services.cli.settings import CliSettings
from services.cli.why.why import case_text
from services.contracts.errors import NotReadyError
from services.contracts.events import Event, EventKind, EventPosition
from services.contracts.model.recipe import Recipe
from services.contracts.registry.registry import Registry
from services.contracts.terms import proof_terms
from services.pb import fleet_v1_pb2 as fleet
from tests.unit.services.cli.fleet_stub import build, replica
from tests.unit.services.controller import build_world as world

KEY = world.key(proof_terms=proof_terms(Recipe(), world.key().precision, None))
DEVICE = {"device_facts_json": world.DEVICE.canonical_json()}
Look = fleet.FleetSnapshot | NotReadyError
ENGINE = {"engine_kind": "openvino", "engine_precision": "fp32"}


class Answering(DemoTraffic):
    """Was answered already."""

    def __init__(self) -> None:
        super().__init__(lambda: None, lambda: None)
        self.answered_at = 1.0


@pytest.fixture
def console(monkeypatch: pytest.MonkeyPatch) -> Console:
    console = Console(record=True, width=160, force_terminal=False)
    for module in (progress, show):
        monkeypatch.setattr(module, "error_console", lambda: console)
    return console


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    made = world.registry_with_model(tmp_path)
    made.write_plan(world.plan((KEY,)))
    return made


def fleet_of(*builds: fleet.FleetBuild, digest: str = "") -> fleet.FleetSnapshot:
    changes: dict[str, Any] = DEVICE | ENGINE if digest else DEVICE
    return fleet.FleetSnapshot(replicas=[replica(1, digest, **changes)], builds=builds)


def followed(
    tmp_path: Path,
    registry: Registry,
    looks: Iterator[Look],
    clock: Callable[[], float] = time.monotonic,
) -> tuple[DemoLoop, list[dict[str, Any]]]:
    settings, version = CliSettings(home=tmp_path), registry.model_version("m")

    def look() -> fleet.FleetSnapshot:
        found = next(looks)
        if isinstance(found, NotReadyError):
            raise found
        return found

    with Steps(is_quiet=False).step("Demo") as line:
        loop = DemoLoop(settings, registry, version, look, line, Answering(), clock)
        return loop, loop.follow(EventPosition())


def prove(registry: Registry) -> None:
    proof = world.proof(timings=world.paired(2.0, 3.0))
    registry.publish_engine(world.manifest(KEY), {}, proof)
    event = Event(
        at=world.AT,
        kind=EventKind.PROOF_PASSED,
        model="m",
        why="openvino fp32: 2.45 x the fallback",
    )
    registry.append_event(event, EventPosition())


def test_it_ends_when_the_best_engine_serves(
    tmp_path: Path, registry: Registry, console: Console
) -> None:
    def looks() -> Iterator[fleet.FleetSnapshot]:
        yield fleet_of(build("m", started_at=world.AT))
        prove(registry)
        yield fleet_of(build("m", started_at=world.AT))
        # Nothing is built any more, and the replica has not taken the engine yet.
        yield fleet_of()
        yield fleet_of(digest=KEY.digest())

    loop, (case,) = followed(tmp_path, registry, looks())
    printed = console.export_text()
    in_order = (
        "first answer, by the fallback (ONNX Runtime or PyTorch), as no proven engine of this",
        "proof passed (1 of 1): openvino fp32: 2.45 x the fallback",
        "requests are answered now by engine openvino fp32",
    )
    places = [printed.index(words) for words in in_order]
    assert places == sorted(places)
    assert case["planned"][0]["rank"] == 1
    # The table at the end is of what the loop found, and nothing else.
    text = "".join(map(str, case_text(case, registry.model_version("m"))))
    assert "serves with openvino fp32" in text
    assert loop.first_answer_s is not None
    assert loop.first_proven_s is not None


def test_what_is_proven_already_serves_at_once(
    tmp_path: Path, registry: Registry, console: Console
) -> None:
    prove(registry)
    loop, _ = followed(tmp_path, registry, iter([fleet_of(digest=KEY.digest())]))
    assert "first answer, by engine openvino fp32" in console.export_text()
    assert loop.first_proven_s == loop.first_answer_s


def test_a_key_that_is_not_built_yet_is_waited_for(tmp_path: Path, registry: Registry) -> None:
    def looks() -> Iterator[fleet.FleetSnapshot]:
        # Before the controller launches the build.
        yield fleet_of()
        prove(registry)
        yield fleet_of(digest=KEY.digest())

    _, (case,) = followed(tmp_path, registry, looks())
    assert case["planned"][0]["key_state"] == "proven"


def test_a_failed_proof_ends_it_on_the_fallback(tmp_path: Path, registry: Registry) -> None:
    failed = world.proof(world.ProofOutcome.FAILED, reason="output 'y': too far off")
    registry.publish_engine(world.manifest(KEY), {}, failed)
    loop, (case,) = followed(tmp_path, registry, iter([fleet_of()]))
    assert case["planned"][0]["reason"].endswith("output 'y': too far off")
    assert loop.first_proven_s is None


def test_what_failed_is_waited_for_until_it_is_given_up(tmp_path: Path, registry: Registry) -> None:
    def looks() -> Iterator[fleet.FleetSnapshot]:
        for _ in range(2):
            registry.record_build(world.record(KEY))
            # Nothing is due before the pause after a failure is over.
            yield fleet_of()
        registry.record_build(world.record(KEY))
        yield fleet_of()

    _, (case,) = followed(tmp_path, registry, looks())
    assert case["planned"][0]["key_state"] == "quarantined"
    assert end_words([case]) == "nothing is left to be built"


def failed_plan(kind: EventKind) -> Event:
    why = "no plan could be made"
    return Event(kind=kind, model="m", version=1, generation=world.GENERATION, why=why, at=world.AT)


def test_a_plan_that_was_given_up_ends_it_with_the_reason(tmp_path: Path) -> None:
    registry = world.registry_with_model(tmp_path)
    # By an earlier fleet on this store; the one of now tries again.
    begin = EventPosition()
    position = registry.append_event(failed_plan(EventKind.QUARANTINED), begin) or begin
    position = registry.append_event(failed_plan(EventKind.BUILD_STARTED), position) or position

    def looks() -> Iterator[fleet.FleetSnapshot]:
        yield fleet_of()
        registry.append_event(failed_plan(EventKind.QUARANTINED), position)
        yield fleet_of()

    _, cases = followed(tmp_path, registry, looks())
    assert end_words(cases) == "quarantined: no plan could be made"


def test_the_time_for_a_change_begins_anew_after_another_build(
    tmp_path: Path, registry: Registry
) -> None:
    prove(registry)
    # The replica still has the fallback each time that nothing is left to be built.
    looks = [fleet_of(), fleet_of(build("m", started_at=world.AT)), fleet_of()]
    looks.append(fleet_of(digest=KEY.digest()))
    _, (case,) = followed(tmp_path, registry, iter(looks), clock=itertools.count(0, 30).__next__)
    assert case["replicas"][0]["engine_digest"] == KEY.digest()


def test_a_killed_controller_is_waited_for(
    tmp_path: Path, registry: Registry, console: Console
) -> None:
    prove(registry)
    looks: list[Look] = [fleet_of(), NotReadyError("killed"), NotReadyError("killed")]
    # It has no replica at first.
    looks += [fleet.FleetSnapshot(), fleet_of(digest=KEY.digest())]
    _, (case,) = followed(tmp_path, registry, iter(looks))
    assert case["replicas"][0]["engine_digest"] == KEY.digest()
    assert console.export_text().count("the controller does not answer") == 1


def test_a_controller_that_stays_away_is_an_error(tmp_path: Path, registry: Registry) -> None:
    away = (NotReadyError(f"look {number}") for number in itertools.count())
    with pytest.raises(NotReadyError, match="look 3"):
        followed(tmp_path, registry, away, clock=itertools.count(0, 50).__next__)


def test_each_absence_of_the_controller_has_its_own_time(
    tmp_path: Path, registry: Registry
) -> None:
    prove(registry)
    building = fleet_of(build("m", started_at=world.AT))
    looks: list[Look] = [NotReadyError("killed"), NotReadyError("killed"), building] * 3
    looks.append(fleet_of(digest=KEY.digest()))
    clock = itertools.count(0, 40).__next__
    _, (case,) = followed(tmp_path, registry, iter(looks), clock=clock)
    assert case["replicas"][0]["engine_digest"] == KEY.digest()
