"""Texts that YAML's library fails on with errors that are not its own."""

import pytest
import yaml

from services.contracts.model.yaml_text import value_from_yaml


def test_a_text_is_what_it_says() -> None:
    assert value_from_yaml("a: [1, x]") == {"a": [1, "x"]}
    assert value_from_yaml("# nothing") is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: [", "expected"),
        ("made_at: 2001-99-99", "month must be in 1..12"),
        (f"number: {'1' * 5000}", "digits"),
        ("[" * 3000, "too deep"),
    ],
)
def test_whatever_is_wrong_is_one_kind_of_error(text: str, words: str) -> None:
    with pytest.raises(yaml.YAMLError, match=words):
        value_from_yaml(text)
