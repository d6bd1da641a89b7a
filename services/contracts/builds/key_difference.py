"""The difference of two build keys: fact by fact, each with the reason why it is in the key."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from services.contracts.builds.build_key import BuildKey
from services.contracts.model.manifest import PublishedEngine

_ABSENT = "-"
# How much else two keys have to share before these facts may differ: no one compares an engine of
# another graph or kind for the nearest one because its driver is the right one.
_WEIGHTS = {"master_digest": 1000, "kind": 300, "precision": 100, "generation": 30, "buckets": 10}


@dataclass(frozen=True, kw_only=True)
class KeyDifference:
    """One fact.

    Attributes:
        field: name of the key's field, with the entry where it is a mapping:
            `toolchain.torch`.
        one, other: the fact in each key; "-" where a mapping has no such entry.
        reason: why the field is part of a key.
    """

    field: str
    one: str
    other: str
    reason: str


def key_differences(one: BuildKey, other: BuildKey) -> list[KeyDifference]:
    """Every fact in which two keys differ, in the order of the key's fields."""
    found: list[KeyDifference] = []
    facts = one.model_dump(mode="json")
    others = other.model_dump(mode="json")
    for name, field in BuildKey.model_fields.items():
        reason = field.description or ""
        found += [
            KeyDifference(field=path, one=left, other=right, reason=reason)
            for path, left, right in _unequal(name, facts[name], others[name])
        ]
    return found


def nearest_engine(
    wanted: BuildKey, engines: Iterable[PublishedEngine]
) -> tuple[PublishedEngine, list[KeyDifference]] | None:
    """The published engine whose key differs least, and in what; None without engines."""
    compared = [(engine, key_differences(wanted, engine.manifest.key)) for engine in engines]
    return min(compared, key=lambda each: (_distance(each[1]), each[0].digest), default=None)


def _distance(differences: Iterable[KeyDifference]) -> int:
    return sum(_WEIGHTS.get(difference.field, 1) for difference in differences)


def _unequal(path: str, one: Any, other: Any) -> Iterator[tuple[str, str, str]]:
    if one == other:
        return
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        for entry in sorted({*one, *other}):
            yield from _unequal(f"{path}.{entry}", one.get(entry), other.get(entry))
        return
    yield path, _words(path, one), _words(path, other)


def _words(path: str, fact: Any) -> str:
    if path == "buckets":
        return ", ".join(_bucket_words(bucket) for bucket in fact)
    if isinstance(fact, list):
        return ", ".join(map(str, fact)) or _ABSENT
    return str(fact) if fact not in (None, "") else _ABSENT


def _bucket_words(bucket: Mapping[str, Any]) -> str:
    ranges = (
        f"{name} {r['min']}..{r['opt']}..{r['max']}" for name, r in sorted(bucket["dims"].items())
    )
    return " x ".join(ranges) or "static"
