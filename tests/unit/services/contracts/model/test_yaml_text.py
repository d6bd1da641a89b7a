"""YAML texts: what they say, on which line, and what the library fails on in its own way."""

import pytest
import yaml

from services.contracts.model.yaml_text import line_of, value_from_yaml


def test_a_text_is_what_it_says() -> None:
    assert value_from_yaml("a: [1, x]") == {"a": [1, "x"]}
    assert value_from_yaml("# nothing") is None
    assert value_from_yaml("a: &a {b: 1}\nc: {<<: *a, b: 2}\n1: x\n'1': y") == {
        "a": {"b": 1},
        "c": {"b": 2},
        1: "x",
        "1": "y",
    }


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: [", "line 1, column 5: found 'a: \\[', wanted a plain value"),
        ("a: [1, 2\nb: 3", "line 2, column 2: found 'b: 3', wanted ',' or ']': .* line 1 with ]"),
        ("a: {x: 1 y: 2}", "line 1, column 11: .* wanted ',' or '}': put a comma"),
        ("a:\n\tb: 1", r"line 2, column 1: found '\\tb: 1', wanted spaces: indent with spaces"),
        ("a: b: c", "line 1, column 5: found 'a: b: c', wanted one `key: value` on a line"),
        ("a: 1\nkinds [x]\nb: 2", "line 2, column 1: found 'kinds .x.', wanted `key: value`: put"),
        ("a: 'x\nb: 2", "line 1, column 4: found .a: 'x., .*: close the quote"),
        ("a:\n  - 1\n - 2", "line 3, column 2: .* as far in as its neighbours: .* line 1"),
        ("a: @x", "line 1, column 4: found 'a: @x', wanted a plain value: put it into quotes"),
        ("a: 1\n---\nb: 2", "line 2, column 1: found '---', wanted one document"),
        ("a: 1\nb: {c: 1, 'c': 2}", "line 2, column 11: .* wanted each key once: take one"),
        ("a: 1\nb: 2\na: 1", "line 3, column 1: found 'a: 1', wanted each key once"),
        ("a: 1\nb: \x01", r"line 2, found the character '\\x01', wanted text: take it out"),
        (
            "a: 1\nb: [2001-99-99]",
            "line 2, column 5: found 'b: .2001-99-99.', wanted a plain value: put it into quotes",
        ),
        (f"a:\n- number: {'1' * 5000}", "line 2, column 11: found '- number: 1{50}'"),
        ("a: 1\n" + "#" * 2**20, "found 1,048,581 characters, wanted at most 1,048,576, .*: leave"),
        ("[" * 3000, "too deep"),
    ],
)
def test_whatever_is_wrong_is_one_kind_of_error(text: str, words: str) -> None:
    with pytest.raises(yaml.YAMLError, match=words):
        value_from_yaml(text)


@pytest.mark.parametrize(
    ("path", "line"),
    [([], 2), (["a"], 2), (["a", 1], 4), (["b", 1, "c"], 5), (["b", 2], 5), (["a", "tag", 0], 3)],
)
def test_a_place_has_a_line_and_what_is_not_there_that_of_what_it_lacks_in(
    path: list[int | str], line: int
) -> None:
    assert line_of("# first\na:\n- x\n- y\nb: {1: {c: 2}}\n", path) == line
    assert line_of("", path) == 1
