"""How often the fleet is looked at for the page, and what that costs the store and the loop."""

import threading
from collections import Counter
from pathlib import Path

import pytest

from services.contracts.events import Event, EventKind, EventPosition
from services.contracts.store.object_store import ObstoreArtifactStore
from services.controller.build.build_view import FleetView
from services.controller.page import fleet_page
from services.controller.page.background_reads import BackgroundReads
from tests.unit.services.controller import build_world as world
from tests.unit.services.controller.page.page_host import PageHost, page_host, served_model


def test_it_is_made_once_a_second_however_many_look(host: PageHost) -> None:
    first = host.page.overview()
    host.do(lambda: host.state.set_model(served_model("another")))
    host.view = FleetView(pools=(world.pool(),))
    assert host.page.overview().tag == first.tag
    host.now_s += 1.0
    assert host.page.overview().tag != first.tag


def test_what_takes_long_is_made_less_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Counter[str]()
    with page_host(tmp_path) as host:

        def slowly(*_: object) -> dict[str, list[object]]:
            made["documents"] += 1
            host.now_s += 3.0
            return {"models": []}

        monkeypatch.setattr(fleet_page, "fleet_document", slowly)
        host.page.overview()
        for _ in range(4):
            host.view = FleetView()
            host.now_s += 9.0
            host.page.overview()
    # Not 9, 18 and 27 s after it: a tenth of the time is what three seconds may take.
    assert made["documents"] == 2


def test_a_loop_that_hangs_is_said(tmp_path: Path) -> None:
    with page_host(tmp_path, is_hasty=True) as host:
        released, begun = threading.Event(), threading.Event()

        def hang() -> None:
            begun.set()
            released.wait(60)

        hanging = threading.Thread(target=host.do, args=(hang,))
        hanging.start()
        begun.wait(60)
        status, _, body = host.get("/state")
        released.set()
        hanging.join()
        assert status == 503
        assert "event loop did not answer" in body["error"]


def test_a_look_asks_nothing_of_the_store(host: PageHost, monkeypatch: pytest.MonkeyPatch) -> None:
    host.page.overview()
    asked = Counter[str]()
    for verb in ("list", "read"):
        plain = getattr(ObstoreArtifactStore, verb)

        def counted(store: ObstoreArtifactStore, key: str, verb: str = verb, plain=plain):  # type: ignore[no-untyped-def]
            asked[verb] += 1
            return plain(store, key)

        monkeypatch.setattr(ObstoreArtifactStore, verb, counted)
    for _ in range(3):
        host.now_s += 2.0
        host.do(lambda: host.state.set_builds([]))
        host.page.overview()
    assert not asked


def test_events_are_read_in_the_background_and_followed(tmp_path: Path) -> None:
    registry = world.registry_with_model(tmp_path)
    reads = BackgroundReads(registry, lambda: None)
    position = EventPosition()

    def happen(why: str) -> None:
        nonlocal position
        event = Event(at=world.AT, kind=EventKind.MODEL_PUBLISHED, model="m", version=1, why=why)
        position = registry.append_event(event, position) or position

    def read(now_s: float) -> list[str]:
        reads.refresh([], now_s)
        for thread in threading.enumerate():
            if thread.name == "page":
                thread.join()
        return [event["why"] for event in reads.shown.events]

    assert read(0.0) == []
    happen("first")
    assert read(5.0) == []  # not yet again
    assert read(10.0) == ["first"]
    happen("second")
    assert read(20.0) == ["first", "second"]
