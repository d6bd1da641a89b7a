"""What a recipe may say of levels, queues and timeouts, and what a request gets of it."""

import pytest

from services.contracts.errors import InvalidRecipeError
from services.contracts.model.batching import MAX_QUEUE, MAX_QUEUE_BYTES, Batching, QueuePolicy
from services.contracts.model.recipe import Recipe

LEVELS = """
batching:
  priority_levels: 3
  default_priority: 2
  default_queue_policy: {default_timeout_ms: 500}
  queue_policies:
    1: {max_queue: 8, max_timeout_ms: 100}
"""


def test_levels_are_read_and_survive_their_json() -> None:
    recipe = Recipe.from_yaml(LEVELS)
    assert recipe.batching.policy(1) == QueuePolicy(max_queue=8, max_timeout_ms=100)
    assert recipe.batching.policy(3) == QueuePolicy(default_timeout_ms=500)
    assert Recipe.from_json(recipe.canonical_json()) == recipe


@pytest.mark.parametrize(("priority", "level"), [(0, 2), (1, 1), (2, 2), (3, 3), (4, 2), (99, 2)])
def test_a_priority_that_names_no_level_means_the_default(priority: int, level: int) -> None:
    assert Recipe.from_yaml(LEVELS).batching.level(priority) == level
    assert Batching().level(priority) == 0


def test_a_load_generators_requests_fit_into_the_default_queue() -> None:
    assert Recipe().batching.max_queue >= 4096


def test_each_level_has_room_of_its_own() -> None:
    levels = Recipe.from_yaml(LEVELS).batching
    assert [levels.room(level) for level in levels.levels] == [8, MAX_QUEUE, MAX_QUEUE]
    assert 3 * levels.level_bytes == MAX_QUEUE_BYTES
    single = Batching(max_queue=7, max_queue_bytes=99)
    assert ([*single.levels], single.room(0), single.level_bytes) == ([0], 7, 99)
    assert Batching(default_queue_policy=QueuePolicy(max_queue=2)).room(0) == 2


def test_a_bound_in_bytes_that_is_not_given_leaves_recipes_as_they_were() -> None:
    assert b"max_queue_bytes" not in Recipe().canonical_json()
    bounded = Recipe.from_yaml("batching: {max_queue_bytes: 4096}")
    assert bounded.batching.max_queue_bytes == 4096
    assert Recipe.from_json(bounded.canonical_json()) == bounded
    with pytest.raises(InvalidRecipeError, match=r"batching\.max_queue_bytes: got 0"):
        Recipe.from_yaml("batching: {max_queue_bytes: 0}")


@pytest.mark.parametrize(
    ("policy", "asked_s", "allowed_s"),
    [
        (QueuePolicy(), None, None),
        (QueuePolicy(), 0.5, 0.5),
        (QueuePolicy(default_timeout_ms=200), None, 0.2),
        (QueuePolicy(default_timeout_ms=200), 0.5, 0.5),
        (QueuePolicy(max_timeout_ms=300), None, 0.3),
        (QueuePolicy(max_timeout_ms=300), 0.5, 0.3),
        (QueuePolicy(max_timeout_ms=300), 0.1, 0.1),
        (QueuePolicy(default_timeout_ms=200, max_timeout_ms=300), None, 0.2),
    ],
)
def test_how_long_a_request_may_wait(
    policy: QueuePolicy, asked_s: float | None, allowed_s: float | None
) -> None:
    assert policy.timeout_s(asked_s) == allowed_s


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{priority_levels: 2}", "expected default_priority from 1 to priority_levels 2, got 0"),
        ("{priority_levels: 2, default_priority: 3}", "default_priority from 1 to .* 2, got 3"),
        ("{default_priority: 1}", "default_priority is 1, but there are no levels"),
        ("{queue_policies: {1: {}}}", "queue_policies: expected levels from 1 to .* 0, got 1"),
        (
            "{priority_levels: 2, default_priority: 1, queue_policies: {3: {}}}",
            "queue_policies: expected levels from 1 to priority_levels 2, got 3",
        ),
        (
            "{default_queue_policy: {default_timeout_ms: 9, max_timeout_ms: 5}}",
            r"default_queue_policy: .*default_timeout_ms <= max_timeout_ms, got 9 and 5",
        ),
        ("{queue_policies: {top: {}}}", r"queue_policies\.top: got 'top'"),
        ("{default_queue_policy: {timeout: 1}}", r"no such key.*; expected default_timeout_ms"),
        ("{max_waste: 1}", r"batching\.max_waste: got 1: .*less than 1"),
    ],
)
def test_what_cannot_be_is_refused(text: str, message: str) -> None:
    with pytest.raises(InvalidRecipeError, match=f"(?s){message}"):
        Recipe.from_yaml(f"batching: {text}")
