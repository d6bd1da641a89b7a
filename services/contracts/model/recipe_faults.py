"""What is wrong with a recipe, a line each: key, value, what was expected, the nearest word."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from services.contracts.text.nearest import nearest

# By the type of pydantic's error, and by the first word of it.
_WANTED = {
    "missing": "a value",
    "enum": "{expected}",
    "literal_error": "{expected}",
    "greater_than": "more than {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than": "less than {lt}",
    "less_than_equal": "at most {le}",
    "finite_number": "a finite number",
    "too_short": "at least {min_length}, got {actual_length}",
    "too_long": "at most {max_length}, got {actual_length}",
    "string_too_short": "at least {min_length} characters",
    "string_pattern_mismatch": "text of the form {pattern}",
}
_WANTED_BY_WORD = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "string": "text",
    "path": "a path",
    "dict": "a mapping",
    "mapping": "a mapping",
    "model": "a mapping",
    "tuple": "a list",
    "list": "a list",
    "none": "nothing",
}


class Fault(NamedTuple):
    """What is wrong in a document: keys and indices to its place, and words for its author."""

    path: list[int | str]
    words: str


def first_fault(error: ValidationError, document: type[BaseModel]) -> str:
    """The first fault that pydantic found in a document, in words for its author."""
    return faults_in(error, document)[0].words


def faults_in(error: ValidationError, document: type[BaseModel]) -> list[Fault]:
    """Every fault that pydantic found in a document."""
    found = []
    for fault in error.errors():
        # pydantic names a wrong key of a mapping by the key and then this word, and a form of a
        # field that has several by its tag.
        path = [part for part in fault["loc"] if part not in ("[key]", "[list]", "[number]")]
        found.append(Fault(path, _words(fault, path, document)))
    return found


def _words(fault: ErrorDetails, path: list[int | str], document: type[BaseModel]) -> str:
    key = ".".join(map(str, path)) or "document"
    if fault["type"] == "extra_forbidden":
        known = _keys_at(document, path[:-1])
        return f"{key}: no such key{nearest(str(path[-1]), known)}; expected {', '.join(known)}"
    if fault["type"] in ("union_tag_not_found", "union_tag_invalid"):
        return _tag_fault(key, fault, document, path)
    hint = ""
    if fault["type"] == "enum":
        hint = nearest(str(fault["input"]), fault["ctx"]["expected"].replace("'", " ").split())
    elif fault["type"] in ("model_type", "model_attributes_type") and not path:
        hint = f"; expected a mapping of {', '.join(_keys_at(document, []))}"
    return f"{key}: {value_fault(fault)}{hint}"


def value_fault(fault: ErrorDetails) -> str:
    """What was found and what was expected, without pydantic's own words where that can be."""
    found = "nothing" if fault["type"] == "missing" else repr(fault["input"])
    word = fault["type"].partition("_")[0]
    wanted = _WANTED.get(fault["type"]) or _WANTED_BY_WORD.get(word, "")
    if wanted:
        return f"got {found}: expected {wanted.format_map(fault.get('ctx', {}))}"
    # One of Smelt's validators raised it, with what it expected.
    return f"got {found}: {fault['msg'].removeprefix('Value error, ')}"


def _tag_fault(
    key: str, fault: ErrorDetails, document: type[BaseModel], path: Sequence[str | int]
) -> str:
    """A document of several kinds, whose discriminator key is missing or wrong."""
    context = fault["ctx"]
    name = context["discriminator"].strip("'")
    field = document.model_fields.get(str(path[0]))
    kinds = [
        str(kind)
        for each in _documents_in(field.annotation if field else None)
        if name in each.model_fields
        for kind in get_args(each.model_fields[name].annotation)
    ]
    wanted = f"expected one of {', '.join(kinds)}"
    if "tag" in context:
        return f"{key}.{name}: got '{context['tag']}'{nearest(context['tag'], kinds)}; {wanted}"
    return f"{key}: it has no key '{name}'; {wanted}"


def _keys_at(document: type[BaseModel], path: Sequence[str | int]) -> list[str]:
    """The keys that the document takes at a place within it."""
    kinds = [document]
    for part in map(str, path):
        if fields := [each.model_fields[part] for each in kinds if part in each.model_fields]:
            kinds = list(_documents_in(fields[0].annotation)) or kinds
        else:  # an index or a mapping's key; or of several kinds of documents the one that is meant
            kinds = [each for each in kinds if part in _tags(each)] or kinds
    return sorted({key for each in kinds for key in each.model_fields})


def _tags(document: type[BaseModel]) -> set[str]:
    """The words that distinguish a document from others that may stand in its place."""
    return {tag for field in document.model_fields.values() for tag in get_args(field.annotation)}


def _documents_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """The kinds of documents in a field: alone, in a tuple, a mapping's values, or None."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _documents_in(part)
