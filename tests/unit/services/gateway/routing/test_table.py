"""Who may answer, who is chosen, and what is said when nobody can."""

from collections.abc import Callable
from contextvars import copy_context
from dataclasses import replace
from typing import Any, NoReturn

import pytest

from services.contracts.errors import InvalidRequestError, NotFoundError, NotReadyError
from services.contracts.model.manifest import ModelVersion
from services.gateway.access.caller import CALLER_NAME
from services.gateway.routing.fleet_view import DiscoveredFleet
from services.gateway.routing.table import RoutingTable, routing_table
from services.gateway.upstream.endpoint import Endpoint

NewModel = Callable[..., ModelVersion]
NewEndpoint = Callable[..., Endpoint]
NewView = Callable[..., DiscoveredFleet]


@pytest.fixture
def table(new_model: NewModel, new_endpoint: NewEndpoint, new_view: NewView) -> RoutingTable:
    """Versions 1 and 2 have replicas, 10 has none; another model has none at all."""
    models = [new_model(version=number) for number in (1, 2, 10)]
    view = new_view(*models, new_model("other"), reason="no node of its generation")
    endpoints = [
        new_endpoint("a", model_version=2),
        new_endpoint("b", model_version=1),
        new_endpoint("c", model_version=2),
        new_endpoint("stray", model_name="gone"),
    ]
    return routing_table(view, endpoints)


@pytest.mark.parametrize(
    ("version", "served_by"),
    [("1", {"b"}), ("2", {"a", "c"}), ("", {"a", "c"})],
)
def test_pools(table: RoutingTable, version: str, served_by: set[str]) -> None:
    """The empty version is the newest with a ready replica, not the newest of all."""
    pool = table.pool("minilm", version)
    assert {endpoint.replica.replica_id for endpoint in pool.endpoints} == served_by
    assert pool.version == (version or "2")
    assert table.is_ready("minilm", version)


@pytest.mark.parametrize(
    ("model", "version", "error", "text"),
    [
        ("nope", "", NotFoundError, "^Request for unknown model: 'nope' is not found; Rep"),
        ("minilms", "", NotFoundError, "'minilms' is not found, did you mean 'minilm'.; Reposit"),
        ("gone", "", NotFoundError, "'gone' is not found"),
        ("minilm", "3", NotFoundError, "version 3 is not found; known versions: 1, 2, 10; leave "),
        ("minilm", "x", InvalidRequestError, "version 'x' is not a number; known: 1, 2, 10"),
        ("minilm", "-1", InvalidRequestError, "not a number"),
        # A replica compares the request's own words, so one spelling of a number must do.
        ("minilm", "02", InvalidRequestError, "not a number"),
        ("minilm", "1" * 5000, InvalidRequestError, "not a number"),
        ("minilm", "10", NotReadyError, "version 10 has no ready replica: no node of its gen"),
        ("other", "", NotReadyError, "model 'other' has no ready replica: no node of its gen"),
    ],
)
def test_refusals(
    table: RoutingTable, model: str, version: str, error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        table.pool(model, version)
    assert not table.is_ready(model, version)


def test_a_caller_with_a_token_is_told_of_no_other_model(table: RoutingTable) -> None:
    """RepositoryIndex is for those who may see all of them."""

    def ask() -> None:
        CALLER_NAME.set("somebody")
        table.pool("minilms", "")

    with pytest.raises(NotFoundError, match="'minilms' is not found; RepositoryIndex"):
        copy_context().run(ask)


def test_nothing_is_unknown_before_the_controller_spoke() -> None:
    with pytest.raises(NotReadyError, match="has no snapshot of the controller yet"):
        RoutingTable().pool("minilm", "")


@pytest.mark.parametrize(
    ("model", "version", "found"), [("minilm", "", 2), ("minilm", "10", 10), ("other", "", 1)]
)
def test_served(table: RoutingTable, model: str, version: str, found: int) -> None:
    assert table.served(model, version).document.version == found


@pytest.mark.parametrize(
    ("model", "version", "labels"),
    [
        ("minilm", "1", ("minilm", "1")),
        ("minilm", "001", ("minilm", "")),
        ("minilm", "77", ("minilm", "")),
        ("minilm", "9" * 5000, ("minilm", "")),
        ("minilm", "", ("minilm", "")),
        ("attack-1234", "1", ("", "")),
    ],
)
def test_labels_know_only_what_the_fleet_knows(
    table: RoutingTable, model: str, version: str, labels: tuple[str, str]
) -> None:
    assert table.labels(model, version) == labels


def test_every_model_ready(
    table: RoutingTable, new_model: NewModel, new_endpoint: NewEndpoint, new_view: NewView
) -> None:
    assert not RoutingTable().is_every_model_ready()
    assert not table.is_every_model_ready()
    whole = routing_table(new_view(new_model(), new_model(version=2)), [new_endpoint()])
    assert whole.is_every_model_ready()


def test_outliers_are_left_out_of_the_choice_but_not_all_of_them(
    new_model: NewModel, new_endpoint: NewEndpoint, new_view: NewView
) -> None:
    one, other = new_endpoint("a"), new_endpoint("b")
    one.ejected_until_s = 10.0

    def chosen(now_s: float) -> tuple[Endpoint, ...]:
        table = routing_table(new_view(new_model()), [one, other], now_s=now_s)
        pool = table.pool("minilm", "")
        assert pool.endpoints == (one, other)
        return pool.choice.endpoints

    assert chosen(9.0) == (other,)
    assert chosen(10.0) == (one, other)
    other.ejected_until_s = 20.0
    assert chosen(9.0) == (one, other)


@pytest.mark.parametrize(
    ("model", "version", "found"),
    [
        ("minilm", "", 2),
        ("minilm", "1", 1),
        ("minilm", "10", None),
        ("minilm", "x", None),
        ("other", "", None),
        ("nope", "", None),
    ],
)
def test_what_served_before_returns(
    table: RoutingTable, model: str, version: str, found: int | None
) -> None:
    """Also after several tables without its replicas."""
    for _ in range(2):
        table = routing_table(table.view, [], former=table)
    assert table.returning(model, version) == found
    assert not table.is_ready(model, version)


@pytest.mark.parametrize("change", [{"state": "UNAVAILABLE"}, {"is_unloaded": True}])
def test_what_failed_or_was_unloaded_does_not_return(
    table: RoutingTable, change: dict[str, Any]
) -> None:
    versions = table.view.models["minilm"]
    models = {"minilm": {number: replace(served, **change) for number, served in versions.items()}}
    changed = routing_table(replace(table.view, models=models), [], former=table)
    assert changed.returning("minilm", "") is None
    again = routing_table(table.view, [], former=changed)
    # What failed may be deployed again by itself; what is loaded again begins anew.
    assert (again.returning("minilm", "") is None) == ("is_unloaded" in change)


def test_the_next_version_is_waited_for_in_the_place_of_the_one_before(
    new_model: NewModel, new_endpoint: NewEndpoint, new_view: NewView
) -> None:
    first = routing_table(new_view(new_model()), [new_endpoint()])
    both = routing_table(new_view(new_model(), new_model(version=2)), [], former=first)
    assert (both.returning("minilm", ""), both.returning("minilm", "2")) == (1, None)
    second = routing_table(new_view(new_model(version=2)), [], former=both)
    assert (second.returning("minilm", ""), second.returning("minilm", "1")) == (2, None)
    assert routing_table(new_view(), [], former=second).returning("minilm", "") is None


def test_what_waits_asks_without_a_pass_over_all_models(
    new_model: NewModel, new_endpoint: NewEndpoint, new_view: NewView
) -> None:
    class Unlisted(set[tuple[str, str]]):
        def __iter__(self) -> NoReturn:
            raise AssertionError("it is asked for each request at each change")

    table = routing_table(new_view(new_model(), new_model(version=2)), [new_endpoint()])
    asked = replace(table, were_ready=Unlisted({("minilm", ""), ("minilm", "1")}))
    assert asked.returning("minilm", "") == 1
