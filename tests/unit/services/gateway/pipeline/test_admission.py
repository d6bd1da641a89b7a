"""Bounds on requests under way, and the hint to those that are refused."""

import pytest

from services.contracts.errors import OverloadedError
from services.gateway.pipeline.admission import Bound, ModelBounds


class Clock:
    """A clock that the test sets."""

    now_s = 100.0

    def __call__(self) -> float:
        """Monotonic seconds."""
        return self.now_s


def _refusal(bound: Bound) -> OverloadedError:
    with pytest.raises(OverloadedError) as caught:
        bound.enter()
    return caught.value


def test_a_bound_counts_and_says_what_raises_it() -> None:
    bound = Bound(2, "this gateway", "SETTING")
    bound.enter()
    bound.enter()
    error = _refusal(bound)
    assert str(error) == (
        "this gateway has 2 requests in flight, its bound is 2; retry later or raise SETTING"
    )
    bound.leave()
    bound.enter()
    assert bound.num_in_flight == 2


def test_the_hint_is_the_time_that_those_under_way_will_take() -> None:
    clock = Clock()
    bound = Bound(10, "it", "S", clock)
    for _ in range(10):
        bound.enter()
    assert _refusal(bound).retry_after_s == 0.01  # nothing is known yet
    for _ in range(20):
        bound.leave()
        bound.enter()
    clock.now_s += 1.0
    assert _refusal(bound).retry_after_s == pytest.approx(0.5)  # 10 in flight, 20 a second
    assert _refusal(bound).retry_after_s == pytest.approx(0.5)
    clock.now_s += 60.0
    assert _refusal(bound).retry_after_s == 5.0  # nothing ended for a minute


def test_a_time_without_requests_is_no_part_of_the_pace() -> None:
    clock = Clock()
    bound = Bound(1, "it", "S", clock)
    bound.enter()
    bound.leave()
    clock.now_s += 3600.0
    bound.enter()
    assert _refusal(bound).retry_after_s == 0.01
    clock.now_s += 0.5
    assert _refusal(bound).retry_after_s == pytest.approx(0.5)  # none ended since it is busy


def test_models_have_bounds_of_their_own() -> None:
    bounds = ModelBounds(None, {"a": 1})
    assert bounds.of("b") is None
    bound = bounds.of("a")
    assert bound
    bound.enter()
    assert "model 'a' on this gateway has 1 requests" in str(_refusal(bound))
    assert bounds.of("a") is bound
    default = ModelBounds(3, {"a": 1}).of("b")
    assert default
    for _ in range(3):
        default.enter()
    assert "its bound is 3" in str(_refusal(default))


def test_a_bound_of_a_model_that_is_not_served_is_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bounds = ModelBounds(None, {"bert-bass": 1, "resnet": 2})
    bounds.log_unknown({"bert-base", "resnet"})
    bounds.log_unknown({"bert-base"})
    bounds.log_unknown({"bert-base"})
    setting = "SMELT_GATEWAY_MODEL_MAX_IN_FLIGHT"
    assert [record.getMessage().removeprefix(setting) for record in caplog.records] == [
        " bounds model 'bert-bass', which the fleet does not serve now, did you mean 'bert-base'?",
        " bounds model 'resnet', which the fleet does not serve now",
    ]
