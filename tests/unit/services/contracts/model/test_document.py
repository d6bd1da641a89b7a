"""The one JSON form: sorted, strict, and the same after reading."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field, ValidationError

from services.contracts.model.document import Document, canonical_json


class Sample(Document):
    """A document of each simple type."""

    b: dict[str, int] = Field(default={})
    a: float = 0.0
    c: str = ""


@given(
    b=st.dictionaries(st.text(), st.integers()),
    a=st.floats(allow_nan=False),
    c=st.text(),
)
def test_a_document_comes_back_equal(b: dict[str, int], a: float, c: str) -> None:
    document = Sample(b=b, a=a, c=c)
    assert Sample.from_json(document.canonical_json()) == document


@given(st.dictionaries(st.text(), st.integers(), min_size=2))
def test_the_order_of_keys_does_not_matter(values: dict[str, int]) -> None:
    reversed_values = dict(reversed(values.items()))
    assert Sample(b=values).canonical_json() == Sample(b=reversed_values).canonical_json()


def test_the_form_is_sorted_dense_and_utf8() -> None:
    assert Sample(b={"y": 1, "x": 2}, c="ü").canonical_json() == (
        '{"a":0.0,"b":{"x":2,"y":1},"c":"ü"}'.encode()
    )
    assert canonical_json([1, None, True]) == b"[1,null,true]"


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity"])
def test_values_that_are_no_numbers_are_kept(value: str) -> None:
    document = Sample(a=float(value))
    read = Sample.from_json(document.canonical_json())
    assert json.dumps(read.a) == value


def test_an_unknown_field_is_refused_by_name() -> None:
    with pytest.raises(ValidationError, match="surprise"):
        Sample.from_json(b'{"surprise":1}')


def test_a_document_cannot_be_changed() -> None:
    document = Sample()
    with pytest.raises(ValidationError, match="frozen"):
        document.c = "x"  # type: ignore[misc]


def test_defaults_are_not_shared() -> None:
    Sample().b["leak"] = 1
    assert Sample().b == {}


def test_what_reads_a_document_is_built_at_its_first_use_by_whichever_thread() -> None:
    for _ in range(20):
        kind = type("Late", (Sample,), {"__module__": __name__})
        assert not kind.__pydantic_complete__
        with ThreadPoolExecutor(8) as pool:
            read = list(pool.map(kind.from_json, [b'{"a":1.5}'] * 8))
        assert read == [kind(a=1.5)] * 8
