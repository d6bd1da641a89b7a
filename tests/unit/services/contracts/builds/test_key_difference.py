"""Build keys side by side: every fact, its reason, and which engine is nearest."""

from collections.abc import Callable

import pytest

from services.contracts.builds.build_key import BuildKey
from services.contracts.builds.key_difference import key_differences, nearest_engine
from services.contracts.hardware.kinds import EngineKind, Precision
from services.contracts.model.manifest import PublishedEngine
from services.contracts.model.recipe import Bucket, DimRange

MakeKey = Callable[..., BuildKey]
MakeEngine = Callable[..., PublishedEngine]
WIDE = (
    Bucket(dims={"batch": DimRange(min=1, opt=2, max=4), "seq": DimRange(min=1, opt=8, max=16)}),
)

# a change, and the fact that it shows up as: field, before, after
CHANGES = [
    ({"kind": EngineKind.INDUCTOR}, ("kind", "tensorrt", "inductor")),
    ({"driver": "581.2"}, ("driver", "580.1", "581.2")),
    ({"driver": ""}, ("driver", "580.1", "-")),
    ({"toolchain": {"tensorrt": "10.15"}}, ("toolchain.tensorrt", "10.14", "10.15")),
    (
        {"toolchain": {"tensorrt": "10.14", "torch": "2"}},
        ("toolchain.torch", "-", "2"),
    ),
    ({"buckets": WIDE}, ("buckets", "batch 1..4..8", "batch 1..2..4 x seq 1..8..16")),
    ({"pads": {"x": 1.0}}, ("pads.x", "-", "1.0")),
    ({"plugin_digests": ("a", "b")}, ("plugin_digests", "-", "a, b")),
]


@pytest.mark.parametrize(("change", "wanted"), CHANGES)
def test_each_fact_is_told_with_its_reason(
    make_key: MakeKey, change: dict[str, object], wanted: tuple[str, str, str]
) -> None:
    (found,) = key_differences(make_key(), make_key(**change))
    assert (found.field, found.one, found.other) == wanted
    assert found.reason == BuildKey.model_fields[wanted[0].partition(".")[0]].description


def test_equal_keys_differ_in_nothing(make_key: MakeKey) -> None:
    assert key_differences(make_key(), make_key()) == []


def test_a_few_versions_are_nearer_than_another_kind_or_generation(
    make_key: MakeKey, make_engine: MakeEngine
) -> None:
    wanted = make_key(driver="590", toolchain={"tensorrt": "11"})
    near = make_engine(driver="500", device_name="H100", toolchain={"tensorrt": "9"})
    others = [
        make_engine(driver="590", toolchain={"tensorrt": "11"}, **change)
        for change in (
            {"kind": EngineKind.INDUCTOR},
            {"generation": "cuda-sm80"},
            {"precision": Precision.BF16},
            {"master_digest": "b" * 64},
        )
    ]
    for engines in ([near, *others], [*others, near]):
        found = nearest_engine(wanted, engines)
        assert found is not None
        assert found[0] == near
        assert {d.field for d in found[1]} == {"driver", "device_name", "toolchain.tensorrt"}
    assert nearest_engine(wanted, []) is None
