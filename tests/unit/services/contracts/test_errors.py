"""The tree of errors: drawn as it is, and the same after a journey between processes."""

import inspect
import pickle
import re
from collections.abc import Iterator

import pytest

from services.contracts import errors
from services.contracts.errors import (
    BuildError,
    OverloadedError,
    SmeltError,
    UnsupportedGraphError,
)


def subclasses(base: type[SmeltError]) -> Iterator[type[SmeltError]]:
    for child in base.__subclasses__():
        if child.__module__ == errors.__name__:
            yield child
            yield from subclasses(child)


ALL_ERRORS = [SmeltError, *subclasses(SmeltError)]


def drawn_tree() -> dict[str, str]:
    """Parent by class, read from the drawing in the module's docstring."""
    parents: dict[str, str] = {}
    path: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        match = re.match(r"    ([│├└─ ]*)(\w+Error)\b", line)
        if match is None:
            continue
        del path[len(match[1]) // 4 :]
        if path:
            parents[match[2]] = path[-1]
        path.append(match[2])
    return parents


def test_the_drawing_shows_every_class_below_its_parent() -> None:
    assert drawn_tree() == {cls.__name__: cls.__mro__[1].__name__ for cls in ALL_ERRORS[1:]}


def test_every_error_of_the_module_is_in_the_tree() -> None:
    classes = inspect.getmembers(errors, inspect.isclass)
    assert {cls for _, cls in classes} == set(ALL_ERRORS)


@pytest.mark.parametrize("cls", ALL_ERRORS)
def test_every_error_survives_a_pickle(cls: type[SmeltError]) -> None:
    error = cls("what happened")
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is cls
    assert str(copy) == str(error)
    assert "what happened" in str(copy)


def test_what_an_error_carries_survives_a_pickle() -> None:
    graph = UnsupportedGraphError("mode 'cubic'", op_type="Resize", node="up", opset=19)
    build = BuildError("refused", log_tail=("first", "last"))
    full = OverloadedError("full", retry_after_s=1.5)
    for error in (graph, build, full):
        copy = pickle.loads(pickle.dumps(error))
        assert vars(copy) == vars(error)
        assert str(copy) == str(error)


def test_a_graph_fault_says_op_version_node_and_reason() -> None:
    error = UnsupportedGraphError("mode 'cubic'", op_type="Resize", node="up", opset=19)
    assert str(error) == "Resize-19 at node 'up': mode 'cubic'"
    assert str(UnsupportedGraphError("has a loop")) == "graph: has a loop"
