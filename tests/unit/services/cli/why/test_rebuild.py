"""`smelt rebuild` on a real store; no fleet runs."""

from services.contracts.builds.build_record import BuildOutcome
from services.contracts.registry.registry import Registry
from tests.unit.services.cli.why.explained import (
    INDUCTOR,
    KEYS,
    OPENVINO,
    ORT,
    one_pass,
    smelt,
    smelt_json,
)
from tests.unit.services.controller import build_world as world


class TestRebuild:
    def test_it_pins_what_is_there_and_the_controller_does_it(self, registry: Registry) -> None:
        assert one_pass(registry).launched[0].key_digests == (OPENVINO.digest(),)
        document = smelt_json("rebuild", "m", "--reason", "new compiler")
        assert document["disregarded"] == {INDUCTOR.digest(): 3}
        assert document["reprove"] == {ORT.digest(): world.AT}
        assert (document["number"], document["why"], document["is_received"]) == (
            1,
            "new compiler",
            False,
        )
        (task,) = one_pass(registry).launched
        assert set(task.key_digests) == {key.digest() for key in KEYS}
        assert "REBUILD_REQUESTED".lower() in smelt("events", "m")

    def test_what_never_failed_is_not_counted_as_failed(self, registry: Registry) -> None:
        registry.record_build(world.record(ORT, BuildOutcome.PROVEN))
        assert smelt_json("rebuild", "m")["disregarded"] == {INDUCTOR.digest(): 3}

    def test_of_another_generation_it_pins_nothing(self, registry: Registry) -> None:
        document = smelt_json("rebuild", "m", "--generation", "cuda-sm90")
        assert (document["disregarded"], document["reprove"]) == ({}, {})

    def test_without_a_fleet_it_is_kept_for_the_next_one(self, registry: Registry) -> None:
        assert "no fleet of this store runs here" in smelt("rebuild", "m")
