"""`smelt models weights`: how a model's versions share the requests that name none."""

import re
from collections.abc import Sequence

from services.cli.fleet.control_client import notify_fleet
from services.cli.models.version_states import fleet_or_why_not, version_states
from services.cli.output.show import show
from services.cli.registry import open_registry, open_registry_to_publish, who_asks
from services.cli.settings import CliSettings
from services.contracts.errors import InvalidRequestError
from services.contracts.model.version_shares import shares_among
from services.contracts.registry.registry import Registry
from services.contracts.text.text_table import Table

_WEIGHT = re.compile(r"([1-9][0-9]{0,17})=([0-9]+(?:\.[0-9]+)?)")


def run_models_weights(
    settings: CliSettings, name: str, texts: Sequence[str], *, is_cleared: bool
) -> None:
    """Set weights, also in a running fleet, or print those that are set.

    Args:
        settings: where store and fleet are.
        name: of the model.
        texts: `VERSION=WEIGHT` each, as `1=95`; empty only prints.
        is_cleared: remove all weights; not together with `texts`.

    Raises:
        InvalidRequestError: a weight cannot be read, or all are 0.
        NotFoundError: no such model or version.
    """
    if texts and is_cleared:
        raise InvalidRequestError("give weights or --clear, not both")
    if texts or is_cleared:
        registry = open_registry_to_publish(settings, must_exist=True)
        # An empty mapping clears them.
        registry.set_version_weights(name, weights_from_texts(texts), who=who_asks())
        notify_fleet(settings)
    else:
        registry = open_registry(settings)
    _show(settings, registry, name)


def weights_from_texts(texts: Sequence[str]) -> dict[int, float]:
    """Weights by version from texts like `2=5`; raises InvalidRequestError."""
    weights: dict[int, float] = {}
    for text in texts:
        match = _WEIGHT.fullmatch(text)
        if match is None or int(match[1]) in weights:
            raise InvalidRequestError(
                f"'{text}': expected VERSION=WEIGHT, each version once, as in: 1=95 2=5"
            )
        weights[int(match[1])] = float(match[2])
    return weights


def _show(settings: CliSettings, registry: Registry, name: str) -> None:
    # Raises for an unknown model, of which there are merely no versions.
    registry.require_version(name)
    versions = registry.external_numbers(name) or registry.version_numbers(name)
    weights = registry.version_weights(name)
    snapshot, why_not = fleet_or_why_not(settings)
    states = version_states(snapshot, name, versions)
    shares = shares_among(weights, versions)
    rows = [
        (
            str(version),
            f"{weights[version]:g}" if version in weights else "",
            f"{shares.get(version, 0.0):.1%}",
            *((s.words, f"{s.share:.1%}") if (s := states.get(version)) else ("?", "?")),
        )
        for version in versions
    ]
    columns = ("version", "weight", "share", "state", "served now")
    none = "no weights are set: the newest version that is ready gets every request"
    document = {
        "name": name,
        "versions": versions,
        "weights": weights,
        "states": {v: {"state": s.words, "served_share": s.share} for v, s in states.items()}
        if snapshot
        else None,
    }
    table = Table(f"Weights of {name}", columns, rows)
    text = table, "" if weights else none, why_not
    show(document, text)
