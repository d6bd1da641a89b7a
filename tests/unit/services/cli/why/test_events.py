"""`smelt events` on a real store; no fleet runs."""

from contextlib import nullcontext

import pytest
from typer.testing import CliRunner

from services.cli.main import app
from services.cli.why import events
from services.cli.why.events import event_line
from services.contracts.events import Event, EventKind
from services.contracts.registry import event_log
from services.contracts.registry.registry import Registry
from services.contracts.store.object_store import ObstoreArtifactStore
from tests.unit.services.cli.why.explained import (
    one_pass,
    smelt,
    smelt_json,
)
from tests.unit.services.controller import build_world as world


class TestEvents:
    def test_an_empty_trail_says_so(self, registry: Registry) -> None:
        assert "no events yet" in smelt("events")
        assert smelt_json("events") == {"events": [], "unread": ""}

    def test_the_newest_are_shown_oldest_first(self, registry: Registry) -> None:
        one_pass(registry)
        kinds = [event["kind"] for event in smelt_json("events")["events"]]
        assert kinds[:2] == ["generation_appeared", "model_published"]
        assert kinds[-1] == "quarantined"
        assert [e["kind"] for e in smelt_json("events", "--limit", "1")["events"]] == kinds[-1:]
        lines = smelt("events", "m", "--limit", "2", "--wide").splitlines()
        assert len(lines) == 2
        assert "quarantined" not in lines[0]
        assert "no compiler" in lines[1]

    def test_a_removed_model_keeps_its_trail(self, registry: Registry) -> None:
        one_pass(registry)
        registry.remove_model("m", who="ann@host")
        one_pass(registry)
        removed = "model_removed        m v1 by ann@host: no version is left to serve"
        assert removed in smelt("events", "m", "--wide")
        # Nothing of it among the newest is no fault either.
        gone = Event(at=world.AT, kind=EventKind.GENERATION_GONE, generation="cuda-sm90")
        registry.append_event(gone, registry.event_end())
        assert "generation_gone" in smelt("events", "m", "--limit", "1")
        result = CliRunner().invoke(app, ["events", "n"])
        assert "model 'n' not found; there are: none" in str(result.exception)

    def test_older_events_that_were_not_searched_are_not_denied(
        self, registry: Registry, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        one_pass(registry)
        for module in (event_log, events):
            monkeypatch.setattr(module, "MOST_SEARCHED", 3)
        position = registry.event_end()
        for number in range(3):
            other = Event(kind=EventKind.BUILD_STARTED, at=world.AT, model="n", mark=str(number))
            reached = registry.append_event(other, position)
            assert reached
            position = reached
        unread = (
            "events before the last 3 were not searched; to search more: smelt events m --limit 30"
        )
        assert smelt_json("events", "m", "--limit", "2") == {"events": [], "unread": unread}
        text = smelt("events", "m", "--limit", "2", "--wide")
        assert text == f"{unread}\n"
        assert "model_published" in smelt("events", "m", "--limit", "30")
        assert "not searched" not in smelt("events", "--limit", "2")

    def test_who_follows_reads_nothing_again(
        self, registry: Registry, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        one_pass(registry)
        other = Event(kind=EventKind.BUILD_STARTED, at=world.AT, model="n")
        assert registry.append_event(other, registry.event_end())
        keys: list[str] = []
        read = ObstoreArtifactStore.read

        def noted(store: ObstoreArtifactStore, key: str) -> bytes:
            keys.append(key)
            return read(store, key)

        looks = [False, True]
        monkeypatch.setattr(ObstoreArtifactStore, "read", noted)
        monkeypatch.setattr(events, "stop_signals", lambda: nullcontext(lambda _: looks.pop(0)))
        assert "model_published" in smelt("events", "m", "--follow")
        found = [key for key in keys if key.startswith("events/")]
        assert len(found) == len(set(found))

    def test_a_line_has_who_what_why_and_how_long_after(self) -> None:
        event = Event(
            at="2026-11-21T05:31:02.123+00:00",
            actor="ann@host",
            kind=EventKind.ENGINE_SERVING,
            model="m",
            version=2,
            generation="cuda-sm90",
            key="e" * 64,
            why="tensorrt fp16",
            seconds_since_change=12.34,
        )
        assert event_line(event) == (
            "2026-11-21 05:31:02Z engine_serving       m v2 cuda-sm90 eeeeeeeeeeee by ann@host: "
            "tensorrt fp16 (12.3 s after the change)"
        )
