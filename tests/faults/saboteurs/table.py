"""The outcomes as tables in Markdown."""

from collections import Counter
from collections.abc import Sequence

from tests.faults.saboteurs.right_engines import Right
from tests.faults.saboteurs.trial import (
    ACCEPTED,
    BLIND,
    NO_CHANGE,
    NO_ENGINE,
    NO_PART,
    PROVEN,
    REFUSED,
    WITHIN,
    Outcome,
)

_COLUMNS = (REFUSED, NO_ENGINE, BLIND, PROVEN, ACCEPTED, WITHIN, NO_CHANGE, NO_PART)
_LISTED = (PROVEN, BLIND, ACCEPTED, WITHIN)


def sabotage_table(outcomes: Sequence[Outcome]) -> str:
    """Counts by model and precision, then what was not simply refused, by name."""
    keys = list(dict.fromkeys((each.model, each.precision) for each in outcomes))
    lines = [_row("model", "precision", *_COLUMNS), _row(*["---"] * (len(_COLUMNS) + 2))]
    for model, precision in keys:
        here = [each for each in outcomes if (each.model, each.precision) == (model, precision)]
        lines.append(_row(model, precision, *_counts(here)))
    lines.append(_row("all", "", *_counts(outcomes)))
    lines += ["", *map(_told, (each for each in outcomes if each.what in _LISTED))]
    return "\n".join(lines) + "\n"


def rights_table(rights: Sequence[Right]) -> str:
    """Proven of all by kind and precision, then each that was refused."""
    keys = list(dict.fromkeys((each.kind, each.precision) for each in rights))
    lines = [_row("kind", "precision", "proven", "refused"), _row(*["---"] * 4)]
    for kind, precision in keys:
        here = [each for each in rights if (each.kind, each.precision) == (kind, precision)]
        proven = sum(each.is_proven for each in here)
        lines.append(_row(kind, precision, str(proven), str(len(here) - proven)))
    proven = sum(each.is_proven for each in rights)
    lines.append(_row("all", "", str(proven), str(len(rights) - proven)))
    refused = (each for each in rights if not each.is_proven)
    return "\n".join([*lines, "", *(f"- {r.name}: {r.reason}" for r in refused)]) + "\n"


def _counts(outcomes: Sequence[Outcome]) -> list[str]:
    counts = Counter(each.what for each in outcomes)
    return [str(counts[column]) for column in _COLUMNS]


def _told(each: Outcome) -> str:
    found = each.effect
    size = f" (changes {found.mean:.1e} of a spread, {found.largest:.1e} at most)" if found else ""
    return f"- {each.model} {each.precision}, {each.sabotage}: {each.what}{size} {each.words}"


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"
