"""`smelt why`: what serves a model on a generation, and why nothing better does."""

from collections.abc import Iterator, Sequence
from typing import Any

from compiler_worker.measures.accuracy_words import accuracy_words, distances
from services.cli.fleet.control_client import fleet_on_store
from services.cli.fleet.fleet_file import START_ONE
from services.cli.models.external import explain_external
from services.cli.output.show import show, times
from services.cli.planning.measured_version import measured_version
from services.cli.registry import open_registry
from services.cli.settings import CliSettings
from services.cli.why.why_keys import difference_words
from services.contracts.errors import InvalidRequestError
from services.contracts.hardware.facts import Generation
from services.contracts.hardware.kinds import Precision
from services.contracts.model.manifest import ModelVersion
from services.contracts.model.precisions import precisions_on
from services.contracts.registry.registry import Registry
from services.contracts.selection.selection import FallbackReason
from services.contracts.text.durations import milliseconds
from services.contracts.text.text_table import Table
from services.contracts.text.words import NO_FLEET
from services.controller.events.fallback_words import loading_words
from services.controller.explain.build_queue import standby_document
from services.controller.explain.running_builds import is_held
from services.controller.explain.why_case import replicas_of
from services.controller.explain.why_cases import drift_words, explained_cases, last_trouble
from services.controller.explain.why_document import SHORT
from services.pb import fleet_v1_pb2 as fleet

# On demand and away; or without a replica that could load anything.
_NOT_SERVING = ("STANDBY", "UNAVAILABLE")
_COLUMNS = ("rank", "kind", "state", "p50", "x eager", "x fallback", "engine")


def run_why(
    settings: CliSettings, name: str, generation: str, *, version: int | None = None
) -> None:
    """Explain one generation, or all that are planned or serve.

    Args:
        settings: of the command line.
        name: of the model.
        generation: "" for all.
        version: by default the newest with timed engines.

    Raises:
        NotFoundError: no such model or version, or nothing is known of the generation.
        InvalidRequestError: no such generation, or no model is named.
    """
    if not name:
        raise InvalidRequestError("smelt why: name a MODEL, or two keys: smelt why --keys A B")
    wanted = str(Generation.parse(generation)) if generation else ""
    registry = open_registry(settings)
    if registry.external_numbers(name):
        explain_external(settings, registry, name, version)
        return
    explained, note = measured_version(registry, name, version)
    snapshot = fleet_on_store(settings)
    cases = model_cases(settings, registry, explained, snapshot, wanted)
    unplaced, not_loaded = _placement(snapshot, explained)
    standby = standby_document(snapshot)
    # Before what would serve if a replica could.
    text: list[str | Table] = [f"{name}: {words}" for words in (unplaced, not_loaded) if words]
    text.insert(0, note)
    text += [part for case in cases for part in case_text(case, explained)]
    if not cases:
        text += [f"{name} version {explained.version}: nothing is planned for any generation"]
        text += [
            loading_words(report) for report in (replicas_of(snapshot, explained) or {}).get("", ())
        ]
        text.append(last_trouble(registry, name, ""))
    text.append(drift_words(registry, explained))
    text.append(standby["reason"] if standby else "")
    text.append("" if snapshot else f"{NO_FLEET}; {START_ONE}")
    where = {"model": name, "version": explained.version, "note": note}
    where |= {"unplaced": unplaced, "not_loaded": not_loaded}
    document = where | {"standby": standby, "generations": cases}
    show(document, text)


def model_cases(
    settings: CliSettings,
    registry: Registry,
    version: ModelVersion,
    snapshot: fleet.FleetSnapshot | None,
    wanted: str = "",
) -> list[dict[str, Any]]:
    """A version on each generation that is planned, serves or is queued, with its precisions.

    Args:
        settings: of the command line.
        registry: on the store.
        version: of the model.
        snapshot: of the fleet; None without one.
        wanted: one generation; "" for all.

    Raises:
        NotFoundError: nothing is known of the generation.
    """
    where = settings.store_url, settings.trust_root
    return [
        {"generation": case["generation"]} | precision_document(version, case["generation"]) | case
        for case in explained_cases(registry, version, wanted, snapshot, *where)
    ]


def _placement(snapshot: fleet.FleetSnapshot | None, version: ModelVersion) -> tuple[str, str]:
    """Why replicas of a version are on no node, and why those that are serve nothing; "" else."""
    for model in snapshot.models if snapshot else ():
        if (model.name, model.version) == (version.name, version.version):
            return model.unplaced, model.reason if model.state in _NOT_SERVING else ""
    return "", ""


def case_text(
    case: dict[str, Any], version: ModelVersion, *, is_brief: bool = False
) -> Iterator[str | Table]:
    """What serves, what is planned, and why.

    Args:
        case: one of `model_cases`.
        version: of the model.
        is_brief: without proofs, what is skipped, and bounds.
    """
    yield f"{version.name} version {version.version} on {case['generation']}: {case['serves']}"
    rows = [_row(key) for key in case["planned"]]
    rows += [("-", _name(skipped), "skipped", *["-"] * 4) for skipped in case["skipped"]]
    if rows or not case["build"]:
        yield Table("Planned", _COLUMNS, rows, ("x eager",))
    # Below the table: sentences in a column of it cannot be read on a narrow screen.
    yield from _reasons(case, version)
    if not is_brief:
        yield from _details(case, version)


def _row(key: dict[str, Any]) -> tuple[str, ...]:
    p50s = [
        milliseconds(p50_s, decimals=2) for p50_s in sorted(each["p50_s"] for each in key["p50_s"])
    ]
    return (
        str(key["rank"] or "-"),
        _name(key),
        key["state"],
        _span(p50s) + " ?" * key["is_wild"] if p50s else "-",
        times(key["speed_over_eager"], is_wild=key["is_wild"]),
        times(key["speed_over_fallback"], is_wild=key["is_wild"]),
        key["digest"][:SHORT],
    )


def _span(texts: Sequence[str]) -> str:
    """The first and the last of some with one unit: `1.20..34.50 ms`."""
    least = texts[0]
    most = texts[-1]
    return most if least == most else f"{least.partition(' ')[0]}..{most}"


def _reasons(case: dict[str, Any], version: ModelVersion) -> Iterator[str]:
    if case["build"]:
        yield f"{version.name}: {case['build']['words']}"
    if case["decided_by"]:
        yield f"the rank is by engines {case['decided_by']}"
    yield from (f"{_name(key)}: {why}" for key in case["planned"] if (why := key["why"]))


def _details(case: dict[str, Any], version: ModelVersion) -> Iterator[str]:
    keys = case["planned"]
    verdict = version.fallback_verdict
    yield from (
        f"{_name(k)}: {k['proof']['words']}" for k in keys if k["proof"] and k["proof"]["words"]
    )
    yield from (f"{_name(skipped)}: {skipped['reason']}" for skipped in case["skipped"])
    if verdict and verdict.refused and keys:
        yield "x eager: over ONNX Runtime without its optimisations, as torch cannot compute it"
    elif words := _untimed_fallback(keys):
        yield f"x fallback: {words}"
    yield from precision_lines(case, version)
    # What a replica reports of its fallback stands in the first line already.
    if verdict and not any(replica["fallback_refuted"] for replica in case["replicas"]):
        yield verdict.words
    unheld = (key for key in keys if not is_held(key["stage"]) and not key["proof"])
    yield from (_nearest_line(key) for key in unheld if key["nearest"])
    yield from _passed_over_lines(case, version.name)


def _untimed_fallback(keys: Sequence[dict[str, Any]]) -> str:
    """Why no engine of a case has a speed beside the fallback; "" where one has."""
    proofs = [key["proof"] for key in keys if key["proof"]]
    if not proofs or any(key["speed_over_fallback"] for key in keys):
        return ""
    return str(proofs[0]["fallback"])


def _name(key: dict[str, Any]) -> str:
    return f"{key['kind']} {key['precision']}"


def _nearest_line(key: dict[str, Any]) -> str:
    """What is published and nearest to a missing key, and in which facts it differs."""
    nearest = key["nearest"]
    words = difference_words(nearest["differences"])
    return (
        f"{key['words']} {key['digest'][:SHORT]}: nearest is {nearest['digest'][:SHORT]}: {words}"
    )


def _passed_over_lines(case: dict[str, Any], model: str) -> Iterator[str]:
    """Engines that no plan names any more; those of other generations are counted alone."""
    planned = {key["digest"] for key in case["planned"]}
    num_elsewhere = 0
    for each in case["passed_over"]:
        if each["digest"] in planned:
            continue
        if each["reason"] == FallbackReason.NO_ENGINE_FOR_GENERATION:
            num_elsewhere += 1
        else:
            yield f"engine {each['digest'][:SHORT]} is passed over: {each['detail']}"
    if num_elsewhere:
        yield f"engines for other generations: {num_elsewhere} (smelt engines {model})"


def precision_document(version: ModelVersion, generation: str) -> dict[str, Any]:
    """By precision, why no engine is built in it, or the distances at which one is proven."""
    try:
        parsed = Generation.parse(generation)
    except InvalidRequestError:
        # A node of a newer release reports it.
        return {"accuracy": version.recipe.accuracy.value, "precisions": {}}
    found = precisions_on(parsed, version.recipe, has_calibration=version.calibration is not None)
    precisions = {
        precision.value: {"not_built": reason}
        if reason
        else {"distances": distances(precision, version.recipe)}
        for precision, reason in found.items()
    }
    return {"accuracy": version.recipe.accuracy.value, "precisions": precisions}


def precision_lines(case: dict[str, Any], version: ModelVersion) -> Iterator[str]:
    """The recipe's word for accuracy, then a line for each precision."""
    known = {Precision(name): each.get("not_built") for name, each in case["precisions"].items()}
    yield from accuracy_words(version.recipe, (each for each in known if not known[each]))
    yield from (f"{name}: not built: {reason}" for name, reason in known.items() if reason)
