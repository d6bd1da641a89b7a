"""YAML text that people write, read so that whatever is wrong with it is one kind of error."""

from collections.abc import Callable, Iterable
from typing import Any

import yaml
from yaml.reader import ReaderError

_MOST_SHOWN = 60
# The library takes some seconds for them; a recipe has a thousand.
_MOST_CHARACTERS = 2**20
# By a part of the library's own words: what was wanted there, and the fix. START is the line on
# which begins what holds the place.
_FIXES = {
    r"'\t'": ("spaces", "indent with spaces, not with tabs"),
    "mapping values are not allowed": (
        "one `key: value` on a line, as far in as its neighbours",
        "correct how far in it begins, or put a text that has ': ' in it into quotes",
    ),
    "expected ',' or ']'": ("',' or ']'", "close the list that begins on line START with ]"),
    "expected ',' or '}'": (
        "',' or '}'",
        "put a comma between its keys, or close the mapping that begins on line START with }",
    ),
    "could not find expected ':'": ("`key: value`", "put ': ' behind the key on line START"),
    "unexpected end of stream": ("a quoted text with an end", "close the quote"),
    "expected <block end>": (
        "a line as far in as its neighbours",
        "indent it as the others of what begins on line START",
    ),
    "stands twice": ("each key once", "take one of the two out"),
    "another document": ("one document", "take out the line with ---"),
}
_LATE = ("could not find expected ':'", "found unexpected end of stream")
_OTHER = ("a plain value", "put it into quotes, if it is meant as text")


class YamlFault(yaml.YAMLError):
    """Why a text is no YAML: `words`, and the `line` from 1 that they are of, 0 for none."""

    def __init__(self, words: str, line: int = 0) -> None:
        """`line` is that of the fault, from 1; 0 where the whole text is at fault."""
        super().__init__(f"line {line}, {words}" if line else words)
        self.words = words
        self.line = line


class _Loader(yaml.SafeLoader):
    """Refuses what the library lets pass.

    Of a key that stands twice it takes the last value in silence, and a value that has no form is
    a ValueError without a place.
    """

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen = set[tuple[str, str]]()
        for key, _ in node.value:
            name = key.tag, str(key.value)
            if name in seen:
                raise yaml.composer.ComposerError(
                    problem="a key stands twice", problem_mark=key.start_mark
                )
            seen.add(name)
        return node

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except ValueError as error:
            mark = node.start_mark
            raise yaml.constructor.ConstructorError(
                problem=str(error), problem_mark=mark
            ) from error


def value_from_yaml(text: str) -> Any:
    """What a text says; None for one without a word in it.

    Raises:
        YamlFault: it is no YAML, or a value in it has no form: a date that is none, a
            number of thousands of digits, thousands of brackets; or it has more than a million
            characters. The library lets those pass as whatever Python raises on the way.
    """
    return _read(text, lambda: _Loader(text).get_single_data())


def values_from_yaml(text: str) -> list[Any]:
    """The same of each of a text's documents, without empty ones; raises YamlFault."""
    found = _read(text, lambda: list(yaml.load_all(text, Loader=_Loader)))
    return [each for each in found if each is not None]


def _read(text: str, read: Callable[[], Any]) -> Any:
    if len(text) > _MOST_CHARACTERS:
        raise YamlFault(
            f"found {len(text):,} characters, wanted at most {_MOST_CHARACTERS:,}, as reading more "
            "takes minutes: leave out what is generated, or make several files of it"
        )
    try:
        return read()
    except yaml.MarkedYAMLError as error:
        raise _fault(text, error) from error
    except ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        words = f"found the character {chr(error.character)!r}, wanted text: take it out"
        raise YamlFault(words, line) from error
    except RecursionError as error:
        raise YamlFault("lists and mappings lie too deep within each other") from error


def line_of(text: str, path: Iterable[int | str]) -> int:
    """The line, from 1, of what lies at a path of keys and indices in a text that can be read.

    A part that is not there is passed over: a missing key is on the line of what it is missing in.
    """
    node = yaml.compose(text, Loader=yaml.SafeLoader)
    line = node.start_mark.line if node else 0
    for part in path:
        line, node = _entries(node).get(str(part), (line, node))
    return line + 1


def _fault(text: str, error: yaml.MarkedYAMLError) -> YamlFault:
    """Where a text is no YAML, what stands there, what was wanted, and the fix."""
    known = (fix for part, fix in _FIXES.items() if part in (error.problem or ""))
    wanted, fix = next(known, _OTHER)
    mark = error.problem_mark or error.context_mark
    if mark is None:
        return YamlFault(str(error))
    begin = error.context_mark or mark
    # Of a key without a colon, and of a quote, the library tells where it gave up.
    place = begin if error.problem in _LATE else mark
    lines = text.splitlines()
    line = lines[place.line].rstrip()[:_MOST_SHOWN] if place.line < len(lines) else ""
    found = repr(line) if line else "nothing more"
    fix = fix.replace("START", str(begin.line + 1))
    words = f"column {place.column + 1}: found {found}, wanted {wanted}: {fix}"
    return YamlFault(words, place.line + 1)


def _entries(node: yaml.Node | None) -> dict[str, tuple[int, yaml.Node | None]]:
    """What a mapping or list holds: by key or index, its line and itself."""
    if isinstance(node, yaml.MappingNode):
        return {str(key.value): (key.start_mark.line, value) for key, value in node.value}
    if isinstance(node, yaml.SequenceNode):
        return {str(n): (each.start_mark.line, each) for n, each in enumerate(node.value)}
    return {}
