"""`smelt why`: what serves a model on a generation, and why nothing better does."""

from collections.abc import Iterator, Sequence
from typing import Any

from services.cli.builds.build_queue import queued_builds, standby_document
from services.cli.fleet.control_client import fleet_on_store
from services.cli.fleet.fleet_file import NO_FLEET, START_ONE
from services.cli.models.version_states import loading_words
from services.cli.output.show import show, times
from services.cli.registry import open_registry
from services.cli.settings import CliSettings
from services.cli.why.precision_words import precision_document, precision_lines
from services.cli.why.why_case import Case, replicas_of
from services.cli.why.why_document import SHORT, case_document
from services.cli.why.why_keys import difference_words
from services.contracts.errors import InvalidRequestError, NotFoundError
from services.contracts.events import EventKind
from services.contracts.hardware.facts import Generation
from services.contracts.model.manifest import ModelVersion
from services.contracts.registry.registry import Registry
from services.contracts.selection.selection import FallbackReason
from services.contracts.text.durations import milliseconds
from services.contracts.text.text_table import Table
from services.contracts.text.words import readable_time, worker_command
from services.controller.build.key_status import KeyState
from services.pb import fleet_v1_pb2 as fleet

_COLUMNS = ("rank", "kind", "state", "p50", "x eager", "x fallback", "engine")
_TROUBLES = (EventKind.QUARANTINED, EventKind.BUILD_FAILED, EventKind.BUILD_WAITING)
_NUM_EVENTS_READ = 200


def run_why(
    settings: CliSettings,
    name: str,
    generation: str,
    *,
    version: int | None = None,
    as_json: bool,
    is_wide: bool = False,
) -> None:
    """Explain one generation, or all that are planned or serve.

    Args:
        settings: of the command line.
        name: of the model.
        generation: "" for all.
        version: the newest by default.
        as_json: print one document in place of tables.
        is_wide: print all columns of the tables.

    Raises:
        NotFoundError: no such model or version, or nothing is known of the generation.
        InvalidRequestError: no such generation, or no model is named.
    """
    if not name:
        raise InvalidRequestError("smelt why: name a MODEL, or two keys: smelt why --keys A B")
    wanted = str(Generation.parse(generation)) if generation else ""
    registry = open_registry(settings)
    explained = registry.model_version(name, version)
    snapshot = fleet_on_store(settings)
    cases = list(explained_cases(settings, registry, explained, wanted, snapshot))
    unplaced = _unplaced(snapshot, explained)
    standby = standby_document(snapshot)
    text = [part for case in cases for part in _text(case, explained)]
    if not cases:
        text = [f"{name} version {explained.version}: nothing is planned for any generation"]
        text += [
            loading_words(report) for report in (replicas_of(snapshot, explained) or {}).get("", ())
        ]
        text.append(last_trouble(registry, name, ""))
    text.append(unplaced and f"{name}: {unplaced}")
    text.append(standby["reason"] if standby else "")
    text.append("" if snapshot else f"{NO_FLEET}; {START_ONE}")
    where = {"model": name, "version": explained.version, "unplaced": unplaced}
    document = where | {"standby": standby, "generations": cases}
    show(document, text, as_json=as_json, is_wide=is_wide)


def last_trouble(registry: Registry, model: str, generation: str) -> str:
    """One line on the last event of a build that failed or waits; "" when there is none.

    Args:
        registry: on the store.
        model: its name.
        generation: "" for all.
    """
    for _, event in reversed(registry.last_events(_NUM_EVENTS_READ, model)):
        if event.kind in _TROUBLES and generation in ("", event.generation):
            kind = event.kind.replace("_", " ")
            return f"Last event ({kind}, {readable_time(event.at)}): {event.why}"
    return ""


def explained_cases(
    settings: CliSettings,
    registry: Registry,
    version: ModelVersion,
    wanted: str,
    snapshot: fleet.FleetSnapshot | None,
) -> Iterator[dict[str, Any]]:
    """A document for each generation that is planned, serves or is queued.

    Args:
        settings: of the command line.
        registry: on the store.
        version: that is explained.
        wanted: one generation; "" for all.
        snapshot: the fleet on this store; None without one.

    Raises:
        NotFoundError: nothing is known of the generation.
    """
    replicas = replicas_of(snapshot, version)
    builds = queued_builds(snapshot, version.name, version.version)
    plans = registry.build_plans(version.name, version.version)
    # Plans alone would hide generations that a fleet has and no worker has looked at yet.
    known = {plan.node_class.generation for plan in plans} | builds.keys() | (replicas or {}).keys()
    known.discard("")
    if wanted and wanted not in known:
        plan = ("plan", version.name, "--generation", wanted)
        raise NotFoundError(
            f"nothing is planned for {version.name} version {version.version} on {wanted}; there "
            f"are plans for {', '.join(sorted(known)) or 'no generation'}. "
            + (
                last_trouble(registry, version.name, wanted)
                or "A controller makes one when such a node appears; by hand: "
                + worker_command(settings.store_url, *plan)
            )
        )
    trust = settings.trust
    for each in [wanted] if wanted else sorted(known):
        # One that does not know its generation yet may be of this one.
        here = None if replicas is None else [*replicas.get(each, []), *replicas.get("", [])]
        made = [plan for plan in plans if plan.node_class.generation == each]
        case = Case(registry, version, made, replicas=here, build=builds.get(each), trust=trust)
        about = {"generation": each} | precision_document(version, each)
        yield about | case_document(case, settings.store_url)


def _unplaced(snapshot: fleet.FleetSnapshot | None, version: ModelVersion) -> str:
    """Why replicas of a model version are on no node; "" when all are."""
    for model in snapshot.models if snapshot else ():
        if (model.name, model.version) == (version.name, version.version):
            return model.unplaced
    return ""


def _text(case: dict[str, Any], version: ModelVersion) -> Iterator[str | Table]:
    yield f"{version.name} version {version.version} on {case['generation']}: {case['serves']}"
    rows = [_row(key) for key in case["planned"]]
    rows += [("-", _name(skipped), "skipped", *["-"] * 4) for skipped in case["skipped"]]
    if rows or not case["build"]:
        yield Table("Planned", _COLUMNS, rows, ("x eager",))
    # Below the table: sentences in a column of it cannot be read on a narrow screen.
    yield from _lines(case, version)


def _row(key: dict[str, Any]) -> tuple[str, ...]:
    p50s = [
        milliseconds(p50_s, decimals=2) for p50_s in sorted(each["p50_s"] for each in key["p50_s"])
    ]
    return (
        str(key["rank"] or "-"),
        _name(key),
        key["stage"]["name"] if key["stage"] else KeyState(key["standing"]).words,
        _span(p50s) if p50s else "-",
        times(key["speed_over_eager"], is_wild=key["is_wild"]),
        times(key["speed_over_fallback"], is_wild=key["is_wild"]),
        key["digest"][:SHORT],
    )


def _span(texts: Sequence[str]) -> str:
    """The first and the last of some with one unit: `1.20..34.50 ms`."""
    least = texts[0]
    most = texts[-1]
    return most if least == most else f"{least.partition(' ')[0]}..{most}"


def _lines(case: dict[str, Any], version: ModelVersion) -> Iterator[str]:
    keys = case["planned"]
    verdict = version.fallback_verdict
    if case["build"]:
        yield f"{version.name} {case['build']['words']}"
    if case["decided_by"]:
        yield f"the rank is by engines {case['decided_by']}"
    yield from (f"{_name(key)}: {why}" for key in keys if (why := _why(key, version.name)))
    yield from (
        f"{_name(k)}: {k['proof']['words']}" for k in keys if k["proof"] and k["proof"]["words"]
    )
    yield from (f"{_name(skipped)}: {skipped['reason']}" for skipped in case["skipped"])
    yield from precision_lines(case, version)
    # What a replica reports of its fallback stands in the first line already.
    if verdict and not any(replica["fallback_refuted"] for replica in case["replicas"]):
        yield verdict.words
    yield from (_nearest_line(key) for key in keys if not key["proof"])
    yield from _passed_over_lines(case, version.name)


def _name(key: dict[str, Any]) -> str:
    return f"{key['kind']} {key['precision']}"


def _why(key: dict[str, Any], model: str) -> str:
    """Why a key does not serve, and what can be done; "" when it does."""
    words = str(key["stage"]["words"] if key["stage"] else key["reason"])
    match key["standing"]:
        case KeyState.PROVEN:
            return words
        case KeyState.QUARANTINED:
            words = f"given up after {key['num_failures']} failures: {words}; let out by: "
            words += f"smelt rebuild {model}"
        case KeyState.PROOF_FAILED:
            words += f"; tried again by: smelt rebuild {model}"
        case KeyState.FAILED if key["next_attempt_at"] and not key["stage"]:
            at = readable_time(key["next_attempt_at"])
            words += f"; a controller tries it again from {at} on, smelt build {model} at once"
    return f"{words}; its worst sample again: {key['replay']}" if key["replay"] else words


def _nearest_line(key: dict[str, Any]) -> str:
    """What is published and nearest to a missing key, and in which facts it differs."""
    nearest = key["nearest"]
    words = f"no {key['kind']} engine of this master was ever published"
    if nearest:
        words = (
            f"nearest is {nearest['digest'][:SHORT]}: {difference_words(nearest['differences'])}"
        )
    return f"{key['words']} {key['digest'][:SHORT]}: {words}"


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
