"""`smelt why --keys A B`: the difference of two build keys, fact by fact."""

import re
from collections.abc import Sequence

from services.cli.output.show import show
from services.cli.registry import open_registry
from services.cli.settings import CliSettings
from services.contracts.builds.build_key import BuildKey
from services.contracts.builds.key_difference import key_differences
from services.contracts.registry.engines import only_match
from services.contracts.registry.registry import Registry
from services.contracts.text.text_table import Table

_SHORT = 12
_DIGEST = re.compile("[0-9a-f]{64}")


def run_why_keys(settings: CliSettings, keys: tuple[str, str]) -> None:
    """Compare two keys, named by their digests or beginnings of them.

    Raises:
        NotFoundError: no engine and no plan has such a key.
        InvalidRequestError: several have.
    """
    known = known_keys(open_registry(settings))
    one, other = (only_match("key", each, known) for each in keys)
    differences = [vars(each) for each in key_differences(known[one], known[other])]
    columns = ("fact", one[:_SHORT], other[:_SHORT], "why it counts")
    rows = [(d["field"], _short(d["one"]), _short(d["other"]), d["reason"]) for d in differences]
    text = f"{one[:_SHORT]} and {other[:_SHORT]} are one key"
    document = {"one": one, "other": other, "differences": differences}
    show(document, [Table("Differences", columns, rows) if rows else text])


def known_keys(registry: Registry) -> dict[str, BuildKey]:
    """Keys of all published engines and of all plans, by digest."""
    known = {engine.digest: engine.manifest.key for engine in registry.engines()}
    for name in registry.model_names():
        # Planned keys too: the key that is missing is the one to compare.
        for version in registry.versions(name):
            for plan in registry.build_plans(name, version.version):
                known |= {planned.digest: planned.key for planned in plan.planned}
    return known


def difference_words(differences: Sequence[dict[str, str]]) -> str:
    """The facts in one line: what is there, and what is wanted."""
    return "; ".join(
        f"{d['field']}: {_short(d['other'])} found / {_short(d['one'])} wanted" for d in differences
    )


def _short(fact: str) -> str:
    """A fact with its digests as people name them."""
    return _DIGEST.sub(lambda found: found[0][:_SHORT], fact)
